"""What rows of two losses and two gradient norms sum up to."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from evidence import ParityRow, Summary, relative, spread_of
from group_rows import ReshardRow

LOSS_BAR, NORM_BAR = 1e-5, 1e-4
Row = ParityRow | ReshardRow


class Bars(NamedTuple):
    """How far losses and gradient norms may be from those of the other run, relative to them."""

    loss: float = LOSS_BAR
    norm: float = NORM_BAR


def farthest(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest difference, relative to theirs."""
    return max(abs(relative(one, other)) for one, other in zip(ours, theirs, strict=True))


def parity_summary(
    rows: Sequence[Row],
    *words: str,
    describe: Callable[[Row], str],
    bars: Callable[[Row], Bars] = lambda _row: Bars(),
) -> Summary:
    """Sum up, and say which rows miss a bar.

    Args:
        rows: Each with a loss error and a norm error.
        words: What is asked.
        describe: Names a row.
        bars: What is asked of a row.
    """
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(
            spread_of("loss", [row.loss_error for row in rows]),
            spread_of("grad norm", [row.norm_error for row in rows]),
        ),
        bars=words,
        missed=tuple(
            f"loss {row.loss_error:.1e}, norm {row.norm_error:.1e}: {describe(row)}"
            for row in rows
            if not (row.loss_error <= bars(row).loss and row.norm_error <= bars(row).norm)
        ),
    )
