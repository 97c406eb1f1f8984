"""Handing trained adapters over: as PEFT keeps them, or merged into a plain model.

Both write a folder of safetensors whole or not at all, and leave the model that trains as it is.
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from brimful.build.adapters import NAME, adapted_layers, base_name, full_weight, merged_weight
from brimful.build.model import GIVEN
from brimful.build.own import whole
from brimful.errors import InputError
from brimful.train.folders import replacing

WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model."
"""PEFT's wrapper, inside which it looks for every name."""


def adapter_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Return the trained adapters on the host under PEFT's names; all processes must call this.

    Raises InputError: the model has no adapters.
    """
    from peft import get_peft_model_state_dict

    _require_adapters(model)
    tensors = get_peft_model_state_dict(model, adapter_name=NAME, save_embedding_layers=False)
    return {_PREFIX + name: _on_host(tensor) for name, tensor in tensors.items()}


def export_adapters(
    model: Any, *, base: str, folder: Path, adapters: dict[str, torch.Tensor] | None = None
) -> None:
    """Write the adapters in PEFT's format: ``adapter_model.safetensors``, ``adapter_config.json``.

    ``base``: folder or hub id of the model that the adapters belong to; empty if it has none.
    ``folder``: loadable by ``PeftModel.from_pretrained`` afterwards; replaced if there.
    ``adapters``: of ``adapter_tensors``; None: found now. Raises InputError: the model has no
    adapters. Raises RunError: the disk is full; adapters that were there before are untouched.
    """
    from safetensors.torch import save_file

    named = adapter_tensors(model) if adapters is None else adapters
    config = model.peft_config[NAME]
    before = config.base_model_name_or_path, config.inference_mode
    config.base_model_name_or_path, config.inference_mode = base or None, True
    try:
        with replacing(folder) as temporary:
            save_file(named, temporary / WEIGHTS, metadata={"format": "pt"})
            config.save_pretrained(str(temporary))
    finally:
        config.base_model_name_or_path, config.inference_mode = before


def merge(model: Any, *, dtype: torch.dtype, folder: Path) -> None:
    """Write a plain model: every adapter merged into its layer, quantised ones made whole.

    What is merged is what trained: a quantised layer's rounded weight, not the one it was made of.

    ``model``: adapted, of ``transformers``. ``dtype``: type of all weights that are written.
    ``folder``: loadable by ``from_pretrained`` afterwards; replaced if there. Raises InputError:
    the model has no adapters. Raises RunError: the disk is full; a model that was there before is
    untouched.
    """
    _require_adapters(model)
    plain = plain_model(model, dtype=dtype)
    with replacing(folder) as temporary:
        plain.save_pretrained(temporary)


def plain_model(
    model: Any, *, dtype: torch.dtype, tensors: dict[str, torch.Tensor] | None = None
) -> Any:
    """Return a model of the same class without adapters, merged, on the host.

    ``model``: adapted, of ``transformers``. ``tensors``: of ``merged_tensors``; None: found now.
    """
    found = merged_tensors(model, dtype=dtype) if tensors is None else tensors
    with torch.device("meta"):
        plain = type(model)(copy.deepcopy(model.config))
    setattr(plain, GIVEN, getattr(model, GIVEN, {}))
    plain.load_state_dict(found, strict=False, assign=True)
    # Which weights are tied was found out when the model was built; a config may say otherwise.
    plain.all_tied_weights_keys = dict(model.all_tied_weights_keys)
    plain.tie_weights(recompute_mapping=False)
    plain.generation_config = getattr(model, "generation_config", None)
    plain.config.dtype = dtype
    return plain


def merged_tensors(model: Any, *, dtype: torch.dtype, keep: bool = True) -> dict[str, torch.Tensor]:
    """Return the parameters of the merged model on the host, under their plain names.

    ``model``: adapted; where it is sharded all processes must call this. ``dtype``: type of all of
    them. ``keep``: whether this process wants them; else it helps to gather, one at a time.
    """
    made = _merged(model, dtype)
    return dict(made) if keep else {name: tensor.new_empty(0) for name, tensor in made}


def _merged(model: Any, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    from peft.utils.other import ModulesToSaveWrapper

    paths = {id(module): path for path, module in model.named_modules()}
    adapted = {f"{paths[id(layer)]}.base_layer": layer for layer in adapted_layers(model)}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            plain = base_name(f"{path}.{name}")
            if plain is None:
                continue
            if name != "weight":
                yield plain, _on_host(parameter).to(dtype)
            elif path in adapted:
                yield plain, _on_host(merged_weight(adapted[path], dtype=dtype))
            else:
                yield plain, _on_host(full_weight(module)).to(dtype)
    for path, module in model.named_modules():
        if isinstance(module, ModulesToSaveWrapper):
            for name, parameter in module.modules_to_save[NAME].named_parameters():
                yield f"{path}.{name}", _on_host(parameter).to(dtype)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return whole(tensor).to("cpu").contiguous()


def _require_adapters(model: Any) -> None:
    if NAME not in getattr(model, "peft_config", {}):
        raise InputError(
            "the model has no adapters to write or merge: it was trained with method=full, whose "
            "weights are exported as they are; use method=lora, dora or qlora"
        )
