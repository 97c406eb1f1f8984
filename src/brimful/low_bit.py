"""How AdamW's moments are held in few bits, and what updating them takes. No torch."""

from typing import NamedTuple

LEAST = 4096
"""Smaller tensors keep moments in the type of the parameter: torchao's, after bitsandbytes."""
_FP32_BYTES = 4


class BitsOf(NamedTuple):
    """A format of moments.

    Attributes:
        block: Values that share an fp32 scale.
        is_packed: Whether two values share a byte; else each has one.
        widened_bytes: What the compiled update takes for each value, beside two more scales a
            block. Measured on a CPU (torch 2.13, torchao 0.18, gcc, one thread, two types, shapes
            from 64 x 64 to 2048 x 256), where it searches four-bit values in several passes over
            whole copies, and does fp8 in one.
    """

    block: int
    is_packed: bool
    widened_bytes: int

    def takes(self, num: int) -> bool:
        """Whether a tensor of ``num`` values is held in this format."""
        return num >= LEAST and num % self.block == 0


LOW_BIT: dict[str, BitsOf] = {
    "adamw-4bit": BitsOf(128, True, 26),
    "adamw-fp8": BitsOf(256, False, 0),
}
"""By the name of the optimizer."""


def kept_bytes(bits: BitsOf, num: int, element_bytes: int) -> int:
    """Return what both moments of a tensor take.

    Args:
        bits: The format.
        num: Values of the tensor.
        element_bytes: Of one value of the parameter.
    """
    if not bits.takes(num):
        return 2 * num * element_bytes
    return 2 * (num // (1 + bits.is_packed) + num // bits.block * _FP32_BYTES)


def workspace_bytes(bits: BitsOf, num: int) -> int:
    """Return what the compiled update of a tensor takes beside its state, on a CPU."""
    if not bits.takes(num):
        return 0
    return bits.widened_bytes * num + 2 * num // bits.block * _FP32_BYTES
