"""Writing a model whose weights are integers: safetensors, as torchao and transformers read it."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

from brimful.build.model import GIVEN
from brimful.build.quantize.torchao import config_of
from brimful.techniques.quantization import Quantization
from brimful.train.export import as_given, quiet_bars

_TOKENIZER = (
    "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "chat_template*", "*.model",
)  # fmt: skip
"""Names under which transformers keeps tokenizers."""


def write_rounded(
    model: Any, quantization: Quantization, *, left: set[str], source: Path, folder: Path
) -> None:
    """Write weights, configuration and tokenizer, for ``from_pretrained``.

    A quantised weight is several plain tensors in the file, and its metadata says how they are put
    together again: nothing is pickled.

    ``model``: of ``rounding.convert``. ``source``: folder of the model before; its tokenizer is
    handed on. ``folder``: where to; it exists. Raises OSError: the disk is full.
    """
    from transformers import TorchAoConfig
    from transformers.quantizers.quantizer_torchao import TorchAoHfQuantizer

    config = TorchAoConfig(config_of(quantization), modules_to_not_convert=sorted(left))
    model.hf_quantizer = TorchAoHfQuantizer(config)
    model.config.quantization_config = config
    with quiet_bars(), as_given(model.config, getattr(model, GIVEN, {})):
        model.save_pretrained(folder)
    for path in (path for pattern in _TOKENIZER for path in source.glob(pattern)):
        if path.is_file():
            shutil.copyfile(path, folder / path.name)


def read_rounded(model: nn.Module, folder: Path) -> None:
    """Give a model the weights of a folder of ``write_rounded``, in place.

    They are read by ``from_pretrained``, as a user's program reads them.

    ``model``: the converted one, whose weights are let go of.
    """
    device = next(model.parameters()).device
    with quiet_bars():
        loaded = type(model).from_pretrained(folder, local_files_only=True).to(device)
    for path, module in loaded.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            held = nn.Parameter(parameter.detach(), requires_grad=False)
            setattr(model.get_submodule(path), name, held)


def weight_bytes(model: nn.Module) -> int:
    """Count the bytes that a model's parameters take, tied ones once."""
    parts = [part for held in model.parameters() for part in _parts(held.detach())]
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage() for part in parts}
    return sum(storage.nbytes() for storage in storages.values())


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain tensors that a tensor is made of."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in _parts(getattr(tensor, name))]
