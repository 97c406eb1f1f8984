"""How fast scores are computed: by which kernel, in which type, in rows of which length.

Owns which kernel ``--attention`` is on a card; what each reaches stands in ``efficiency.py``.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from brimful.cost.efficiency import AttentionKernel, attention_share
from brimful.cost.kv_cache import windows
from brimful.cost.programs import HALF as LOWERED
from brimful.cost.trajectory import Array
from brimful.hardware.cluster import Device, matrix_rate
from brimful.hardware.cuda_libraries import NEWEST, Version
from brimful.models.own_task import is_encoder, is_encoder_decoder
from brimful.techniques.kernel_support import (
    AMPERE,
    FIRST_OF_AMD,
    HALF,
    Place,
    why_not,
)
from brimful.values.job import FP8, Job, Precision
from brimful.values.strategy import Attention

CAUSAL_SHARE = 0.5
"""Half of a causal attention's scores are masked, and fused kernels skip them; of what is
given a mask of its own, as encoders and encoder-decoders are, nothing is.

A calibrated rate already is that of attention counted whole.
"""
_CUDNN_SINCE: Version = (2, 11)
"""PyTorch from which on ``scaled_dot_product_attention`` tries cuDNN's kernel first, on cards of
``_CUDNN_FIRST``; see ``pretend.attention_choice.priority``."""
_CUDNN_FIRST = (9.0, 10.0, 10.3)
_PINNED: dict[Attention, AttentionKernel] = {"flash": "flash", "varlen": "flash", "cudnn": "cudnn"}
_TAKING_MASKS = frozenset({"sdpa", "efficient", "cudnn"})
"""Which are given a mask where rows hold documents, padding or windows; others know bounds."""
_CHUNKED = "chunked_attention"
_DIGITS = 9
"""Of a share that is a quotient of others."""


class Scores(NamedTuple):
    """Some of a step's scores.

    Attributes:
        share: Of the FLOPs of attention.
        kernel: What computes them.
        is_whole: Whether nothing of them is skipped.
    """

    share: float
    kernel: AttentionKernel
    is_whole: bool


def scores_of(
    job: Job, attention: Attention, device: Device, torch: Version = NEWEST
) -> tuple[Scores, ...]:
    """Return which kernels compute a job's scores, in PyTorch of a version.

    As PyTorch chooses: the first that takes the type, the width of a head and the mask.
    """
    masked = masked_share(job, attention)
    parts = (
        (1 - masked, _kernel_of(job, attention, device, torch, is_masked=False), sees_all(job)),
        (masked, _kernel_of(job, attention, device, torch, is_masked=True), True),
    )
    return tuple(Scores(*part) for part in parts if part[0])


def scores_by(kernel: AttentionKernel, job: Job) -> tuple[Scores, ...]:
    """Return that one kernel computes all scores, and is given no mask."""
    return (Scores(1.0, kernel, sees_all(job)),)


def scores_on_tape(
    flops: Mapping[str, float], job: Job, attention: Attention
) -> tuple[Scores, ...]:
    """Return which kernels computed a job's scores, by the operations that ran.

    ``flops``: of attention, by operation. Which of them are masked a tape does not tell: those of
    FlashAttention are not.
    """
    by_kernel = defaultdict[AttentionKernel, float](float)
    for op, num in flops.items():
        by_kernel[kernel_named(op)] += num
    total = sum(by_kernel.values())
    flash = by_kernel.pop("flash", 0) / total if total else 0.0
    masked = masked_share(job, attention) / (1 - flash) if flash < 1 else 0.0
    masked = min(1.0, round(masked, _DIGITS))
    found = [Scores(flash, "flash", sees_all(job))]
    for kernel, num in by_kernel.items():
        found.append(Scores(masked * num / total, kernel, is_whole=True))
        found.append(Scores((1 - masked) * num / total, kernel, sees_all(job)))
    return tuple(each for each in found if each.share)


def kernel_named(op: str) -> AttentionKernel:
    """Return which kernel an operation of PyTorch's runs."""
    kernels: tuple[AttentionKernel, ...] = ("flash", "cudnn")
    return next((each for each in kernels if each in op), "other")


def sees_all(job: Job) -> bool:
    """Whether tokens see those behind them too."""
    kind = job.model.model_type
    return is_encoder(kind) or is_encoder_decoder(kind)


def masked_share(job: Job, attention: Attention) -> float:
    """Return the share of blocks whose kernel is given a mask, 0 to 1."""
    if attention not in _TAKING_MASKS:
        return 0.0
    spec = job.model
    is_padded = is_encoder(spec.model_type) and job.packing == "none"
    if job.packing == "documents" or is_padded or is_encoder_decoder(spec.model_type):
        return 1.0
    chunk: int = spec.hf_config.get("attention_chunk_size") or job.seq_len
    kinds: Sequence[str] = spec.hf_config.get("layer_types") or ()
    num = sum(window is not None and window < job.seq_len for window in windows(spec))
    num += sum(kind == _CHUNKED and chunk < job.seq_len for kind in kinds)
    return num / max(1, spec.num_layers)


def _kernel_of(
    job: Job, attention: Attention, device: Device, torch: Version, *, is_masked: bool
) -> AttentionKernel:
    """Return the first kernel that takes what it is given."""
    capability, recipe = device.capability, _attended_in(job)
    if recipe not in HALF or not AMPERE <= capability < FIRST_OF_AMD:
        return "other"
    if attention != "sdpa":
        return _PINNED.get(attention, "other")
    is_first = torch >= _CUDNN_SINCE and capability in _CUDNN_FIRST
    order: list[Literal["cudnn", "flash"]] = ["cudnn"] * is_first
    order += ["flash"] * (not is_masked)
    given, place = msgspec.structs.replace(job, precision=recipe), Place("cuda", capability)
    return next((each for each in order if why_not(given, each, place) is None), "other")


def attention_seconds(flops: Array, job: Job, device: Device, scores: tuple[Scores, ...]) -> Array:
    """Return the seconds of fused attention, of FLOPs as if nothing were masked.

    NaN where the rate is unknown.
    """
    seconds = np.zeros_like(flops)
    for part in scores:
        computed = 1.0 if device.calibrated or part.is_whole else CAUSAL_SHARE
        length = job.seq_len * (1 + part.is_whole)
        reached = attention_share(device, part.kernel, length, job.model.head_dim)
        rate = matrix_rate(device, _attended_in(job)) * reached
        if not np.all(rate):
            return np.full_like(flops, np.nan)
        seconds = seconds + part.share * computed * flops / rate
    return seconds


def _attended_in(job: Job) -> Precision:
    """Return the recipe whose types scores are computed in: those that projections hand on.

    Of products in fp8 they are of 16 bits, and fp32 where norms in fp32 feed layers in 4 bits,
    which give back the type they are given, and no autocast narrows it.
    """
    if job.precision == FP8:
        return "bf16-mixed"
    is_wide = job.adapter is not None and job.adapter.upcast == "all"
    return "fp32" if is_wide and job.precision not in LOWERED else job.precision
