"""What each floating-point format holds: its limits as powers of two. No torch.

A format rounds to the nearest number it has, ties to the even one, as every kernel of torch does.
So a number vanishes whose magnitude is at most half of the smallest one that there is.

Source: IEEE 754-2008 (binary16, binary32); Kalamkar et al. 2019, arXiv:1905.12322 (bfloat16);
Micikevicius et al. 2022, arXiv:2209.05433, table 1 (E4M3 and E5M2).
"""

from typing import Literal

import msgspec

FormatName = Literal["fp64", "fp32", "bf16", "fp16", "e5m2", "e4m3"]


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A floating-point format.

    Attributes:
        name: What it is called.
        torch_name: Of the type in torch.
        mantissa_bits: Digits after the point.
        least_exponent: Of the smallest normal number, a power of two.
        largest: The largest number.
    """

    name: FormatName
    torch_name: str
    mantissa_bits: int
    least_exponent: int
    largest: float

    @property
    def vanish_exponent(self) -> int:
        """Numbers of at most two to the power of this become 0."""
        return self.least_exponent - self.mantissa_bits - 1

    @property
    def smallest(self) -> float:
        """The smallest number above 0."""
        return 2.0 ** (self.vanish_exponent + 1)


FP32 = Format(
    name="fp32",
    torch_name="float32",
    mantissa_bits=23,
    least_exponent=-126,
    largest=(2 - 2.0**-23) * 2.0**127,
)
BF16 = Format(
    name="bf16",
    torch_name="bfloat16",
    mantissa_bits=7,
    least_exponent=-126,
    largest=(2 - 2.0**-7) * 2.0**127,
)
FP16 = Format(
    name="fp16", torch_name="float16", mantissa_bits=10, least_exponent=-14, largest=65504.0
)
E5M2 = Format(
    name="e5m2", torch_name="float8_e5m2", mantissa_bits=2, least_exponent=-14, largest=57344.0
)
E4M3 = Format(
    name="e4m3", torch_name="float8_e4m3fn", mantissa_bits=3, least_exponent=-6, largest=448.0
)
FORMATS: dict[FormatName, Format] = {f.name: f for f in (FP32, BF16, FP16, E5M2, E4M3)}
FORMATS_BY_TYPE: dict[str, Format] = {f.torch_name: f for f in FORMATS.values()}
"""By torch's name of the type."""
NARROW: tuple[FormatName, ...] = ("bf16", "fp16", "e5m2", "e4m3")
"""Those that a wider number may be rounded to."""
SIXTEEN_BITS: tuple[FormatName, ...] = ("bf16", "fp16")
"""Formats that weights are held in without a master."""
