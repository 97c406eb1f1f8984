"""AdamW whose moments are held in 8 bits, each block of 256 with its own scale: bitsandbytes.

State: see ``blockwise``.
"""

from brimful.errors import MORE
from brimful.techniques.optimizers.base import Like, Spelled, one_by_one
from brimful.techniques.optimizers.blockwise import beside_rounded, rounded_state
from brimful.techniques.optimizers.two_moments import two_moments

ADAMW_8BIT = two_moments(
    "adamw-8bit",
    keeps="two moments of a byte, scales per 256",
    source="Dettmers et al. 2022, arXiv:2110.02861; ``bitsandbytes/optim/optimizer.py``",
    state=rounded_state,
    moments=one_by_one(beside_rounded),
    shards="local",
    rounds=True,
    transformers=Spelled(
        "adamw_bnb_8bit",
        "optimizer",
        "adamw_bnb_8bit is another implementation",
        is_same=False,
        reads=("adamw8bit", "adamw_8bit", "adamw_torch_8bit"),
    ),
    likes=(
        Like(
            ("ademamix-8bit", "lion-8bit", "rmsprop-bnb-8bit"),
            "one number a parameter in 8 bits",
            "8-bit AdamW keeps two, a byte a parameter more",
            MORE,
        ),
        Like(
            (
                "apollo",
                "apollo-adamw",
                "apollo-mini",
                "galore",
                "galore-adafactor",
                "galore-adamw",
                "galore-adamw-8bit",
                "q-galore",
            ),
            "moments in a subspace of each matrix",
            "8-bit moments are about as small, and the gradients stay whole in both",
        ),
        Like(
            ("apollo-adamw-layerwise", "galore-adamw-8bit-layerwise", "galore-adamw-layerwise"),
            "moments in a subspace of each matrix, updated inside the backward pass",
            "8-bit moments are about as small, and --optimizer-in-backward --clip 0 with one "
            "micro-batch a step lets gradients go as early",
        ),
    ),
)
