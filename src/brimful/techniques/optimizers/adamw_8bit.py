"""AdamW whose moments are held in 8 bits, each block of 256 with its own scale: bitsandbytes.

State: see ``blockwise``.
"""

from brimful.techniques.optimizers.base import Spelled, one_by_one
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
)
