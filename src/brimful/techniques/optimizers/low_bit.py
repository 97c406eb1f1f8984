"""What AdamW in four bits and in fp8 share: torchao's formats, and its compiled update.

State of a tensor of 4096 elements or more that its blocks divide: codes of both moments, and fp32
scales of their blocks. Of any other, two moments in the type of the parameter, as there.
"""

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from brimful.techniques.optimizers.base import (
    FP32_BYTES,
    Kept,
    Optimizer,
    Settings,
    Shape,
    Updated,
    counted,
    one_by_one,
)
from brimful.techniques.optimizers.two_moments import moments_of, two_moments

LEAST = 4096
"""Smaller tensors keep moments in the type of the parameter: torchao's, after bitsandbytes."""
SCALE = "_scale"
"""What the key of a moment's scales ends in."""


class Format(NamedTuple):
    """A format of moments.

    Attributes:
        block: Values that share an fp32 scale.
        is_packed: Whether two values share a byte; else each has one.
        widened_bytes: What the compiled update takes for each value, by kernels, beside two more
            scales a block: four-bit values are searched in several passes over whole copies, fp8
            is one pass. Measured on a CPU (torch 2.13, torchao 0.18, gcc, one thread, two types,
            shapes from 64 x 64 to 2048 x 256). For CUDA read off what Inductor's code for 8.0,
            8.9, 9.0 and 10.0 allocates (the same versions): two fp32 copies, two of int64 indices.
    """

    block: int
    is_packed: bool
    widened_bytes: Mapping[str, int]

    def takes(self, num: int) -> bool:
        """Whether a tensor of ``num`` values is held in this format."""
        return num >= LEAST and num % self.block == 0

    def state(self, parameter: Updated, _settings: Settings) -> tuple[Kept, ...]:
        """Return what is kept of a parameter."""
        if not self.takes(parameter.num):
            return counted(on_host=True), *moments_of(parameter)
        scales = (parameter.num // self.block,)
        made = [counted(on_host=True)]
        for moment in moments_of(parameter):
            codes = (
                Kept(moment.key, (parameter.num // 2,), "uint8")
                if self.is_packed
                else Kept(moment.key, parameter.shape, "fp8")
            )
            made += [codes, Kept(moment.key + SCALE, scales, "fp32")]
        return tuple(made)

    def workspace_bytes(self, shape: Shape, kernels: str) -> int:
        """Return what the compiled update of a tensor takes beside its state.

        For CUDA also whether a row is a block decides: its scales are then written where they stay.
        Where several rows are one, codes of a byte are made in a copy (both moments').
        """
        num, columns = prod(shape), shape[-1] if shape else 1
        if not self.takes(num):
            return 0
        taken = self.widened_bytes[kernels] * num
        scales = 2 * num // self.block * FP32_BYTES
        if kernels != "cuda":
            return taken + scales
        is_in_rows = not self.is_packed and columns < self.block and self.block % columns == 0
        return taken + 2 * num * is_in_rows + scales * (columns != self.block)

    def beside(self, parameter: Updated, settings: Settings) -> tuple[int, ...]:
        """Return the same as a moment of the update."""
        taken = self.workspace_bytes(parameter.shape, settings.kernels)
        return (taken,) if taken else ()


def in_few_bits(
    name: str, keeps: str, source: str, held: Format, *, also: tuple[str, ...]
) -> Optimizer:
    """Return the record of AdamW with moments of a format, which has these other names."""
    return two_moments(
        name,
        keeps=keeps,
        source=source,
        state=held.state,
        moments=one_by_one(held.beside),
        zero1=False,
        masters=False,
        pipeline=False,
        travels=False,
        compiled=True,
        rounds=True,
        also=also,
    )
