"""Precision recipes side by side as a plain SVG: held-out loss with its spread, memory, time."""

from collections.abc import Callable, Sequence

from brimful.compare.record import Comparison, RecipeRow
from brimful.report.comparison import quality_words
from brimful.show.marks import BAD, BAR, INK, MARK, line, picture, words
from brimful.units import format_bytes, format_seconds

_WIDTH, _ROW, _TOP, _BOTTOM, _NAME = 930, 40, 58, 26, 112
"""Pixels: of the picture, of a recipe, and of the margins."""
_LOSS = (_NAME, 380)
_PEAK, _TIME = (590, 690), (790, 860)
"""Where the three panels begin and end, figures beside them not counted."""
_FAR = 1.25
"""A loss of more than the lowest times this is drawn at the edge, and its figure told."""
_LEAST_SPAN = 0.02
"""Of the lowest loss: what is less apart than that shall look so."""
_ROOM = 0.08
"""Of the range of losses, left free at both ends."""


def comparison_svg(made: Comparison) -> str:
    """Draw the mean and the range of the held-out loss of each recipe, beside its costs.

    ``made``: with at least one recipe.
    """
    rows, bottom = made.rows, _TOP + _ROW * len(made.rows)
    parts = [words(8, 20, f"{made.job.model.name}: {made.job.num_steps} steps, {_seeds(made)}")]
    for (left, _), title in (
        (_LOSS, "held-out loss: mean, lowest to highest"),
        (_PEAK, "measured peak"),
        (_TIME, "step"),
    ):
        parts.append(words(left, _TOP - 16, title, size=11))
        parts.append(line(left, _TOP - 8, left, bottom, INK))
    parts += _losses(rows, bottom)
    for place, row in enumerate(rows):
        parts.append(words(8, _middle(place) + 4, row.recipe))
    parts += _bars(rows, _PEAK, lambda row: row.measured_peak_allocated_bytes, format_bytes)
    parts += _bars(rows, _TIME, lambda row: row.measured_step_s, format_seconds)
    return picture(_WIDTH, bottom + _BOTTOM, parts)


def _seeds(made: Comparison) -> str:
    return "1 seed" if len(made.seeds) == 1 else f"{len(made.seeds)} seeds each"


def _middle(place: int) -> float:
    return _TOP + _ROW * (place + 0.5)


def _losses(rows: Sequence[RecipeRow], bottom: float) -> list[str]:
    """Draw the panel of the losses; what is far worse than the best would flatten the others."""
    ends = [end for row in rows if row.heldout_loss for end in _ends(row)]
    lowest = min(ends, default=0.0)
    low, high = lowest, max((end for end in ends if end <= _FAR * lowest), default=1.0)
    high = max(high, low * (1 + _LEAST_SPAN))
    room = _ROOM * ((high - low) or 1.0)

    def x(loss: float) -> float:
        left, right = _LOSS
        return left + (right - left) * min((loss - low + room) / (high - low + 2 * room), 1.0)

    parts = [words(x(end), bottom + 16, f"{end:.4g}", size=10) for end in sorted({low, high})]
    for place, row in enumerate(rows):
        parts += _loss(row, _middle(place), x, is_far=_is_far(row, high))
    return parts


def _ends(row: RecipeRow) -> tuple[float, float]:
    assert row.heldout_loss is not None  # asked by the caller
    return row.heldout_loss.low, row.heldout_loss.high


def _is_far(row: RecipeRow, high: float) -> bool:
    return row.heldout_loss is not None and row.heldout_loss.mean > high


def _loss(row: RecipeRow, y: float, x: Callable[[float], float], *, is_far: bool) -> list[str]:
    told, is_bad = quality_words(row), row.is_in_doubt
    ink = BAD if is_bad else BAR if row.why_not is None else MARK
    if row.heldout_loss is None:
        return [words(_LOSS[0] + 8, y + 4, told, size=11, ink=ink)]
    gap = f" ({row.to_reference.mean:+.0%})" if is_bad and row.to_reference else ""
    label = words(_LOSS[1] + 8, y + 4, f"{told}{gap}", size=10, ink=ink)
    if is_far:
        tip = f"{_LOSS[1]:g},{y:g} {_LOSS[1] - 10:g},{y - 6:g} {_LOSS[1] - 10:g},{y + 6:g}"
        return [f'<polygon points="{tip}" fill="{ink}"/>', label]
    low, high = _ends(row)
    dot = f'<circle cx="{x(row.heldout_loss.mean):.1f}" cy="{y:.1f}" r="4" fill="{ink}"/>'
    return [line(x(low), y, x(high), y, ink), dot, label]


def _bars(
    rows: Sequence[RecipeRow],
    panel: tuple[int, int],
    figure: Callable[[RecipeRow], float | None],
    told: Callable[[float], str],
) -> list[str]:
    """Draw one bar per recipe that has a figure."""
    figures = [figure(row) for row in rows]
    most, (left, right), parts = max((x for x in figures if x), default=1.0), panel, []
    for place, value in enumerate(figures):
        if value is None:
            continue
        width, y = (right - left) * value / most, _middle(place)
        parts.append(
            f'<rect x="{left}" y="{y - 7:.1f}" width="{width:.1f}" height="14" fill="{BAR}"/>'
        )
        parts.append(words(left + width + 5, y + 4, told(value), size=10))
    return parts
