"""Bases in 4 bits of other kinds, which are predicted as ones in nf4 with double quantisation.

Each has half a byte a number, as that has, and other constants beside:

- GPTQ, for a layer of ``in x out`` numbers: of each group of inputs a scale in 16 bits and a zero
  point of 4 bits for every output; besides, the group of each input as an int32. Where a product is
  computed the whole weight is in 16 bits, as bitsandbytes' is in backward.
- nf4 without double quantisation: an fp32 scale for each block of numbers, and the table.

Experts. Ours are one tensor of all experts, which bitsandbytes leaves as it is. Until version 5 of
``transformers`` each was three linear layers, which are packed like all others, as is
litgpt's head.

Source: ``QuantLinear`` of ``auto_gptq/nn_modules/qlinear/qlinear_tritonv2.py`` (buffers
``qweight``, ``qzeros``, ``scales``, ``g_idx``), ``dequant248`` of
``auto_gptq/nn_modules/triton_utils/dequant.py``; ``quantize_4bit`` of
``bitsandbytes/functional.py``; ``MixtralBlockSparseTop2MLP`` of
``transformers/models/mixtral/modeling_mixtral.py`` of 4.48; ``_convert_layers`` of
``lightning/fabric/plugins/precision/bitsandbytes.py``.
"""

from collections.abc import Iterator
from typing import NamedTuple

from brimful.cost.trained import frozen_element, nf4_constants
from brimful.models.config import layout_of
from brimful.models.targets import LINEAR
from brimful.published.rows import PublishedRun
from brimful.values.job import QUANTIZED, Job

GPTQ = "GPTQ base"
"""What ``PublishedRun.beyond`` says of such a base; its adapters are in fp32."""
GROUP_SIZE = 128
"""Inputs that share a scale, as published bases have it."""
PACK_HEADS = frozenset({"litgpt"})
"""Programs that pack the head too, as every other linear layer."""
_SCALE_BYTES, _INDEX_BYTES, _ZEROS_A_BYTE = 2, 4, 2


class Matrix(NamedTuple):
    """A weight: outputs, inputs, how many there are, and whether ours has it in 16 bits."""

    num_out: int
    num_in: int
    times: int
    is_half: bool


def is_packed(run: PublishedRun) -> bool:
    """Whether a run's base is in 4 bits of another kind than ours."""
    return GPTQ in run.beyond or (run.adapter is not None and run.adapter.base == "nf4")


def more_bytes(run: PublishedRun, job: Job) -> int:
    """Return what a base takes more than the one that stands for it; experts take less.

    ``job``: the same with a base in nf4.
    """
    if job.adapter is None or job.adapter.base not in QUANTIZED:
        return 0
    packed = sum(weight.times * _more(run, job, weight) for weight in _weights(job))
    return packed + (_head_bytes(run, job) if run.implementation in PACK_HEADS else 0)


def _head_bytes(run: PublishedRun, job: Job) -> int:
    """Return what a head in 4 bits takes more than one in 16: less than nothing."""
    shapes = [p.shape for p in layout_of(job.model).head]
    heads = [Matrix(shape[0], shape[1], 1, is_half=True) for shape in shapes if len(shape) > 1]
    return sum(_more(run, job, head) for head in heads)


def _more(run: PublishedRun, job: Job, weight: Matrix) -> int:
    num = weight.num_out * weight.num_in
    own = _constants(run, weight)
    if weight.is_half:
        return num // 2 + own - num * frozen_element(job)
    return own - nf4_constants(num)


def _constants(run: PublishedRun, weight: Matrix) -> int:
    num = weight.num_out * weight.num_in
    if GPTQ in run.beyond:
        groups = -(-weight.num_in // GROUP_SIZE)
        a_group = weight.num_out * _SCALE_BYTES + weight.num_out // _ZEROS_A_BYTE
        return groups * a_group + weight.num_in * _INDEX_BYTES
    if run.adapter is not None and run.adapter.base == "nf4":
        return nf4_constants(num, is_double=False)
    return nf4_constants(num)


def _weights(job: Job) -> Iterator[Matrix]:
    """Yield what is packed of a model's blocks; experts' gates and inputs are one tensor here."""
    for run in layout_of(job.model).blocks:
        for parameter in run.parameters:
            if parameter.kind in LINEAR:
                num_out, num_in = parameter.shape
                yield Matrix(num_out, num_in, run.num_blocks, is_half=False)
            elif parameter.kind == "experts":
                experts, num_out, num_in = parameter.shape
                yield Matrix(num_out, num_in, experts * run.num_blocks, is_half=True)
