"""One Llama block by hand: what it saves for backward, as documentation and cross-check.

Predictions use the traced profile; this is the same read off ``modeling_llama.py`` of transformers,
in plain bf16 with a fused attention kernel of CUDA. Tested equal to the profile, byte for byte.
Letters of ``profiles.Dimensions``: B sequences of S tokens, H wide, A heads and K key heads of D,
an MLP of F.
"""

from typing import NamedTuple

from brimful.cost.profiles import Dimensions

HALF, FULL = 2, 4
RNG_BYTES = 16
"""Seed and offset of the attention kernel, 8 bytes each."""


class SavedBytes(NamedTuple):
    """Bytes that a block's forward leaves for its backward.

    Attributes:
        norms: Of both: the input in fp32, 1 / its root mean square, the normalised value, which the
            weight's gradient needs, and the output, which the products' weights need:
            2 (4 BSH + 4 BS + 2 BSH + 2 BSH).
        attention: Rotated queries and keys, values, the result, which the output product needs too,
            and the logarithm of each row's sum in fp32: 2 B S D (A + K + K + A) + 4 B S A.
        mlp: Gate, its SiLU, up, and their product: 4 x 2 BSF.
    """

    norms: int
    attention: int
    mlp: int

    @property
    def total(self) -> int:
        """All of them; a residual sum is the next norm's input and saves nothing of its own."""
        return self.norms + self.attention + self.mlp


def saved_bytes(dims: Dimensions) -> SavedBytes:
    """Return what one block saves.

    Args:
        dims: Sizes; those of the loss and of adapters play no part.
    """
    tokens = dims.B * dims.S
    heads = 2 * dims.A + 2 * dims.K
    return SavedBytes(
        norms=2 * tokens * (FULL * dims.H + FULL + 2 * HALF * dims.H),
        attention=tokens * (HALF * dims.D * heads + FULL * dims.A) + RNG_BYTES,
        mlp=4 * tokens * HALF * dims.F,
    )


def forward_flops(dims: Dimensions) -> int:
    """Return the FLOPs of a block's forward: products, and attention as if nothing were masked.

    2 B S (2 H A D + 2 H K D + 3 H F) + 4 B S S A D.
    """
    tokens, width = dims.B * dims.S, dims.D * (dims.A + dims.K)
    products = 2 * tokens * dims.H * (2 * width + 3 * dims.F)
    return products + 4 * tokens * dims.S * dims.A * dims.D
