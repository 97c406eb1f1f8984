"""What rows of two losses and two gradient norms sum up to."""

from collections.abc import Callable, Sequence

from evidence import ParityRow, Summary, relative, spread_of
from group_rows import ReshardRow

LOSS_BAR, NORM_BAR = 1e-5, 1e-4
Row = ParityRow | ReshardRow


def farthest(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the largest difference, relative to theirs."""
    return max(abs(relative(one, other)) for one, other in zip(ours, theirs, strict=True))


def parity_summary(rows: Sequence[Row], bar: str, *, describe: Callable[[Row], str]) -> Summary:
    """Sum up, and say which rows miss a bar.

    Args:
        rows: Each with a loss error and a norm error.
        bar: What is asked, in words.
        describe: Names a row.
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
        bars=(bar,),
        missed=tuple(
            f"loss {row.loss_error:.1e}, norm {row.norm_error:.1e}: {describe(row)}"
            for row in rows
            if row.loss_error > LOSS_BAR or row.norm_error > NORM_BAR
        ),
    )
