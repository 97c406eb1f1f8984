"""A model as ``from_pretrained`` loads it to write text: evaluation, a cache, quantised or not."""

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.quantizers.base import get_keys_to_not_convert

from brimful.build.experts import check_experts
from brimful.build.precision import PARAMETER_DTYPE
from brimful.build.quantize import FORMATS, swap
from brimful.cost.formats import COMPUTE_BYTES
from brimful.cost.inference import InferenceJob
from brimful.errors import ModelConfigError, UnsupportedError
from brimful.job import plain_job

_REASON_LENGTH = 160
TORCHAO = ("int8", "int4")
"""Formats that torchao makes by its own tensor classes, which the pretend GPU does not take."""


def inference_skeleton(job: InferenceJob) -> nn.Module:
    """Build a decoder on the ``meta`` device: shapes and code, no bytes.

    Its attention is what ``from_pretrained`` picks: SDPA, or eager where a class has no other.

    Args:
        job: What is loaded, and how.

    Raises:
        UnsupportedError: The format is torchao's, or experts run on as many tokens as choose them.
        ModelConfigError: ``transformers`` cannot build it.
    """
    if job.weights_format in TORCHAO:
        raise UnsupportedError(
            f"weights_format={job.weights_format} is torchao's, which this version predicts and "
            f"does not simulate; use {' or '.join(COMPUTE_BYTES)}, nf4, nf4-double or llm-int8"
        )
    dtype = PARAMETER_DTYPE[job.compute]
    skeleton = _from_config(job, dtype).eval()
    check_experts(skeleton, plain_job(job.model, precision=job.compute))
    hold_types(skeleton, dtype)
    if job.weights_format in FORMATS:
        kept = set(get_keys_to_not_convert(skeleton))
        swap(skeleton, job.weights_format, dtype=dtype, keeps=kept.__contains__)
    return skeleton


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
