"""What programs of their time held more, or less, than ours: closed forms.

Selective checkpointing. torchtitan keeps every second matrix product of a block, ours every one.
Source: ``_apply_ac_to_transformer_block`` in ``torchtitan/models/llama3/infra/parallelize.py``.

FSDP's root. torchtitan lets it give up its parameters after its forward, as blocks do, and the loss
is computed after that: nothing is gathered then. Ours keeps them. Source: ``apply_fsdp`` there.
"""

from brimful.job import Job
from brimful.plan import Estimate
from brimful.rungs import GATHERED

_HALF_BYTES = 2
_IN_LOSS = "final norm and loss"
"""Where ``cost.memory`` says that such a peak lies."""


def recomputed_products_bytes(job: Job, *, micro_batch: int, num_blocks: int) -> int:
    """Return what a block keeps less, over all blocks but the one that is recomputed.

    Of q, k, v, o, gate, up and down, in this order, k, o and up are computed again:
    2 B S (K D + H + F) bytes a block.

    Args:
        job: What is trained; a decoder with these seven products.
        micro_batch: Sequences, B.
        num_blocks: Blocks that are checkpointed.
    """
    model = job.model
    width = model.num_kv_heads * model.head_dim + model.hidden_size + model.intermediate_size
    return _HALF_BYTES * micro_batch * job.seq_len * width * max(0, num_blocks - 1)


def gathered_beside_loss(estimated: Estimate) -> int:
    """Return what is gathered at a peak that lies in the loss; 0 where it lies elsewhere."""
    where = max(estimated.phases, key=lambda phase: phase.num_bytes).where
    gathered = sum(item.num_bytes for item in estimated.items if item.name == GATHERED)
    return gathered if where.endswith(_IN_LOSS) else 0
