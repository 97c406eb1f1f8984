"""Bytes per parameter of every precision recipe, in one table.

Source: the types that ``build/precision.py`` and torch's fused AdamW hold; Adam's two moments are
kept in the type of the parameter.
"""

import msgspec

from brimful.job import Precision


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that one trained parameter takes in each role."""

    parameter: int
    gradient: int
    optimizer_state: int


RECIPES: dict[Precision, Recipe] = {
    "fp32": Recipe(parameter=4, gradient=4, optimizer_state=8),
    "bf16": Recipe(parameter=2, gradient=2, optimizer_state=4),
    "bf16-mixed": Recipe(parameter=4, gradient=4, optimizer_state=8),
}
