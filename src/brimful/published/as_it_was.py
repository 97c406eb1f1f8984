"""What programs of their time held more, or less, than ours: closed forms.

The loss. Until it shifted labels instead, that of ``transformers`` copied all but the last token's
logits in fp32 and took log-probabilities of the copy. From 4.46 on it also widened them itself,
while the narrow ones were bound by its caller; before, and in Granite since, the model's class did,
and the narrow ones were gone. Today's, and ours, hold at most three fp32 pieces of that size, in
backward. Source: ``ForCausalLMLoss`` in ``transformers/loss/loss_utils.py`` and
``transformers/models/granite/modeling_granite.py`` of 4.48.1.

Selective checkpointing. torchtitan keeps every second matrix product of a block, ours every one.
Source: ``_apply_ac_to_transformer_block`` in ``torchtitan/models/llama3/infra/parallelize.py``.

FSDP's root. torchtitan lets it give up its parameters after its forward, as blocks do, and the loss
is computed after that: nothing is gathered then. Ours keeps them. Source: ``apply_fsdp`` there.
"""

from collections.abc import Mapping

from brimful.cost.family import (
    Family,
    family_counts,
    family_of,
)
from brimful.cost.memory import family_steps, profile_for, step_memory, step_sizes
from brimful.cost.profiles import Group, Profile, Run
from brimful.cost.trajectory import Array, follow
from brimful.hardware.cluster import Device
from brimful.job import IN_FP32, Job
from brimful.plan import Estimate
from brimful.published.rows import LossCopies
from brimful.rungs import GATHERED, ITEM_NAMES, LOGITS
from brimful.strategy import Strategy

_HALF_BYTES, _FP32_BYTES = 2, 4
_IN_LOSS = "final norm and loss"
"""Where ``cost.memory`` says that such a peak lies."""


def copied_logits_bytes(job: Job, loss: LossCopies, *, micro_batch: int) -> int:
    """Return what the pieces take together.

    Narrow logits, the same in fp32, their copy without the last token, its log-probabilities:
    (2 + 4) B S V + (4 + 4) B (S - 1) V.

    Args:
        job: What is trained.
        loss: Whether the narrow logits were held.
        micro_batch: Sequences, B.
    """
    vocab, tokens = job.model.vocab_size, micro_batch * job.seq_len
    is_held = loss == "copied" and job.precision not in IN_FP32
    shifted = micro_batch * (job.seq_len - 1)
    return vocab * (tokens * (is_held * _HALF_BYTES + _FP32_BYTES) + shifted * 2 * _FP32_BYTES)


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


def peak_with_copied_loss(job: Job, strategy: Strategy, device: Device, loss: LossCopies) -> int:
    """Return the bytes that are alive in the forward of a loss that copies its logits.

    Args:
        job: What is trained.
        strategy: How.
        device: On what.
        loss: Which pieces it held; not ``none``.
    """
    family = family_of(job, strategy)
    profile = profile_for(job, strategy.attention, device, family)
    held = step_memory(job, strategy, profile, device)
    states = held.states.loaded + held.states.optimizer_state + held.blas
    logits = copied_logits_bytes(job, loss, micro_batch=strategy.micro_batch)
    return int(states) + round(_level_before_loss(job, profile, family)) + logits


def _level_before_loss(job: Job, profile: Profile, family: Family) -> float:
    """Return the level at which the first logits of the fullest micro-batch are allocated."""
    steps, counts = family_steps(job, profile, family), family_counts(job, family)
    every = step_sizes(job, steps, family, by_item=False)
    base, highest = 0.0, 0.0
    for (each, runs), sizes in zip(steps, every, strict=True):
        highest = max(highest, base + _level_at_logits(each, runs, sizes, counts))
        base += float(follow(each, runs, sizes, counts).end[0, 0])
    return highest


def _level_at_logits(
    profile: Profile, runs: tuple[Run, ...], sizes: Array, counts: Mapping[Group, Array]
) -> float:
    index, event = _first_logits(profile, runs)
    before = float(follow(profile, runs[:index], sizes, counts).end[0, 0])
    events = list(profile.works[runs[index].work].events[:event])
    return before + float(sizes[0, events, 0].sum())


def _first_logits(profile: Profile, runs: tuple[Run, ...]) -> tuple[int, int]:
    item = ITEM_NAMES.index(LOGITS)
    return next(
        (index, place)
        for index, run in enumerate(runs)
        for place, event in enumerate(profile.works[run.work].events)
        if profile.kinds[event].item == item
    )
