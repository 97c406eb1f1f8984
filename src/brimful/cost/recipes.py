"""Bytes per parameter of every precision recipe, in one table.

Source: the types that the techniques of ``build/precision`` hold.
"""

import msgspec

from brimful.values.job import Precision

HALF_BYTES, FP32_BYTES = 2, 4


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that one trained parameter takes in each role.

    Attributes:
        parameter: Itself.
        gradient: Its gradient, in its own type.
        master: The fp32 copy that the optimizer updates in its place; 0 where there is none.
    """

    parameter: int
    gradient: int
    master: int

    @property
    def updated(self) -> int:
        """Bytes of what the optimizer updates, in whose type it keeps its moments."""
        return self.master or self.parameter


_FP32 = Recipe(parameter=4, gradient=4, master=0)
_HALF = Recipe(parameter=2, gradient=2, master=0)
_MASTER = Recipe(parameter=2, gradient=2, master=FP32_BYTES)

RECIPES: dict[Precision, Recipe] = {
    "fp32": _FP32,
    "tf32": _FP32,
    "bf16": _HALF,
    "fp16": _HALF,
    "bf16-mixed": _FP32,
    "fp16-mixed": _FP32,
    "bf16-master": _MASTER,
    "fp16-master": _MASTER,
    "fp8": _FP32,
}
