"""From a recording to a ``PretendReport``: the peak, whose it is, and whether it fits a card.

Owns how a recording is summed up for people. Printing is ``brimful.report.pretend``'s business.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from brimful.allocator.bounds import most_beside
from brimful.allocator.config import EXPANDABLE, AllocatorSettings, parse_settings, spell_settings
from brimful.allocator.held import held_within
from brimful.allocator.replay import Replay, replay
from brimful.cost.assumptions import DATASHEET
from brimful.errors import InputError
from brimful.pretend.logits import NUM_CHUNKS, in_chunks, with_logits
from brimful.pretend.modules import by_owner, by_pattern, pattern_of
from brimful.pretend.reading import (
    classes_of,
    classify,
    items_at,
    live_of,
    phase_of_step,
    tensor_of,
    timeline_of,
)
from brimful.pretend.recording import KEPT_ON_HOST, PAGED, Recording
from brimful.pretend.report_values import (
    PRETEND_SCHEMA,
    Alike,
    AtCapacity,
    BesideTorch,
    Failure,
    Grows,
    Host,
    IdleGradients,
    ItemBytes,
    Kept,
    Logits,
    Outside,
    OwnerBytes,
    PoolBytes,
    PretendReport,
    Reserved,
    StateBytes,
    Tensor,
)
from brimful.pretend.scores import attention_of
from brimful.pretend.script_lines import ScriptLine, place_of
from brimful.process.versions import versions
from brimful.units import MIB
from brimful.values.plan import PhasePeak
from brimful.values.results import (
    GRADIENTS,
    ITEM_NAMES,
    LOGITS,
    OPTIMIZER_STATE,
    PARAMETERS,
    SAVED_ACTIVATIONS,
    Outcome,
)
from brimful.values.unknown_memory import peak_statement, unknown_ops_of

if TYPE_CHECKING:
    from brimful.pretend.device import Card

STATES = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE)
"""Classes of bytes that are as large with any batch."""
NUM_TENSORS = 50
"""Allocations listed; beyond these each is a small share."""


def read_report(  # noqa: PLR0913 - what was run, on what, and what is known of both
    recording: Recording,
    host: Recording,
    *,
    card: "Card",
    settings: AllocatorSettings,
    budget_bytes: int | None,
    assumptions: Iterable[str],
    unknown_ops: Mapping[str, int],
    bounded: Mapping[str, int] | None = None,
    beside_torch: BesideTorch = BesideTorch(),  # noqa: B008 - a frozen value
    idle_gradients: tuple[IdleGradients, ...] = (),
    places: Sequence[ScriptLine] = (),
) -> PretendReport:
    """Sum up what a program did to the memory of a GPU that does not exist.

    ``host``: what was recorded of the host's tensors; it may be empty. ``budget_bytes``: what the
    allocator may take at most; None: all that the card leaves it. ``unknown_ops``: how often each
    operation was called of whose kernel's memory nothing is known. ``bounded``: the most that a
    call may have taken of each of which only that is known. ``beside_torch``: kernels that are not
    PyTorch's own. ``places``: the script's line of each phase but the first; empty: not known.
    """
    if not len(recording.events):
        raise InputError("0 bytes were allocated on the pretend GPU; put the model on it")
    live = recording.live_bytes()
    peak_event = int(live.argmax())
    item = with_logits(recording, classify(recording))
    unknown = unknown_ops_of(unknown_ops)
    unlimited = replay(recording.requests(), settings=settings, capacity_bytes=None)
    at_capacity = _at_capacity(recording, unlimited, card.usable_bytes, settings, budget_bytes)
    at_capacity = _placed(at_capacity, recording, places)
    reserved, outside = _reserved(recording, unlimited, settings), _bounded(bounded or {})
    middle = sum(part.low_bytes + part.high_bytes for part in (*OUTSIDE, *outside)) // 2
    return PretendReport(
        statement=peak_statement(int(live[peak_event]), unknown),
        schema=PRETEND_SCHEMA,
        versions=versions(),
        card=card.name,
        allocator=spell_settings(settings),
        fits=at_capacity.failure is None,
        at_capacity=at_capacity,
        simulated_peak_allocated_bytes=int(live[peak_event]),
        simulated_peak_block_bytes=unlimited.peak_allocated_bytes,
        peak_event=peak_event,
        peak_phase=_phase_at(recording, peak_event),
        reserved=reserved,
        outside=(*OUTSIDE, *outside),
        simulated_process_bytes=reserved.simulated_peak_reserved_bytes + middle,
        items=items_at(recording, peak_event, item),
        states=_states(recording, item),
        phases=_phases(recording, live),
        owners=_owners(recording, item, recording.alive_at(peak_event)),
        alike=_alike(recording, item, recording.alive_at(peak_event)),
        tensors=_tensors(recording, item, recording.alive_at(peak_event)),
        logits=_logits(recording, item, peak_event, at_capacity, settings),
        kept=_kept(recording, item),
        grows=_grows(recording, item, at_capacity.capacity_bytes, reserved),
        idle_gradients=idle_gradients,
        attention=attention_of(recording, item),
        host=_host(host),
        timeline=timeline_of(recording),
        num_events=len(live),
        unknown_ops=unknown,
        beside_torch=beside_torch,
        assumptions=tuple(sorted(assumptions)),
    )


def _states(recording: Recording, item: NDArray[np.int64]) -> tuple[StateBytes, ...]:
    """List what is there whatever the batch is, where it is most: by class and type."""
    names = [name for name in ITEM_NAMES if name in STATES]
    rows = np.where(recording.events >= 0, recording.events, ~recording.events)
    is_state = np.isin(item, [ITEM_NAMES.index(name) for name in names])
    sizes = np.where(recording.events >= 0, 1, -1) * recording.num_bytes[rows] * is_state[rows]
    alive = recording.alive_at(int(np.cumsum(sizes).argmax()))
    totals: dict[tuple[str, str], int] = {}
    for row in alive[is_state[alive]].tolist():
        dtype = recording.shapes[recording.shape_dtype[row]][1]
        kind = ITEM_NAMES[item[row]], dtype
        totals[kind] = totals.get(kind, 0) + int(recording.num_bytes[row])
    return tuple(
        StateBytes(name=name, dtype=dtype, num_bytes=totals[name, dtype])
        for name, dtype in sorted(totals, key=lambda kind: (names.index(kind[0]), kind[1]))
    )


# -- the allocator --

OUTSIDE = (
    Outside(
        name="CUDA context and driver",
        low_bytes=DATASHEET.context_low_bytes,
        high_bytes=DATASHEET.context_high_bytes,
        source="assumed, from published runs (cost/assumptions.py)",
    ),
)
"""Device memory that never passes the allocator."""


def _bounded(bounded: Mapping[str, int]) -> tuple[Outside, ...]:
    """Lay beside a card's memory what kernels may take that is on no tape."""
    most = most_beside(bounded.values())
    if not most:
        return ()
    source = "at most, from PyTorch's source (data/workspaces)"
    return (Outside(name="FSDP2's lists of tensors", low_bytes=0, high_bytes=most, source=source),)


_OUTSIDE_BYTES = sum(part.low_bytes for part in OUTSIDE)


def capacity_of(card_bytes: int, budget_bytes: int | None) -> int:
    """Return what the allocator may take at most.

    ``budget_bytes``: what it is left to at most; None: all that the card leaves it.
    """
    left_bytes = card_bytes - _OUTSIDE_BYTES
    return left_bytes if budget_bytes is None else min(left_bytes, budget_bytes)


def _at_capacity(
    recording: Recording,
    unlimited: Replay,
    card_bytes: int,
    settings: AllocatorSettings,
    budget_bytes: int | None,
) -> AtCapacity:
    if budget_bytes is not None and budget_bytes <= 0:
        raise InputError(f"a memory budget of {budget_bytes} bytes leaves nothing; give more")
    capacity_bytes = capacity_of(card_bytes, budget_bytes)
    done = unlimited
    # An allocator that is never refused anything does the same with a limit as without.
    if unlimited.peak_reserved_bytes > capacity_bytes:
        done = replay(recording.requests(), settings=settings, capacity_bytes=capacity_bytes)
    return AtCapacity(
        card_bytes=card_bytes,
        outside_bytes=_OUTSIDE_BYTES,
        budget_bytes=budget_bytes,
        capacity_bytes=capacity_bytes,
        outcome=outcome_of(done),
        simulated_peak_reserved_bytes=done.peak_reserved_bytes,
        num_retries=done.num_retries,
        failure=_failure(recording, done),
    )


def _placed(at: AtCapacity, recording: Recording, places: Sequence[ScriptLine]) -> AtCapacity:
    """Return a replay that says where the script calls what fails."""
    if at.failure is None:
        return at
    phase = int(recording.phase[recording.events[at.failure.event]])
    if (place := place_of(phase, recording.phases, places)) is None:
        return at
    failure = msgspec.structs.replace(at.failure, called_at=place.line, called_in=place.function)
    return msgspec.structs.replace(at, failure=failure)


def _logits(
    recording: Recording,
    item: NDArray[np.int64],
    peak_event: int,
    at_capacity: AtCapacity,
    settings: AllocatorSettings,
) -> Logits | None:
    """Add up the logits at the peak, and replay what is left with a loss in parts."""
    alive = recording.alive_at(peak_event)
    rows = alive[item[alive] == ITEM_NAMES.index(LOGITS)]
    if not len(rows):
        return None
    less = replace(recording, num_bytes=in_chunks(recording, item)).requests()
    free, done = held_within(less, settings=settings, capacity_bytes=at_capacity.capacity_bytes)
    largest = rows[recording.num_bytes[rows].argmax()]
    shape, dtype = recording.shapes[recording.shape_dtype[largest]]
    return Logits(
        num_tensors=len(rows),
        num_bytes=int(recording.num_bytes[rows].sum()),
        shape=shape,
        dtype=dtype,
        num_chunks=NUM_CHUNKS,
        in_chunks_reserved_bytes=free.peak_reserved_bytes,
        in_chunks_fits=not done.short_bytes,
    )


def outcome_of(done: Replay) -> Outcome:
    """Return how a replay at a capacity ended."""
    if done.out_of_memory:
        return "out of memory"
    return "fits with retries" if done.num_retries else "fits"


def _failure(recording: Recording, done: Replay) -> Failure | None:
    failed = done.out_of_memory
    if failed is None:
        return None
    row = int(recording.events[failed.event])
    before = recording.alive_at(failed.event - 1)
    return Failure(
        event=failed.event,
        num_events=len(recording.events),
        short_bytes=failed.short_bytes,
        reserved_bytes=failed.reserved_bytes,
        allocated_bytes=int(recording.num_bytes[before].sum()),
        tensor=tensor_of(recording, classify(recording), row),
    )


def _reserved(recording: Recording, configured: Replay, settings: AllocatorSettings) -> Reserved:
    def peak_with(text: str) -> int:
        other = parse_settings(text)
        if other == settings:
            return configured.peak_reserved_bytes
        return replay(recording.requests(), settings=other, capacity_bytes=None).peak_reserved_bytes

    return Reserved(
        simulated_peak_reserved_bytes=configured.peak_reserved_bytes,
        simulated_peak_reserved_native_bytes=peak_with(""),
        simulated_peak_reserved_expandable_bytes=peak_with(EXPANDABLE),
        simulated_peak_inactive_split_bytes=configured.peak_inactive_split_bytes,
        pools=tuple(
            PoolBytes(stream=p.stream, is_small=p.is_small, num_bytes=p.reserved_bytes)
            for p in configured.reserved_at_peak
        ),
    )


# -- whose the bytes are --


def _tensors(
    recording: Recording, item: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[Tensor, ...]:
    largest = rows[np.argsort(-recording.num_bytes[rows], kind="stable")][:NUM_TENSORS]
    return tuple(tensor_of(recording, item, int(row)) for row in largest)


def _alike(
    recording: Recording, item: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[Alike, ...]:
    patterns = [pattern_of(owner) for owner in recording.owners]
    number = {pattern: i for i, pattern in enumerate(dict.fromkeys(patterns))}
    of_owner = np.array([number[pattern] for pattern in patterns], dtype=np.int64)
    columns = (recording.op, recording.line, recording.shape_dtype)
    keys = np.stack([of_owner[recording.owner[rows]], item[rows], *(c[rows] for c in columns)])
    _, first, which, counts = np.unique(
        keys, axis=1, return_index=True, return_inverse=True, return_counts=True
    )
    totals = np.bincount(which.ravel(), weights=recording.num_bytes[rows])
    largest = np.argsort(-totals, kind="stable")[:NUM_TENSORS]
    return tuple(
        Alike(
            module=patterns[recording.owner[rows[first[i]]]],
            num_tensors=int(counts[i]),
            num_bytes=int(totals[i]),
            one=tensor_of(recording, item, int(rows[first[i]])),
        )
        for i in largest.tolist()
    )


def _owners(
    recording: Recording, item: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[OwnerBytes, ...]:
    owners, names = [], classes_of(recording)
    for whole, its_rows in by_owner(recording, rows):
        totals = np.bincount(
            item[its_rows], weights=recording.num_bytes[its_rows], minlength=len(names)
        )
        items = tuple(
            ItemBytes(name=name, num_bytes=int(total))
            for name, total in zip(names, totals, strict=True)
            if total
        )
        owners.append(OwnerBytes(whole=whole, items=items, parts=by_pattern(recording, its_rows)))
    return tuple(owners)


def _kept(recording: Recording, item: NDArray[np.int64]) -> Kept | None:
    """Find the forward pass at whose end most is kept, and list who keeps it."""
    ends = np.append(recording.phase_starts[1:], len(recording.events)) - 1
    forward = [i for i, name in enumerate(recording.phases) if name.endswith("forward")]
    forward = [i for i in forward if ends[i] >= recording.phase_starts[i]]
    if not forward:
        return None
    is_kept = np.isin(item, [ITEM_NAMES.index(SAVED_ACTIVATIONS), ITEM_NAMES.index(LOGITS)])
    kept = live_of(recording, is_kept)
    most = max(forward, key=lambda i: int(kept[ends[i]]))
    rows = recording.alive_at(int(ends[most]))
    rows = rows[is_kept[rows]]
    return Kept(
        phase=recording.phases[most],
        num_bytes=int(recording.num_bytes[rows].sum()),
        modules=by_pattern(recording, rows),
    )


_FEWEST_STEPS = 6
"""That tell growth: the first and the last two may hold what others do not, three are between."""
_LEAST_GROWTH = MIB
"""Of a step, in bytes."""


def _grows(
    recording: Recording, item: NDArray[np.int64], capacity_bytes: int, reserved: Reserved
) -> Grows | None:
    """Find what every step but the first and the last two leaves behind for the last."""
    numbers = [int(name.split()[1]) if name.startswith("step ") else 0 for name in recording.phases]
    last = max(numbers, default=0)
    if last < _FEWEST_STEPS:
        return None
    start = int(recording.phase_starts[numbers.index(last)])
    rows = recording.alive_at(start)
    born = np.array(numbers)[recording.phase[rows]]
    left = np.bincount(born, weights=recording.num_bytes[rows], minlength=last + 1)[2 : last - 1]
    if left.min() < _LEAST_GROWTH:
        return None
    of_one = rows[born == last // 2]
    largest = int(of_one[recording.num_bytes[of_one].argmax()])
    num_bytes = int(left.min())
    num_more = (capacity_bytes - reserved.simulated_peak_reserved_bytes) // num_bytes + 1
    is_whole = recording.phases[-1].endswith("optimizer")  # else it is not at its peak yet
    return Grows(
        num_bytes=num_bytes,
        num_steps=len(left),
        largest=tensor_of(recording, item, largest),
        full_step=last - (not is_whole) + num_more,
        num_more=num_more,
    )


# -- when --


def _phase_at(recording: Recording, event: int) -> str:
    return recording.phases[int(np.searchsorted(recording.phase_starts, event, "right")) - 1]


def _phases(recording: Recording, live: NDArray[np.int64]) -> tuple[PhasePeak, ...]:
    """Return the peak of ``load``, ``step 1 forward``, ``step 2+ forward`` and so on."""
    ends = np.append(recording.phase_starts[1:], len(live))
    peaks: dict[str, PhasePeak] = {}
    for name, start, end in zip(recording.phases, recording.phase_starts, ends, strict=True):
        step = phase_of_step(name)
        kind = f"{step} {name.rpartition(' ')[2]}" if name.startswith("step ") else name
        top = int(live[start:end].max(initial=0))
        if kind not in peaks or top > peaks[kind].num_bytes:
            peaks[kind] = PhasePeak(phase=kind, num_bytes=top, where=name)
    return tuple(peaks.values())


def _host(host: Recording) -> Host:
    if not len(host.events):
        return Host(simulated_peak_bytes=0, tensors=())
    live = host.live_bytes()
    peak_event = int(live.argmax())
    is_paged = np.array([name == PAGED for name in host.items], dtype=bool)[host.item]
    return Host(
        simulated_peak_bytes=int(live[peak_event]),
        items=tuple(
            ItemBytes(name=item.name.removeprefix(KEPT_ON_HOST), num_bytes=item.num_bytes)
            for item in items_at(host, peak_event)
        ),
        tensors=_tensors(host, classify(host), host.alive_at(peak_event)),
        paged_bytes=int(host.without(~is_paged).live_bytes().max(initial=0)),
    )
