"""Which micro-batches of a pipeline are enough to run, so that the others can be filled in.

A stage does the same for every micro-batch but the first and the last, and what it does hangs on
what it did before: after a backward it finds parameters that a forward left gathered. So enough
micro-batches run that every kind of call is there, each behind one of the kind that it would come
behind; the others hand on a tensor and leave an empty stretch (``pretend.calls`` fills it).
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

from brimful.cost.pipeline_orders import Operation, Row, order_of
from brimful.pretend.skipping import Chosen
from brimful.techniques.parallel.stages import Schedule
from brimful.values.job import Job
from brimful.values.strategy import Strategy, data_parallel, num_micro_batches

SKIPPED: frozenset[Schedule] = frozenset({"gpipe", "1f1b", "interleaved"})
"""Schedules whose backwards are whole."""
_MOST_TRIED = 3
"""Micro-batches beside the first and the last of which all combinations are tried."""


def chosen_of(job: Job, strategy: Strategy, rank: int) -> Chosen | None:
    """Choose the micro-batches that a device runs; None where all have to be run."""
    if strategy.pp == 1 or strategy.pp_schedule not in SKIPPED:
        return None
    num = num_micro_batches(job, strategy)
    place = rank // (data_parallel(strategy) * strategy.tp)
    row = Row(strategy.pp, num, strategy.stages_per_device)
    by_stage = _by_stage(order_of(strategy.pp_schedule, row, place))
    complete = _complete(by_stage, num)
    chosen = Chosen(complete, _few(by_stage, num, complete))
    return chosen if len(chosen.first_step) < num else None


def _by_stage(order: Sequence[Operation]) -> list[list[Operation]]:
    found: dict[int, list[Operation]] = defaultdict(list)
    for operation in order:
        found[operation.chunk].append(operation)
    return list(found.values())


def _complete(by_stage: list[list[Operation]], num: int) -> frozenset[int]:
    """Choose so that of each kind of call one is there that shows what those left out do."""
    ends = {0, num - 1}
    # The first and last two inner micro-batches of each kind of call.
    found: dict[Hashable, list[int]] = defaultdict(list)
    for operations in by_stage:
        for before, operation in pairwise(operations):
            if _is_inner(operation, num):
                found[operation.chunk, _kind(before, operation)].append(operation.micro_batch)
    likely = sorted({one for numbers in found.values() for one in (*numbers[:2], *numbers[-2:])})
    for more in range(_MOST_TRIED + 1):
        for inner in combinations(likely, more):
            if not _lacking(by_stage, ends.union(inner), num):
                return frozenset(ends.union(inner))
    chosen = ends
    while lacking := _lacking(by_stage, chosen, num):
        chosen.add(lacking)
    return frozenset(chosen)


def _lacking(by_stage: list[list[Operation]], chosen: set[int], num: int) -> int:
    """Return a micro-batch that has to be run beside those chosen; 0 if there is none."""
    for operations in by_stage:
        befores = list(_befores(operations, chosen))
        if not befores[-1].shows:  # the last backward, which reduces gradients
            return operations[-2].micro_batch
        shown = {_kind(b, op) for b, ran, op in befores if ran and _is_inner(op, num)}
        for before, _, operation in befores:
            if _is_inner(operation, num) and _kind(before, operation) not in shown:
                missing = {operation.micro_batch, before.micro_batch} - chosen
                return operation.micro_batch if operation.micro_batch in missing else max(missing)
    return 0


class _Behind(NamedTuple):
    """An operation behind another one of its stage.

    Attributes:
        before: The other one.
        shows: Whether it runs, and behind one of the other one's kind.
        operation: Itself.
    """

    before: Operation
    shows: bool
    operation: Operation


def _befores(operations: list[Operation], chosen: set[int]) -> Iterator[_Behind]:
    ran = operations[0]
    for before, operation in pairwise(operations):
        runs = operation.micro_batch in chosen
        yield _Behind(before, runs and ran.kind == before.kind, operation)
        ran = operation if runs else ran


def _is_inner(operation: Operation, num: int) -> bool:
    return 0 < operation.micro_batch < num - 1


def _kind(before: Operation, operation: Operation) -> Hashable:
    return operation.kind, before.kind


def _few(by_stage: list[list[Operation]], num: int, complete: frozenset[int]) -> frozenset[int]:
    """Choose as few as show again one forward and one backward of each stage."""
    for one in sorted(complete - {0, num - 1}):
        few = {0, one, num - 1}
        behind = [list(_befores(operations, few)) for operations in by_stage]
        shown = [
            {b.operation.kind for b in of if b.shows and _is_inner(b.operation, num)}
            for of in behind
        ]
        if all(len(kinds) > 1 for kinds in shown) and all(of[-1].shows for of in behind):
            return frozenset(few)
    return complete
