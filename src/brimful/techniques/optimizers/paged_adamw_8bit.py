"""AdamW in 8 bits whose moments leave a GPU that is full: bitsandbytes.

State: see ``blockwise``.
"""

from brimful.errors import MORE
from brimful.techniques.optimizers.base import Like, Spelled, one_by_one
from brimful.techniques.optimizers.blockwise import beside_rounded, paged, rounded_state
from brimful.techniques.optimizers.two_moments import two_moments

PAGED_ADAMW_8BIT = two_moments(
    "paged-adamw-8bit",
    keeps="two moments of a byte in managed memory, scales per 256",
    source="Dettmers et al. 2023, arXiv:2305.14314; ``bitsandbytes/optim/optimizer.py``",
    state=paged(rounded_state),
    moments=one_by_one(beside_rounded),
    shards="local",
    pipeline=False,
    travels=False,
    rounds=True,
    pages=True,
    transformers=Spelled("paged_adamw_8bit"),
    likes=(
        Like(
            ("paged-ademamix-8bit", "paged-lion-8bit"),
            "one number a parameter in 8 bits",
            "paged 8-bit AdamW keeps two, a byte a parameter more in managed memory",
            MORE,
        ),
    ),
)
