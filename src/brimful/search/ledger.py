"""The savings ledger: from the naive run to a plan, switch by switch, every point estimated.

The naive run: full training in fp32 with AdamW, eager attention, no checkpointing, whole logits,
plain data parallelism; its micro-batch is the plan's, so that what is compared is the same work.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from brimful.cost.estimate import estimate
from brimful.cost.formula import told_beside
from brimful.cost.least import least_bytes, least_on_device, spread_of
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.models.config import exact_count
from brimful.search.offers import LORA_BASES
from brimful.techniques.optimizers import DEFAULT
from brimful.techniques.runnable import check_strategy
from brimful.units import format_bytes, format_seconds
from brimful.values.job import QUANTIZED, Job
from brimful.values.plan import Estimate, PhasePeak
from brimful.values.strategy import Strategy, default_reference, world_size

Owner = Literal["job", "planner", "both"]
"""Whose a switch is: the job's changes what is learnt, the planner's only memory and time; ``both``
is a row of several that no formula tells apart."""
MAX_CHANGES = 3
LEAST_CHANGE = 0.01
"""Items that change by less than this share of the peak are not named as a reason."""
_TIME_PARTS = {
    "matrix_s": "matrix products",
    "memory_s": "memory traffic",
    "launch_s": "launches",
    "exposed_s": "collectives or copies that nothing hides",
}


class Rival(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What another switch would have done at the same depth.

    Attributes:
        switch: Which.
        saved_bytes: Of the peak; below 0: it adds.
        added_s: Per step; below 0: it is faster; None: unknown.
    """

    switch: str
    saved_bytes: int
    added_s: float | None


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One switch, or several that no formula tells apart.

    Attributes:
        switch: What is switched.
        before: Its value until then.
        after: Its value from then on.
        owner: Whose choice it is.
        peak_before_bytes: Predicted peak until then; None: no formula covers that run.
        peak_after_bytes: Predicted peak from then on.
        least_before_bytes: What its states take at least until then, where no peak is predicted.
        step_before_s: Predicted seconds per step until then; None: unknown.
        step_after_s: The same from then on.
        usable_bytes: What tensors may take.
        reason: The items and the parts of the time that changed, largest first.
        rivals: The planner's other switches at this depth, which came later.
    """

    switch: str
    before: str
    after: str
    owner: Owner
    peak_before_bytes: int | None
    peak_after_bytes: int
    step_before_s: float | None
    step_after_s: float | None
    usable_bytes: int
    reason: str
    rivals: tuple[Rival, ...]
    least_before_bytes: int | None = None

    @property
    def saved_bytes(self) -> int | None:
        """Bytes of the peak that the switch saves; None: unknown."""
        return None if self.peak_before_bytes is None else _saved(self)

    @property
    def added_s(self) -> float | None:
        """Seconds per step that the switch adds; None: unknown."""
        if self.step_before_s is None or self.step_after_s is None:
            return None
        return self.step_after_s - self.step_before_s

    @property
    def fits(self) -> bool:
        """Whether the run fits from then on."""
        return self.peak_after_bytes <= self.usable_bytes


def _saved(row: LedgerRow) -> int:
    assert row.peak_before_bytes is not None
    return row.peak_before_bytes - row.peak_after_bytes


class Point(NamedTuple):
    """A run on the way from the naive one to the plan."""

    job: Job
    strategy: Strategy


class Move(NamedTuple):
    """One step on the way.

    Attributes:
        switch: Its name.
        owner: Whose it is.
        job: Fields of the job that change, with their values.
        strategy: The same of the strategy.
    """

    switch: str
    owner: Owner
    job: dict[str, Any]
    strategy: dict[str, Any]


class Option(NamedTuple):
    """What could be next.

    Attributes:
        chain: Whose moves.
        moves: The first of its chain; more where those before the last have no estimate.
        point: Where they lead.
        made: What is predicted there, or why nothing is.
        why: Why the first alone has no estimate; empty where it has.
    """

    chain: int
    moves: tuple[Move, ...]
    point: Point
    made: Estimate | str
    why: str


class Known(NamedTuple):
    """Where the way stands: the last point that has an estimate, and the moves made since.

    Attributes:
        made: What is predicted there; of a start without an estimate, why.
        point: The run.
        since: Moves that led to runs without an estimate.
        why: Why the first of those has none.
    """

    made: Estimate | str
    point: Point
    since: tuple[Move, ...]
    why: str


def ledger(job: Job, cluster: Cluster, strategy: Strategy) -> tuple[LedgerRow, ...]:
    """Walk from the naive run to a plan.

    The job's own switches come first, in the order precision, method, base, optimizer, behind what
    of the planner's they have no estimate without. Then, at every depth, the planner's switch comes
    next that saves memory and costs no time, most bytes first; where there is none, the one that
    saves most bytes per second it adds.

    Returns a row per switch that differs; none where the plan is the naive run. The last row ends
    at the plan's own estimate. Raises UnsupportedError: no formula covers the plan. Raises
    InputError: the plan cannot run the job.
    """
    estimate(job, cluster, check_strategy(job, strategy))
    start = naive_point(job, strategy)
    return tuple(_walk(cluster, start, _chains(start, Point(job, strategy))))


def naive_point(job: Job, strategy: Strategy) -> Point:
    """Return the naive run beside a plan."""
    plain = msgspec.structs.replace(
        job,
        precision="fp32",
        loss_scale=None,
        method="full",
        adapter=None,
        quantization=None,
        optimizer=DEFAULT,
    )
    naive = Strategy(
        micro_batch=strategy.micro_batch,
        activation_checkpointing="none",
        loss_chunks=1,
        attention="eager",
        dp_replicate=world_size(strategy),
        reference=default_reference(plain),
    )
    return Point(plain, naive)


def predict(point: Point, cluster: Cluster) -> Estimate | str:
    """Estimate a run, or say in words why it cannot be."""
    try:
        check_strategy(point.job, point.strategy)
        return estimate(point.job, cluster, point.strategy)
    except (UnsupportedError, InputError) as error:
        return told_beside(str(error))


def _least(point: Point) -> int | None:
    """Return what the states of a run without an estimate take of each device at least."""
    count, strategy = exact_count(point.job.model), point.strategy
    if count is None or strategy.tp * strategy.pp > 1:
        return None
    spread = spread_of(
        world_size(strategy),
        strategy.zero,
        replicas=strategy.dp_replicate,
        offload=strategy.offload,
    )
    return least_on_device(least_bytes(point.job, count), spread).total


def _walk(cluster: Cluster, start: Point, chains: list[list[Move]]) -> Iterator[LedgerRow]:
    known = Known(predict(start, cluster), start, (), "")
    point = start
    while chains:
        options = _options(cluster, point, chains)
        chosen = _pick(known.made, options)
        point = chosen.point
        known = known._replace(since=(*known.since, *chosen.moves), why=known.why or chosen.why)
        del chains[chosen.chain][: len(chosen.moves)]
        chains = [chain for chain in chains if chain]
        if isinstance(chosen.made, str):
            continue
        yield _row(known, chosen, _rivals(known.made, chosen, options))
        known = Known(chosen.made, point, (), "")
    assert not known.since, "the plan itself has an estimate"


def _chains(start: Point, end: Point) -> list[list[Move]]:
    """List what differs; the moves of one chain come in its order."""
    chains = [
        [_move(end, "precision", "job", ("precision", "loss_scale"))],
        list(_method(end)),
        [_move(end, "optimizer", "job", ("optimizer",))],
        [_move(end, "attention", "planner", ("attention",))],
        [_move(end, "checkpointing", "planner", ("activation_checkpointing",))],
        [_move(end, "loss chunks", "planner", ("loss_chunks",))],
        [_move(end, "fused kernels", "planner", ("fused_kernels",))],
        [_move(end, "reference", "planner", ("reference",))],
        [_move(end, "offload", "planner", ("offload",))],
        list(_many_devices(end.strategy)),
    ]
    made = [[m for m in chain if apply(start, m) != start] for chain in chains]
    return [chain for chain in made if chain]


def _move(end: Point, switch: str, owner: Owner, fields: tuple[str, ...]) -> Move:
    value = end.job if owner == "job" else end.strategy
    changes = {field: getattr(value, field) for field in fields}
    return Move(switch, owner, changes if owner == "job" else {}, {} if owner == "job" else changes)


def _method(end: Point) -> Iterator[Move]:
    """Freeze the base first, in 16 bits; then round it to fewer, where it is."""
    adapter = end.job.adapter
    if adapter is not None and adapter.base in QUANTIZED:
        plain = LORA_BASES.get(end.job.precision, "same")
        wide = {"method": "lora", "adapter": msgspec.structs.replace(adapter, base=plain)}
        yield Move("method", "job", wide, {})
        yield _move(end, "base", "job", ("method", "adapter"))
        return
    yield _move(end, "method", "job", ("method", "adapter"))


_OF_ROWS = ("pp_schedule", "stages_per_device", "stage_blocks", "accumulate")
"""What a pipeline does not run without, or only so."""


def _many_devices(end: Strategy) -> Iterator[Move]:
    """Cut the model first, where it is; then shard one state after another."""
    whole = {"tp": end.tp, "pp": end.pp, "dp_replicate": end.dp_replicate * end.dp_shard}
    if end.pp > 1:
        whole |= {field: getattr(end, field) for field in _OF_ROWS}
    yield Move("model parallel", "planner", {}, whole)
    cut = {**whole, "dp_replicate": end.dp_replicate, "dp_shard": end.dp_shard}
    if not end.zero and end.dp_shard > 1:
        yield Move("data parallel", "planner", {}, cut)
    for stage in range(1, end.zero + 1):
        yield Move(f"zero={stage}", "planner", {}, {**cut, "zero": stage})
    if end.ep > 1:
        yield Move(f"ep={end.ep}", "planner", {}, {"ep": end.ep})
    if end.accumulate != "reduce-each" and end.pp == 1:
        yield Move("accumulation", "planner", {}, {"accumulate": end.accumulate})


def apply(point: Point, move: Move) -> Point:
    """Return the run after a move."""
    return Point(
        msgspec.structs.replace(point.job, **move.job),
        msgspec.structs.replace(point.strategy, **move.strategy),
    )


def _options(cluster: Cluster, point: Point, chains: list[list[Move]]) -> list[Option]:
    """Estimate what could come next: of the job's switches the first, of the planner's all.

    Where the job's alone has no estimate, what of the planner's it has one behind comes before it.
    """
    jobs = [index for index, chain in enumerate(chains) if chain[0].owner == "job"]
    if not jobs:
        return [_option(cluster, point, index, chain) for index, chain in enumerate(chains)]
    first = _option(cluster, point, jobs[0], chains[jobs[0]])
    if isinstance(first.made, Estimate) and not first.why:
        return [first]
    others = (index for index in range(len(chains)) if index not in jobs)
    options = (_option(cluster, point, index, chains[index]) for index in others)
    opening = [
        option
        for option in options
        if isinstance(option.made, Estimate)
        and not _option(cluster, option.point, jobs[0], chains[jobs[0]]).why
    ]
    return opening or [first]


def _option(cluster: Cluster, point: Point, index: int, chain: list[Move]) -> Option:
    """Go along a chain until a run has an estimate; where none has, one move only."""
    why = ""
    there = point
    for num, move in enumerate(chain, start=1):
        there = apply(there, move)
        made = predict(there, cluster)
        if isinstance(made, Estimate):
            return Option(index, tuple(chain[:num]), there, made, why)
        why = why or made
    return Option(index, (chain[0],), apply(point, chain[0]), why, why)


def _pick(known: Estimate | str, options: list[Option]) -> Option:
    """Choose the next move; one without an estimate only where no other is left."""
    estimated = [option for option in options if isinstance(option.made, Estimate)]
    if not estimated or isinstance(known, str):
        return (estimated or options)[0]
    return max(estimated, key=lambda option: _worth(known, option.made))


def _worth(before: Estimate, after: Estimate | str) -> tuple[int, float]:
    """Rank a move: free ones first, by bytes; then by bytes per second added."""
    assert isinstance(after, Estimate)
    saved = before.predicted_peak_allocated_bytes - after.predicted_peak_allocated_bytes
    added = _added_s(before, after)
    if added is None or added <= 0:
        return (2 if saved >= 0 else 1), float(saved)
    return (1 if saved > 0 else 0), saved / added


def _added_s(before: Estimate, after: Estimate) -> float | None:
    if before.predicted_step_s is None or after.predicted_step_s is None:
        return None
    return after.predicted_step_s - before.predicted_step_s


def _rivals(known: Estimate | str, chosen: Option, options: list[Option]) -> tuple[Rival, ...]:
    if isinstance(known, str):
        return ()
    peak = known.predicted_peak_allocated_bytes
    return tuple(
        Rival(
            switch=_names(option.moves),
            saved_bytes=peak - option.made.predicted_peak_allocated_bytes,
            added_s=_added_s(known, option.made),
        )
        for option in options
        if option is not chosen and isinstance(option.made, Estimate)
    )


def _row(known: Known, chosen: Option, rivals: tuple[Rival, ...]) -> LedgerRow:
    after, moves = chosen.made, known.since
    before = None if isinstance(known.made, str) else known.made
    assert isinstance(after, Estimate)
    old, new = _values(known.point, chosen.point, moves)
    return LedgerRow(
        switch=_names(moves),
        before=old,
        after=new,
        owner=_owner(moves),
        peak_before_bytes=before.predicted_peak_allocated_bytes if before else None,
        peak_after_bytes=after.predicted_peak_allocated_bytes,
        step_before_s=before.predicted_step_s if before else None,
        step_after_s=after.predicted_step_s,
        usable_bytes=after.usable_bytes,
        reason="; ".join(_reasons(known, before, after)),
        rivals=rivals,
        least_before_bytes=None if before else _least(known.point),
    )


def _names(moves: tuple[Move, ...]) -> str:
    return " + ".join(move.switch for move in moves)


def _owner(moves: tuple[Move, ...]) -> Owner:
    owners = {move.owner for move in moves}
    return owners.pop() if len(owners) == 1 else "both"


def _reasons(known: Known, before: Estimate | None, after: Estimate) -> Iterator[str]:
    if before is None:
        yield f"unknown before: {known.made}"
    elif found := reason(before, after):
        yield found
    if known.why:
        why = "" if known.why == known.made else f": {known.why}"
        yield f"together, because {known.since[0].switch} alone is unknown{why}"


def _values(start: Point, end: Point, moves: tuple[Move, ...]) -> tuple[str, str]:
    """Spell what moves change, before and after; of adapters their base and rank."""
    old, new = ({**_fields(point.job), **_fields(point.strategy)} for point in (start, end))
    touched = dict.fromkeys(field for move in moves for field in (*move.job, *move.strategy))
    fields = [f for f in touched if old[f] != new[f] and f != "loss_scale"]
    before, after = (", ".join(filter(None, (_spell(f, v[f]) for f in fields))) for v in (old, new))
    return before, after


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(value)


def _spell(field: str, value: Any) -> str:
    if field == "adapter":
        return f"r={value.rank} base={value.base}" if value is not None else ""
    named = field in {"zero", "dp_replicate", "dp_shard", "tp", "pp", "stages_per_device"}
    return f"{field}={value}" if named else str(value)


def reason(before: Estimate, after: Estimate) -> str:
    """Say which items of the peak and which parts of the time changed most."""
    least = LEAST_CHANGE * before.predicted_peak_allocated_bytes
    changed = [(name, delta) for name, delta in item_changes(before, after) if abs(delta) >= least]
    words = [f"{name} {_signed_bytes(delta)}" for name, delta in changed[:MAX_CHANGES]]
    old, new = highest_phase(before).where, highest_phase(after).where
    if old != new:
        words.append(f"the peak moves from {old} to {new}")
    return "; ".join([*words, *_time_words(before, after)])


def item_changes(before: Estimate, after: Estimate) -> list[tuple[str, int]]:
    """List by how much each item of the peak grows, largest change first."""
    old = {item.name: item.num_bytes for item in before.items}
    new = {item.name: item.num_bytes for item in after.items}
    deltas = [(name, new.get(name, 0) - old.get(name, 0)) for name in {**old, **new}]
    return sorted(deltas, key=lambda pair: -abs(pair[1]))


def highest_phase(made: Estimate) -> PhasePeak:
    """Return the phase that the peak lies in; of equal ones the last."""
    return max(reversed(made.phases), key=lambda phase: phase.num_bytes)


def _signed_bytes(delta: int) -> str:
    return f"{'+' if delta > 0 else ''}{format_bytes(delta)}"


def _time_words(before: Estimate, after: Estimate) -> list[str]:
    old, new = before.predicted_step_time, after.predicted_step_time
    if old is None or new is None:
        return []
    deltas = {words: getattr(new, part) - getattr(old, part) for part, words in _TIME_PARTS.items()}
    name, largest = max(deltas.items(), key=lambda pair: abs(pair[1]))
    if abs(largest) < LEAST_CHANGE * old.total_s:
        return []
    return [f"{name} {'+' if largest > 0 else '-'}{format_seconds(abs(largest))}"]
