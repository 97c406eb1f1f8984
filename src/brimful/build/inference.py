"""A model as ``from_pretrained`` loads it to write text: evaluation, a cache, quantised or not."""

from typing import Any, cast

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.quantizers.base import get_keys_to_not_convert

from brimful.build.experts import check_experts
from brimful.build.precision import PARAMETER_DTYPE
from brimful.build.quantize import Held, swap
from brimful.build.quantize.torchao import INT4_GROUP
from brimful.cost.formats import COMPUTE_BYTES, WeightsFormat
from brimful.cost.inference import InferenceJob
from brimful.errors import ModelConfigError
from brimful.techniques.quantization import GROUP_SIZE
from brimful.values.job import plain_job

_REASON_LENGTH = 160
_NUMBERS = "qdata"
"""What torchao's tensors call what stands for the weights."""
_TORCHAO: dict[WeightsFormat, Held] = {
    "int8": "torchao-int8",
    "int4": "torchao-int4",
    "int8-dynamic": "int8-dynamic",
    "int4-dynamic": "int4-dynamic",
}
_GROUPS: dict[WeightsFormat, int] = {"int4": INT4_GROUP, "int4-dynamic": GROUP_SIZE}
"""Formats of torchao; ``int8`` is also one of ours, for frozen bases."""


def inference_skeleton(job: InferenceJob) -> nn.Module:
    """Build a decoder on the ``meta`` device: shapes and code, no bytes.

    Its attention is what ``from_pretrained`` picks: SDPA, or eager where a class has no other.

    Raises UnsupportedError: the format's package is not installed, or experts run on as many tokens
    as choose them. Raises ModelConfigError: ``transformers`` cannot build it.
    """
    dtype = PARAMETER_DTYPE[job.compute]
    skeleton = _from_config(job, dtype).eval()
    check_experts(skeleton, plain_job(job.model, precision=job.compute))
    hold_types(skeleton, dtype)
    if job.weights_format not in COMPUTE_BYTES:
        _swap(skeleton, job, dtype)
    return skeleton


def _swap(skeleton: nn.Module, job: InferenceJob, dtype: torch.dtype) -> None:
    """Swap linear layers, but for those that the format's maker leaves as they are too."""
    kept = set(get_keys_to_not_convert(skeleton))
    held: Held = _TORCHAO.get(job.weights_format, cast("Held", job.weights_format))
    if job.weights_format in _TORCHAO:
        kept |= {path for path, m in skeleton.named_modules() if type(m) is not nn.Linear}
    if group := _GROUPS.get(job.weights_format):
        linear = [(path, m) for path, m in skeleton.named_modules() if type(m) is nn.Linear]
        kept |= {path for path, m in linear if m.in_features % group}
    swap(skeleton, held, dtype=dtype, keeps=kept.__contains__)


def _from_config(job: InferenceJob, dtype: torch.dtype) -> Any:
    try:
        config = AutoConfig.for_model(job.model.model_type, **job.model.hf_config)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=dtype)
    except Exception as error:  # its checks raise errors of many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelConfigError(
            f"transformers cannot build {job.model.name} ({reason[:_REASON_LENGTH]}); mend that "
            f"field of its configuration"
        ) from error


def hold_types(skeleton: Any, dtype: torch.dtype) -> None:
    """Hold in fp32 what a class says must not be held in 16 bits, parameters and buffers alike."""
    kept = skeleton._get_dtype_plan(dtype)  # noqa: SLF001 - as from_pretrained does
    for name, tensor in (*skeleton.named_parameters(), *skeleton.named_buffers()):
        for part in set(name.split(".")) & set(kept):
            tensor.data = tensor.data.to(kept[part])


def constants_of(module: nn.Module) -> list[torch.Tensor]:
    """Return what a layer's quantised weight holds beside its numbers: scales and zero points."""
    weight: Any = getattr(module, "weight", None)
    if not hasattr(weight, "__tensor_flatten__"):
        return []
    names: list[str] = weight.__tensor_flatten__()[0]
    return [getattr(weight, name) for name in names if name != _NUMBERS]
