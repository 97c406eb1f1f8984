"""How fast scores are computed: by which kernel, in which type, in rows of which length.

Owns which kernel ``--attention`` is on a card; what each reaches stands in ``efficiency.py``.
"""

import numpy as np

from brimful.cost.efficiency import AttentionKernel, attention_share
from brimful.cost.programs import HALF as LOWERED
from brimful.cost.trajectory import Array
from brimful.hardware.cluster import Device, matrix_rate
from brimful.hardware.cuda_libraries import NEWEST, Version
from brimful.models.own_task import is_encoder, is_encoder_decoder
from brimful.techniques.kernel_support import (
    AMPERE,
    CUDNN_WIDTH,
    CUDNN_WIDTH_ON_HOPPER,
    FIRST_OF_AMD,
    HALF,
    HOPPER,
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
_FLASH_TYPES = ("flash", "varlen", "sdpa")


def kernel_of(
    job: Job, attention: Attention, device: Device, torch: Version = NEWEST
) -> AttentionKernel:
    """Return which kernel computes a job's scores, in PyTorch of a version.

    FlashAttention 2 and cuDNN's take 16 bits, from Ampere on; a mask that tells documents apart is
    for others.
    """
    capability = device.capability
    is_masked = job.packing == "documents" and attention == "sdpa"
    if _attended_in(job) not in HALF or not AMPERE <= capability < FIRST_OF_AMD or is_masked:
        return "other"
    widest = CUDNN_WIDTH_ON_HOPPER if capability == HOPPER else CUDNN_WIDTH
    is_first = torch >= _CUDNN_SINCE and capability in _CUDNN_FIRST
    if attention == "cudnn" or (attention == "sdpa" and is_first and job.model.head_dim <= widest):
        return "cudnn"
    return "flash" if attention in _FLASH_TYPES else "other"


def attention_seconds(flops: Array, job: Job, device: Device, kernel: AttentionKernel) -> Array:
    """Return the seconds of fused attention, of FLOPs as if nothing were masked.

    NaN where the rate is unknown.
    """
    kind = job.model.model_type
    is_whole = is_encoder(kind) or is_encoder_decoder(kind)
    share = 1.0 if device.calibrated or is_whole else CAUSAL_SHARE
    length = job.seq_len * (1 + is_whole)
    reached = attention_share(device, kernel, length, job.model.head_dim)
    rate = matrix_rate(device, _attended_in(job)) * reached
    return share * flops / rate if np.all(rate) else np.full_like(flops, np.nan)


def _attended_in(job: Job) -> Precision:
    """Return the recipe whose types scores are computed in: those that projections hand on.

    Of products in fp8 they are of 16 bits, and fp32 where norms in fp32 feed layers in 4 bits,
    which give back the type they are given, and no autocast narrows it.
    """
    if job.precision == FP8:
        return "bf16-mixed"
    is_wide = job.adapter is not None and job.adapter.upcast == "all"
    return "fp32" if is_wide and job.precision not in LOWERED else job.precision
