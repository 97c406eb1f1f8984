"""AdamW with fp32 moments that leave a GPU that is full: bitsandbytes.

State: see ``blockwise``.
"""

from brimful.techniques.optimizers.base import Spelled, one_by_one
from brimful.techniques.optimizers.blockwise import beside_whole, paged, whole_state
from brimful.techniques.optimizers.two_moments import two_moments

PAGED_ADAMW_32BIT = two_moments(
    "paged-adamw-32bit",
    keeps="two moments in fp32, in managed memory",
    source="Dettmers et al. 2023, arXiv:2305.14314; ``bitsandbytes/optim/optimizer.py``",
    state=paged(whole_state),
    moments=one_by_one(beside_whole),
    shards="local",
    pipeline=False,
    on_host=True,
    travels=False,
    pages=True,
    transformers=Spelled("paged_adamw_32bit", reads=("paged_adamw",)),
    also=("paged-adamw",),
)
