"""Which micro-batches of a pipeline are enough to run, so that the others can be filled in.

A stage does the same for every micro-batch but the first and the last, and what it does hangs on
what it did before: after a backward it finds parameters that a forward left gathered. So enough
micro-batches run that every kind of call is there, each behind one of the kind that it would come
behind; the others hand on a tensor and leave an empty stretch (``pretend.calls`` fills it).
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

from brimful.cost.pipeline_orders import Operation, Row, order_of
from brimful.job import Job
from brimful.pipeline_split import Schedule
from brimful.pretend.skipping import Chosen
from brimful.strategy import Strategy, data_parallel, num_micro_batches

SKIPPED: frozenset[Schedule] = frozenset({"gpipe", "1f1b", "interleaved"})
"""Schedules whose backwards are whole."""


def chosen_of(job: Job, strategy: Strategy, rank: int) -> Chosen | None:
    """Choose the micro-batches that a device runs; None where all have to be run.

    Args:
        job: What is trained.
        strategy: How it is run.
        rank: Which device.
    """
    if strategy.pp == 1 or strategy.pp_schedule not in SKIPPED:
        return None
    num = num_micro_batches(job, strategy)
    place = rank // (data_parallel(strategy) * strategy.tp)
    row = Row(strategy.pp, num, strategy.stages_per_device)
    by_stage = _by_stage(order_of(strategy.pp_schedule, row, place))
    chosen = Chosen(_complete(by_stage, num), _few(by_stage, num))
    return chosen if len(chosen.first_step) < num else None


def _by_stage(order: Sequence[Operation]) -> list[list[Operation]]:
    found: dict[int, list[Operation]] = defaultdict(list)
    for operation in order:
        found[operation.chunk].append(operation)
    return list(found.values())


def _complete(by_stage: list[list[Operation]], num: int) -> frozenset[int]:
    """Choose so that each kind of call that is left out is there once at least."""
    firsts: dict[Hashable, int] = {}
    for operations in by_stage:
        for before, operation in zip(operations, operations[1:], strict=False):
            kind = (operation.chunk, operation.kind, before.kind)
            if 0 < operation.micro_batch < num - 1:
                firsts.setdefault(kind, operation.micro_batch)
    return _consistent(by_stage, {0, num - 1, *firsts.values()})


def _few(by_stage: list[list[Operation]], num: int) -> frozenset[int]:
    return _consistent(by_stage, {0, min(1, num - 1), num - 1})


def _consistent(by_stage: list[list[Operation]], wanted: set[int]) -> frozenset[int]:
    """Add micro-batches until each call that runs comes behind one of the kind that it should."""
    while True:
        lacking = next(
            (found for ops in by_stage for found in _lacking(ops, wanted)), None
        )
        if lacking is None:
            return frozenset(wanted)
        wanted.add(lacking)


def _lacking(operations: list[Operation], wanted: set[int]) -> Iterator[int]:
    """Yield micro-batches of which a call is missing before one that runs."""
    ran = 0
    for place in range(1, len(operations)):
        if operations[place].micro_batch not in wanted:
            continue
        kind = operations[place - 1].kind
        if operations[ran].kind != kind:
            yield next(
                op.micro_batch for op in operations[ran + 1 : place] if op.kind == kind
            )
        ran = place
