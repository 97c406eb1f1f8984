"""How near figures come to measured ones, of a peer and of ours on the same rows."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from peer_rows import NEAR, EstimatorRow

from brimful.published.scoreboard import p90

Read = Callable[[EstimatorRow, str], float | None]


class Score(NamedTuple):
    """How near figures come to measured ones; errors are relative to measured.

    Attributes:
        num_rows: Rows with a figure.
        median: Of the absolute errors.
        bias: Median of the signed errors.
        p90: Of the absolute errors.
        worst: The signed error that is largest in size.
        near: Share of rows within ``NEAR``.
    """

    num_rows: int
    median: float
    bias: float
    p90: float
    worst: float
    near: float


def figure_of(row: EstimatorRow, peer: str) -> float | None:
    """Return a peer's bytes, or ours where ``peer`` is empty."""
    if not peer:
        return row.predicted_bytes
    return next((a.peer_bytes for a in row.answers if a.peer == peer), None)


def speed_of(row: EstimatorRow, peer: str) -> float | None:
    """Return a peer's tokens per second, or ours where ``peer`` is empty."""
    if not peer:
        return row.predicted_tokens_per_s
    return next((a.peer_tokens_per_s for a in row.answers if a.peer == peer), None)


def score(pairs: Iterable[tuple[float | None, float | None]]) -> Score | None:
    """Sum up pairs of a figure and a measured one; None where there is none.

    Args:
        pairs: Figures, and what was measured; rows without either are left out.
    """
    errors = [said / truth - 1 for said, truth in pairs if said is not None and truth]
    if not errors:
        return None
    sizes = sorted(map(abs, errors))
    return Score(
        num_rows=len(errors),
        median=statistics.median(sizes),
        bias=statistics.median(errors),
        p90=p90(sizes),
        worst=max(errors, key=abs),
        near=sum(size <= NEAR for size in sizes) / len(sizes),
    )


class Duel(NamedTuple):
    """A peer and ours on the same rows.

    Attributes:
        theirs: Score of the peer.
        ours: Score of ours.
        num_nearer: Rows on which ours is nearer to the truth.
        num_said_no: Rows of runs that ran, and that the peer says do not fit their GPU.
        num_ours_said_no: The same of ours.
        nearer: Rows on which the peer is nearer.
        our_worst: The row that ours is furthest from.
    """

    theirs: Score
    ours: Score
    num_nearer: int
    num_said_no: int
    num_ours_said_no: int
    nearer: tuple[EstimatorRow, ...]
    our_worst: EstimatorRow


def duel(rows: Sequence[EstimatorRow], peer: str) -> Duel | None:
    """Compare a peer with ours on the rows that both have a figure for; None: there are none.

    Args:
        rows: With a measured figure.
        peer: Which.
    """
    both = [r for r in rows if figure_of(r, peer) is not None and r.predicted_bytes is not None]
    theirs = score((figure_of(row, peer), row.measured_bytes) for row in both)
    ours = score((row.predicted_bytes, row.measured_bytes) for row in both)
    if theirs is None or ours is None:
        return None
    nearer = tuple(row for row in both if _size(row, peer) < _size(row, ""))
    return Duel(
        theirs=theirs,
        ours=ours,
        num_nearer=sum(_size(row, "") < _size(row, peer) for row in both),
        num_said_no=_said_no(both, peer),
        num_ours_said_no=_said_no(both, ""),
        nearer=nearer,
        our_worst=max(both, key=lambda row: _size(row, "")),
    )


def _size(row: EstimatorRow, peer: str) -> float:
    said, truth = figure_of(row, peer), row.measured_bytes
    assert said is not None
    assert truth
    return abs(said / truth - 1)


def _said_no(rows: Iterable[EstimatorRow], peer: str) -> int:
    return sum((figure_of(row, peer) or 0.0) > row.gpu_bytes for row in rows if row.gpu_bytes)
