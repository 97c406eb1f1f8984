"""How weights are rounded to whole numbers for use: by ``qat`` while it trains, by a conversion."""

from typing import Annotated, Literal

import msgspec

from brimful.errors import InputError
from brimful.models.spec import ModelSpec
from brimful.values.flag import Flag

Scheme = Literal["int8", "int4"]
WORDS: dict[Scheme, str] = {
    "int8": "int8 weights, a scale for each row, inputs rounded to int8 token by token",
    "int4": "int4 weights, a scale for each group, inputs rounded to int8 token by token",
}
"""Both are torchao's ``Int8DynamicActivationIntxWeightConfig``, of int8 and of int4 weights: the
one family of integer formats that its ``QATConfig`` prepares, and that it multiplies on every
device. ``Int8DynamicActivationInt8WeightConfig`` has no preparation, ``Int4WeightOnlyConfig`` no
kernel on a CPU (torchao 0.18)."""
ROW = 0
"""The group size that says: all weights of a row share a scale."""
GROUP_SIZE = 32
"""torchao's default for int4."""
LEAST_GROUP = 2
LONGEST_ROW = 2048
"""Tokens of a row that a converted model is judged by, where nobody says how many."""


class Quantization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the weights of linear layers are rounded; the output layer is left as it is.

    Attributes:
        scheme: Which numbers there are (``WORDS``).
        group_size: Neighbours in a row that share a scale; ``ROW``: the whole row.
    """

    scheme: Annotated[Scheme, Flag("{either}; {default}", name="qat-scheme")]
    group_size: Annotated[
        int,
        Flag("weights of a row that share a scale, of int4; {default}", name="qat-group-size"),
    ]


def default_group(scheme: Scheme) -> int:
    """Return the group size of a scheme where nobody names one."""
    return ROW if scheme == "int8" else GROUP_SIZE


def check_quantization(quantization: Quantization, model: ModelSpec) -> Quantization:
    """Return it as it is, or say why it does not go with a model.

    Widths that a specification does not name are checked when the model is built.
    """
    scheme, size = quantization.scheme, quantization.group_size
    if scheme == "int8":
        if size != ROW:
            raise InputError(
                f"group_size={size} has no meaning with scheme=int8, where a row shares a scale; "
                f"leave it out, or use scheme=int4"
            )
        return quantization
    if size < LEAST_GROUP:
        raise InputError(
            f"group_size={size} is too small for scheme=int4; give {LEAST_GROUP} or more, such as "
            f"{GROUP_SIZE}"
        )
    widths = {
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_heads x head_dim": model.num_heads * model.head_dim,
    }
    for name, width in widths.items():
        check_width(f"{model.name}'s {name}", width, group_size=size)
    return quantization


def check_width(name: str, width: int, *, group_size: int) -> None:
    """Refuse a layer whose rows are no whole number of groups."""
    if group_size and width % group_size:
        fits = [n for n in (128, 64, 32, 16, 8, 4, 2) if not width % n]
        hint = f"use {' or '.join(map(str, fits))}" if fits else "use scheme=int8"
        raise InputError(f"group_size={group_size} does not divide {name}={width}; {hint}")
