"""A base in 4 bits by GPTQ, which is predicted as one in nf4 with other constants.

A layer of ``in x out`` numbers has half a byte a number, as nf4 has, and of each group of inputs a
scale in 16 bits and a zero point of 4 bits for every output; besides, the group of each input as an
int32. Where a product is computed the whole weight is in 16 bits, as bitsandbytes' is in backward.

Source: ``QuantLinear`` of ``auto_gptq/nn_modules/qlinear/qlinear_tritonv2.py`` (buffers
``qweight``, ``qzeros``, ``scales``, ``g_idx``), ``dequant248`` of
``auto_gptq/nn_modules/triton_utils/dequant.py``.
"""

from msgspec.structs import replace

from brimful.cost.trained import LINEAR, nf4_constants
from brimful.job import Adapter, Job
from brimful.models.config import layout_of

GROUP_SIZE = 128
"""Inputs that share a scale, as published bases have it."""
_SCALE_BYTES, _INDEX_BYTES, _ZEROS_A_BYTE = 2, 4, 2


def as_nf4(adapter: Adapter) -> Adapter:
    """Return the adapters of a job whose base is in nf4 instead."""
    return replace(adapter, base="nf4-double")


def more_bytes(job: Job) -> int:
    """Return what a base of GPTQ takes more than the one in nf4 that stands for it.

    Args:
        job: With a base in nf4.
    """
    blocks = layout_of(job.model).blocks
    layers = [
        (parameter.shape, run.num_blocks)
        for run in blocks
        for parameter in run.parameters
        if parameter.kind in LINEAR
    ]
    return sum(
        num * (_constants(*shape) - nf4_constants(shape[0] * shape[1])) for shape, num in layers
    )


def _constants(num_out: int, num_in: int) -> int:
    groups = -(-num_in // GROUP_SIZE)
    return (
        groups * num_out * _SCALE_BYTES + groups * num_out // _ZEROS_A_BYTE + num_in * _INDEX_BYTES
    )
