"""Efficiency against the number of GPUs: curves by model, points that others published."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scale_rows import ExpertScaleRow, ScaleRow

from brimful.show.markup import text

WIDTH, HEIGHT = 760.0, 560.0
_PANEL_WIDTH, _PANEL_HEIGHT = 372.0, 240.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 12.0, 26.0, 36.0
MOST_GPUS, MOST_MFU = 2**14, 0.6
TONE, OTHERS = "#0072B2", "#D55E00"
_STYLE = """
.scale { --ink: #1d2430; --soft: #5d6675; --grid: #e3e6ea; --paper: #ffffff; }
@media screen and (prefers-color-scheme: dark) {
  .scale { --ink: #e8ebf0; --soft: #a3acba; --grid: #2d3440; --paper: #14181f; }
}
.scale text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.scale .soft { fill: var(--soft); }
.scale .grid { stroke: var(--grid); }
.scale .curve { fill: none; stroke-width: 2; }
.scale .name { font-weight: 600; }
.scale .letter { font-size: 11px; font-weight: 600; paint-order: stroke; stroke: var(--paper);
  stroke-width: 4px; }
"""


Row = ScaleRow | ExpertScaleRow


class Point(NamedTuple):
    """A run that somebody published.

    Attributes:
        name: Which.
        model: Whose curve it belongs to; it takes its colour.
        num_gpus: On how many.
        mfu: Model FLOPs utilisation, 0 to 1.
    """

    name: str
    model: str
    num_gpus: int
    mfu: float


class Area(NamedTuple):
    """Bounds from a number of GPUs on."""

    name: str
    least_gpus: int
    low: float
    high: float


class Panel(NamedTuple):
    """Where one model is drawn: the upper left corner."""

    left: float
    top: float

    def x(self, num_gpus: float) -> float:
        """Return where a number of GPUs is."""
        width = _PANEL_WIDTH - _RIGHT - _LEFT
        return self.left + _LEFT + width * math.log2(num_gpus) / math.log2(MOST_GPUS)

    def y(self, mfu: float) -> float:
        """Return where a utilisation is."""
        height = _PANEL_HEIGHT - _BOTTOM - _TOP
        return self.top + _TOP + height * (1 - mfu / MOST_MFU)


def scale_svg(
    rows: Sequence[Row], limits: Sequence[str], points: Sequence[Point], area: Area
) -> str:
    """Draw a panel for each model.

    Args:
        rows: Of all models; those that do not fit are left out.
        limits: A letter for each row: what limits it.
        points: What others published.
        area: Bounds of the mixture.
    """
    models = list(dict.fromkeys([*(row.model for row in rows), area.name]))
    parts: list[str] = []
    for number, model in enumerate(models):
        panel = Panel(number % 2 * WIDTH / 2, number // 2 * _PANEL_HEIGHT)
        parts += _grid(panel, model)
        if model == area.name:
            parts += _area(panel, area)
        own = [(r, key) for r, key in zip(rows, limits, strict=True) if r.model == model and r.fits]
        parts += _curve(panel, own)
        parts += [_published(panel, point) for point in points if point.model == model]
    told = "Model FLOPs utilisation on paper, 1 to 16,384 GPUs"
    parts += _legend()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="scale" role="img" '
        f'aria-label="{text(told)}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
        f'style="width:100%;height:auto;max-width:{WIDTH:g}px">\n<style>{_STYLE}</style>\n'
        f'<rect width="100%" height="100%" style="fill:var(--paper)"/>\n'
        f"{chr(10).join(parts)}\n</svg>\n"
    )


def _grid(panel: Panel, model: str) -> Iterator[str]:
    top, bottom = panel.y(MOST_MFU), panel.y(0)
    for power in range(0, 15, 2):
        x = panel.x(2**power)
        yield f'<path class="grid" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>'
        if power in {0, 4, 8, 14}:  # with room for words
            yield _words(x, bottom + 16, f"{2**power:,}", anchor="middle", style="soft")
    for percent in range(0, 70, 20):
        y = panel.y(percent / 100)
        yield f'<path class="grid" d="M{panel.x(1):.1f} {y:.1f}H{panel.x(MOST_GPUS):.1f}"/>'
        yield _words(panel.x(1) - 6, y + 4, f"{percent} %", anchor="end", style="soft")
    yield _words(panel.x(1), top - 9, model, style="name")


def _area(panel: Panel, area: Area) -> Iterator[str]:
    x, top, bottom = panel.x(area.least_gpus), panel.y(area.high), panel.y(area.low)
    width = panel.x(MOST_GPUS) - x
    yield (
        f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}" '
        f'fill="{TONE}" fill-opacity="0.16"/>'
    )
    yield _words(x, top - 6, "messages hidden", style="soft")
    yield _words(x, bottom + 14, "messages waited for", style="soft")


def _curve(panel: Panel, rows: Sequence[tuple[Row, str]]) -> Iterator[str]:
    places = [(panel.x(row.num_gpus), panel.y(mfu_of(row)), key) for row, key in rows]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    yield f'<polyline class="curve" stroke="{TONE}" points="{line}"/>'
    for x, y, key in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{TONE}"/>'
        yield _words(x, y + 16, key, anchor="middle", style="letter")


def mfu_of(row: Row) -> float:
    """Return the share of the rate that the model's own FLOPs use."""
    return row.ideal_s / row.cost.step_s


def _published(panel: Panel, point: Point) -> str:
    x, y = panel.x(point.num_gpus), panel.y(point.mfu)
    told = text(f"{point.name}: {point.mfu:.1%} on {point.num_gpus:,}, published")
    return (
        f'<path d="M{x - 5:.1f} {y:.1f}L{x:.1f} {y - 5:.1f}L{x + 5:.1f} {y:.1f}'
        f'L{x:.1f} {y + 5:.1f}Z" fill="none" stroke="{OTHERS}" stroke-width="1.6">'
        f"<title>{told}</title></path>"
    )


def _legend() -> Iterator[str]:
    y = 2 * _PANEL_HEIGHT + 18
    for number, told in enumerate((
        "across: GPUs; up: model FLOPs utilisation",
        "line: our fastest plan, predicted; area: bounds; diamonds: published, measured by others",
        "letters: what costs most beyond the kernels themselves, as the page says",
    )):  # fmt: skip
        yield _words(_LEFT, y + 20 * number, told, style="soft")


def _words(x: float, y: float, told: str, *, anchor: str = "start", style: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">{text(told)}</text>'
    )
