"""A family: strategies that differ in nothing but how many blocks are checkpointed.

They share one variant of a profile and one set of dimensions, so a whole family is one evaluation
with an array where a single strategy has a number.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brimful.cost.profiles import (
    Body,
    Dimensions,
    Group,
    Profile,
    Variant,
    dimensions,
    variant_key,
    with_chunks,
)
from brimful.models.stacks import num_readers
from brimful.models.traced import find_built
from brimful.techniques.fused_kernels import FusedKernels, chunk_tokens, fused_head
from brimful.techniques.offload import NOTHING, Away
from brimful.techniques.one_unit import check_built_unit
from brimful.values.job import Job
from brimful.values.strategy import (
    DEFAULT_FSDP,
    FLAT_FSDP,
    Accumulate,
    Fsdp,
    Recompute,
    Reference,
    Strategy,
    Zero,
    data_parallel,
    num_checkpointed,
    recompute_of,
    what_is_away,
)


class Family(NamedTuple):
    """Strategies that differ in checkpointed blocks only.

    Attributes:
        micro_batch: Sequences per forward pass.
        loss_chunks: Pieces of the loss.
        body: Which blocks are checkpointed, in kind.
        num_blocks: How many are: a number, or an array of strategies.
        recompute: What those compute again.
        zero: Which states are sharded.
        num_data_parallel: Devices that see different samples.
        num_shards: Devices that share one copy of what is sharded: a number, or an array of
            strategies beside ``num_blocks``.
        accumulate: What happens to gradients between micro-batches.
        reference: Where a preference task's reference model is.
        tp: Devices that share every matrix.
        ep: Devices that part the experts of a block among them.
        away: What is in host memory between its uses.
        fused: Whose kernels run beside products and attention.
        fsdp: Whose parameters are gathered.
    """

    micro_batch: int
    loss_chunks: int
    body: Body
    num_blocks: ArrayLike
    recompute: Recompute
    zero: Zero = 0
    num_data_parallel: int = 1
    num_shards: ArrayLike = 1
    accumulate: Accumulate = "reduce-each"
    reference: Reference = "none"
    tp: int = 1
    ep: int = 1
    away: Away = NOTHING
    fused: FusedKernels = "none"
    fsdp: Fsdp = DEFAULT_FSDP

    @property
    def is_spread(self) -> bool:
        """Whether several devices see different samples."""
        return self.num_data_parallel > 1

    @property
    def gathers(self) -> bool:
        """Whether parameters are sharded and gathered before they compute."""
        return self.zero in {2, 3}

    @property
    def is_flat(self) -> bool:
        """Whether FSDP1 gathers parameters: flat ones, each of a whole unit."""
        return self.gathers and self.fsdp == FLAT_FSDP

    @property
    def sends_each(self) -> bool:
        """Whether every micro-batch makes gradients anew, as the host adds them up."""
        return self.away.optimizer and self.accumulate != "hold"


def family_of(job: Job, strategy: Strategy) -> Family:
    """Return the family that holds this one strategy."""
    num_blocks = num_checkpointed(strategy, num_layers=job.model.num_layers)
    check_built_unit(job, strategy)
    body = next(body for body, counts in bodies_of(job).items() if num_blocks in counts)
    recompute = recompute_of(strategy) if num_blocks else "full"
    return Family(
        micro_batch=strategy.micro_batch,
        loss_chunks=strategy.loss_chunks,
        body=body,
        num_blocks=num_blocks,
        recompute=recompute,
        zero=strategy.zero,
        num_data_parallel=data_parallel(strategy),
        num_shards=strategy.dp_shard,
        accumulate=strategy.accumulate,
        reference=strategy.reference,
        tp=strategy.tp,
        ep=strategy.ep,
        away=what_is_away(job, strategy),
        fused=strategy.fused_kernels,
        fsdp=strategy.fsdp,
    )


def parting_of(family: Family, num_shards: int) -> Family:
    """Return what of a family decides which shapes one device updates, and nothing beside it.

    Families that differ in micro-batches or blocks only have the same: what was made of it for
    one of them need not be made again for another.

    ``num_shards``: devices that share one copy, in those that are asked about.
    """
    return Family(
        micro_batch=1,
        loss_chunks=1,
        body="plain",
        num_blocks=0,
        recompute="full",
        zero=family.zero,
        num_shards=num_shards,
        fsdp=family.fsdp,
        tp=family.tp,
        ep=family.ep,
    )


def family_micro_batches(job: Job, family: Family) -> int:
    """Count the micro-batches that one device accumulates over one optimizer step."""
    return job.global_batch // (family.micro_batch * family.num_data_parallel)


def family_shards(family: Family) -> NDArray[np.float64]:
    """Return over how many devices states are sharded: [strategies]."""
    num = len(np.atleast_1d(np.asarray(family.num_blocks)))
    return np.broadcast_to(np.asarray(family.num_shards, dtype=np.float64), (num,))


def body_of(num_blocks: int, num_layers: int) -> Body:
    """Name the body of one stack with ``num_blocks`` of its ``num_layers`` checkpointed."""
    if num_blocks == 0:
        return "plain"
    return "checkpointed" if num_blocks == num_layers else "mixed"


def bodies_of(job: Job) -> dict[Body, range]:
    """Return every body that there may be, and which numbers of checkpointed blocks make it."""
    num = job.model.num_layers
    if (built := find_built(job.model)) is not None and not built.kinds:  # one unit: all, or none
        whole: dict[Body, range] = {"checkpointed": range(num, num + 1)} if built.again else {}
        return {"plain": range(1), **whole}
    return _bodies(num, num_readers(job.model) if job.task == "seq2seq" else num)


@cache
def _bodies(num: int, first: int) -> dict[Body, range]:
    """Return the bodies of ``num`` blocks, of which so many are in the first list.

    Which list has both kinds of blocks hangs on how many are checkpointed. What the first of each
    makes for all behind it, such as positions, is let go by the last that keeps it: so one program
    tells those numbers that leave two others of each kind, and each other number is its own.
    """
    if first == num:
        some = {"mixed": range(1, num)}
    else:
        several = {"mixed": range(3, first - 1), "later-mixed": range(first + 3, num - 1)}
        alone = set(range(1, num)).difference(*several.values())
        some = several | {f"{one} checkpointed": range(one, one + 1) for one in sorted(alone)}
    every: dict[Body, range] = {"plain": range(1), **some, "checkpointed": range(num, num + 1)}
    return {body: counts for body, counts in every.items() if counts}


def family_variant(job: Job, profile: Profile, family: Family) -> Variant:
    """Pick the variant of a profile that the family runs."""
    num_chunks = family_chunks(job, family)
    variant = profile.variants[variant_key(family.body, num_chunks=num_chunks)]
    return Variant(
        first=with_chunks(variant.first, num_chunks),
        later=with_chunks(variant.later, num_chunks),
    )


def family_chunks(job: Job, family: Family) -> int:
    """Return in how many chunks the loss really runs.

    Cutting 10 tokens into 6 chunks gives 5 of 2: ``Tensor.chunk`` rounds their size up.
    """
    return -(-family_tokens(job, family) // family_dimensions(job, family).C)


def family_tokens(job: Job, family: Family) -> int:
    """Count the tokens of a micro-batch, padding included."""
    return family.micro_batch * job.rows_per_sample * job.seq_len


def chunk_of(job: Job, tokens: int, *, loss_chunks: int, fused: FusedKernels) -> int:
    """Return the tokens of a chunk of the loss; the last may have fewer.

    ``fused``: whose kernels run: Liger's loss cuts tokens by a rule of its own.
    """
    head = fused_head(job, fused)
    return -(-tokens // loss_chunks) if head is None else chunk_tokens(tokens, head)


def runs_one(job: Job, family: Family) -> bool:
    """Whether a micro-batch is one sequence."""
    return family.micro_batch * job.rows_per_sample == 1


def family_dimensions(job: Job, family: Family) -> Dimensions:
    """Collect the sizes of the family's formulas; the last chunk may be smaller than this says."""
    return dimensions(
        job,
        micro_batch=family.micro_batch * job.rows_per_sample,
        chunk_tokens=chunk_of(
            job, family_tokens(job, family), loss_chunks=family.loss_chunks, fused=family.fused
        ),
        tp=family.tp,
        ep=family.ep,
    )


def family_counts(job: Job, family: Family) -> dict[Group, NDArray[np.float64]]:
    """Count the members of every group of runs: [strategies] each."""
    num_blocks = np.atleast_1d(np.asarray(family.num_blocks, dtype=np.float64))
    return {
        "checkpointed": num_blocks,
        "plain": job.model.num_layers - num_blocks,
        "chunk": np.full_like(num_blocks, family_chunks(job, family)),
    }
