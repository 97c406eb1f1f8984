"""Recipes of fp8 and of NVFP4: how Transformer Engine quantises a tensor, and what that takes.

A product reads its operands along rows forward and along columns for the gradient of the weight.
With one scale for a tensor (``delayed``, ``tensorwise``) Hopper multiplies one layout alone, so a
transpose is made; Blackwell multiplies any. Blocks (``blockwise``, ``mxfp8``) have other scales in
each direction, so both are made from what is quantised. NVFP4 (``nvfp4``) is half a byte, in
blocks of 16.

Source: ``transformer_engine/pytorch/csrc/quantizer.cpp``, ``common/transformer_engine.cpp`` of
2.20; ``megatron/core/transformer/attention.py`` (what is kept of a projection's input).
"""

from typing import Literal, get_args

import msgspec

from brimful.hardware.cuda_chips import Version

OfFp8 = Literal["delayed", "tensorwise", "blockwise", "mxfp8"]
RecipeName = Literal[OfFp8, "nvfp4"]
RECIPES_OF_FP8: tuple[str, ...] = get_args(OfFp8)
BLACKWELL: Version = (10, 0)
_ANY_LAYOUT_BUT: Version = (12, 0)
"""Of the cards since Blackwell the one whose fp8 products are of one layout."""
_SCALES = 32
"""Elements to a byte of scales: one for 32, or four bytes for 128."""
_SCALES_OF_FP4 = 16
"""Elements to a byte of scales."""
_SQUARE = 128 * 128
_FLOAT_BYTES = 4


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How linear layers are quantised.

    Attributes:
        name: As ``--fp8-recipe`` or ``--fp4-recipe`` says it.
        any_layout: Whether the card multiplies matrices of any layout.
        first_plain, last_plain: Layers at the model's ends that stay in 16 bits.
        gathers_parameters: Whether weights are parameters themselves, rather than copies of them.
    """

    name: RecipeName
    any_layout: bool
    first_plain: int
    last_plain: int
    gathers_parameters: bool

    @property
    def is_fp4(self) -> bool:
        """Whether an element is half a byte."""
        return self.name == "nvfp4"

    @property
    def has_one_scale(self) -> bool:
        """Whether a tensor has one scale."""
        return self.name in {"delayed", "tensorwise"}

    @property
    def transposes(self) -> bool:
        """Whether columns are read from a transpose of rows."""
        return self.has_one_scale and not self.any_layout

    @property
    def norms_apart(self) -> bool:
        """Whether a norm writes 16 bits before they are quantised."""
        return self.name in {"tensorwise", "blockwise", "nvfp4"}

    @property
    def keeps_inputs(self) -> bool:
        """Whether an attention's projection keeps what it was given, which is kept anyway."""
        return self.name != "delayed"

    @property
    def gathers_beside(self) -> bool:
        """Whether what is gathered along columns comes in an order of its own first."""
        return self.name == "blockwise"

    def rows(self, num: int) -> int:
        """Return the bytes of a tensor of so many elements, to be read along rows."""
        if self.is_fp4:
            return num // 2 + num // _SCALES_OF_FP4
        return num if self.has_one_scale else num + num // _SCALES

    def columns(self, num: int) -> int:
        """Return the bytes of what is made to be read along columns; 0: nothing is."""
        return 0 if self.has_one_scale and self.any_layout else self.rows(num)

    def weight(self, num: int) -> int:
        """Return the bytes of a weight, in all directions."""
        if self.name == "blockwise":
            return 2 * (num + num // _SQUARE * _FLOAT_BYTES)
        return self.rows(num) + self.columns(num)

    @property
    def in_a_buffer(self) -> int:
        """Bytes of a weight's element in the buffer of parameters; 0: they are no part of it.

        Blocks of ``mxfp8`` are not: what is gathered lies where gradients do, and is quantised.
        """
        return int(self.name != "mxfp8")

    def lasting(self, num: int) -> int:
        """Return the bytes of a weight that are beside its parameter, or of its buffer."""
        return self.weight(num) - num * (self.gathers_parameters and self.in_a_buffer)

    def is_plain(self, number: int, num_layers: int) -> bool:
        """Return whether a layer stays in 16 bits."""
        return number < self.first_plain or number >= num_layers - self.last_plain


def multiplies_any_layout(capability: Version) -> bool:
    """Return whether fp8 products may be of any layout (``nvte_is_non_tn_fp8_gemm_supported``)."""
    return capability >= BLACKWELL and capability != _ANY_LAYOUT_BUT
