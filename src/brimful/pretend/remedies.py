"""What a program would take whose named fault is mended: a replay of its requests without it.

Of a graph that nobody goes back through it is not seen how long each of its tensors would be there
under ``torch.no_grad()``: until its forward pass ends at most, and at least not at all.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.allocator.config import AllocatorSettings
from brimful.allocator.held import held_within
from brimful.pretend.idle_gradients import Trained
from brimful.pretend.recording import NEVER, Recording
from brimful.pretend.step_values import Without
from brimful.values.results import ITEM_NAMES, SAVED_ACTIVATIONS


class Mended(NamedTuple):
    """A program without its fault.

    Attributes:
        most: What it keeps in vain is let go where the forward pass ends that made it.
        least: It never makes that, nor what may be made in going back through it.
    """

    most: Recording
    least: Recording

    def told(self, settings: AllocatorSettings, capacity_bytes: int) -> Without:
        """Replay it."""
        (least, least_done), (most, most_done) = (
            held_within(each.requests(), settings=settings, capacity_bytes=capacity_bytes)
            for each in (self.least, self.most)
        )
        return Without(
            least_bytes=least.peak_reserved_bytes,
            most_bytes=most.peak_reserved_bytes,
            fits=None
            if most_done.short_bytes and not least_done.short_bytes
            else not most_done.short_bytes,
        )


def mended(
    recording: Recording, item: NDArray[np.int64], graphs: NDArray[np.int64], trained: Trained
) -> Mended | None:
    """Return a program without graphs and gradients in vain; None: it has none.

    ``graphs``: allocations of graphs that no backward pass goes through.
    """
    num = len(recording.num_bytes)
    gradients = [row for row in trained.idle_rows() if row < num]
    if not len(graphs) and not gradients:
        return None
    ends = np.append(recording.phase_starts[1:], len(recording.events))
    is_saved = item == ITEM_NAMES.index(SAVED_ACTIVATIONS)
    idle = np.isin(recording.phase, [*trained.idle_passes()])
    in_vain = idle & is_saved
    in_vain[[row for row in trained.returned() if row < num]] = False
    in_vain[graphs] = True
    rows = np.flatnonzero(in_vain)
    most = freed_sooner(recording, rows, ends[recording.phase[rows]])
    is_idle = np.zeros(num, dtype=bool)
    is_idle[gradients] = True
    never = in_vain | is_idle | _gone_back(recording, is_saved & idle)
    return Mended(most.without(is_idle), recording.without(never))


def _gone_back(recording: Recording, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether an allocation passes in a backward pass that goes through some of the rows.

    Which of these are made for them is not seen: what is gone through is freed later.
    """
    phases, num = recording.phases, len(recording.phases)
    ended = np.searchsorted(recording.phase_starts, recording.died, "right") - 1
    ended[recording.died == NEVER] = num
    through = np.isin(np.arange(num), ended[rows])
    through &= np.array([name.endswith("backward") for name in phases])
    return np.asarray(through[recording.phase] & (ended == recording.phase))


def freed_sooner(
    recording: Recording,
    rows: NDArray[np.int64],
    events: NDArray[np.int64],
    left_bytes: NDArray[np.int64] | None = None,
) -> Recording:
    """Return the recording of a program that lets go of some allocations sooner.

    ``events``: before which each of the ``rows`` is freed; one that is freed before that is not
    freed later. ``left_bytes``: what is made of each before that, and freed where the row was.
    """
    num = len(recording.events)
    died = np.where(recording.died == NEVER, num, recording.died)
    is_sooner = events < died[rows]
    left = np.zeros_like(rows) if left_bytes is None else left_bytes
    rows, events, left = rows[is_sooner], events[is_sooner], left[is_sooner]
    has_left = left > 0
    recording, instead = _with_rows(recording, rows[has_left], left[has_left])
    moved = np.zeros(len(recording.num_bytes), dtype=bool)
    moved[rows] = True
    row = np.where(recording.events >= 0, recording.events, ~recording.events)
    is_free = recording.events < 0
    stays = ~(is_free & moved[row] & (instead[row] < 0))
    old_events = np.where(is_free & (instead[row] >= 0), ~instead[row], recording.events)
    # Each free stands behind the event before its own: a half before the next. What is left of it
    # is made before that.
    made = instead[rows[has_left]]
    kept = np.flatnonzero(stays).astype(np.float64)
    places = np.concatenate((kept, events - 0.5, events[has_left] - 0.75))
    order = np.argsort(places, kind="stable")
    new_events = np.concatenate((old_events[stays], ~rows, made))[order]
    places = places[order]

    def place(old: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(places, old - 0.25)  # what is freed there comes before

    index = np.where(new_events >= 0, new_events, ~new_events)
    births = new_events >= 0
    born, new_died = np.zeros_like(recording.born), np.full_like(recording.died, NEVER)
    born[index[births]] = np.flatnonzero(births)
    new_died[index[~births]] = np.flatnonzero(~births)
    until = np.minimum(recording.in_use_until, num)
    is_beyond = recording.in_use_until > num
    return replace(
        recording,
        events=new_events,
        born=born,
        died=new_died,
        in_use_until=np.where(until > 0, place(until), 0) + is_beyond,
        phase_starts=place(recording.phase_starts),
        marks=place(recording.marks),
        cache_flushes=place(recording.cache_flushes),
        costs=tuple(
            cost._replace(event=int(place(np.array(cost.event)))) for cost in recording.costs
        ),
    )


def _with_rows(
    recording: Recording, rows: NDArray[np.int64], num_bytes: NDArray[np.int64]
) -> tuple[Recording, NDArray[np.int64]]:
    """Return a recording with one more allocation for each of some, no event of which is there yet.

    Returns with it which it is for each allocation; -1: none.
    """
    num = len(recording.num_bytes)
    columns: dict[str, Any] = {
        name: np.append(getattr(recording, name), getattr(recording, name)[rows])
        for name in ("born", "died", "stream", "owner", "op", "node", "line", "phase", "item",
                     "shape_dtype", "in_use_until")
    }  # fmt: skip
    columns["in_use_until"][num:] = 0
    columns["num_bytes"] = np.append(recording.num_bytes, num_bytes)
    instead = np.full(num + len(rows), -1, dtype=np.int64)
    instead[rows] = num + np.arange(len(rows))
    return replace(recording, **columns), instead
