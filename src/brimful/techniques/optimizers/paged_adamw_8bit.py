"""AdamW in 8 bits whose moments leave a GPU that is full: bitsandbytes.

State: see ``blockwise``.
"""

from brimful.techniques.optimizers.base import Spelled, one_by_one
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
)
