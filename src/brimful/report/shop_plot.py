"""Cost against time as plain SVG, both on scales of powers of ten.

A shape and a colour tell each generation of GPUs apart, and points of the frontier are named, so
that nothing hangs on colour alone. Ink follows the page: light, dark or print.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from brimful.hardware.datasheets import datasheets
from brimful.report.shop import Shopped
from brimful.search.shop.values import DAY_S, Option
from brimful.show.markup import text
from brimful.units import format_days, format_money

WIDTH, HEIGHT = 760.0, 470.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 20.0, 16.0, 92.0
MARKS: tuple[tuple[str, str], ...] = (
    ("Blackwell", "#0072B2"), ("Hopper", "#D55E00"), ("Ada", "#009E73"), ("Ampere", "#CC79A7"),
    ("Turing", "#56B4E9"), ("Volta", "#E69F00"), ("Pascal", "#8a8a8a"), ("CDNA", "#a50026"),
    ("RDNA", "#7a4fb5"), ("others", "#8a8a8a"),
)  # fmt: skip
"""Okabe and Ito's colours, which people who see colours otherwise tell apart, and a shape each."""
_STYLE = """
.shop { --ink: #1d2430; --soft: #5d6675; --grid: #e3e6ea; --paper: #ffffff; --line: #1d2430;
  --limit: #c0392b; }
@media screen and (prefers-color-scheme: dark) {
  .shop { --ink: #e8ebf0; --soft: #a3acba; --grid: #2d3440; --paper: #14181f; --line: #e8ebf0;
    --limit: #ff8a7a; }
}
.shop text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.shop .soft { fill: var(--soft); }
.shop .grid { stroke: var(--grid); }
.shop .limit { stroke: var(--limit); stroke-dasharray: 5 4; }
.shop .frontier { fill: none; stroke: var(--line); stroke-width: 1.5; }
.shop .halo { paint-order: stroke; stroke: var(--paper); stroke-width: 4px; }
"""


class Axis(NamedTuple):
    """A scale of powers of ten.

    Attributes:
        low: Its least value.
        high: Its greatest.
        start: Where the least is drawn.
        end: Where the greatest is.
    """

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """Return where a value is drawn."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)


def axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Make a scale that holds all values, with some room on both sides."""
    low, high = min(values), max(values)
    room = max((high / low) ** 0.06, 1.25)
    return Axis(low / room, high * room, start, end)


def shop_plot(shopped: Shopped) -> str:
    """Draw a market: days across, dollars up, the frontier as a line.

    ``shopped``: what there is; without a priced option only says so.
    """
    options = [each for each in shopped.found.options if each.predicted_usd]
    if not options:
        return _picture('<text x="20" y="40">nothing that fits has a price</text>', "nothing")
    limits = shopped.limits
    days = [each.predicted_days for each in options]
    usd = [each.predicted_usd or 0.0 for each in options]
    if limits.deadline_s is not None:
        days.append(limits.deadline_s / DAY_S)
    if limits.budget_usd is not None:
        usd.append(limits.budget_usd)
    x = axis(days, _LEFT, WIDTH - _RIGHT)
    y = axis(usd, HEIGHT - _BOTTOM, _TOP)
    parts = [*_grid(x, y), *_limits(shopped, x, y), _line(shopped, x, y)]
    parts += [_point(each, x, y) for each in options]
    parts += [*_labels(shopped, x, y), *_legend(options)]
    told = f"Cost against time of {len(options)} options; {len(shopped.found.frontier)} on the line"
    return _picture("\n".join(parts), told)


def _picture(body: str, told: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="shop" role="img" '
        f'aria-label="{text(told)}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
        f'style="width:100%;height:auto;max-width:{WIDTH:g}px">\n<style>{_STYLE}</style>\n'
        f'<rect width="100%" height="100%" style="fill:var(--paper)"/>\n{body}\n</svg>\n'
    )


def _words(x: float, y: float, told: str, *, anchor: str = "start", style: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">{text(told)}</text>'
    )


_DURATIONS = (
    *((n / 1440, f"{n} min") for n in (1, 3, 10, 30)), *((n / 24, f"{n} h") for n in (1, 3, 8)),
    *((n, f"{n} d") for n in (1, 3, 10, 30, 100)), *((365 * n, f"{n} y") for n in (1, 3, 10, 30)),
)  # fmt: skip


def _grid(x: Axis, y: Axis) -> list[str]:
    parts = []
    bottom = HEIGHT - _BOTTOM
    for value, name in _DURATIONS:
        if x.low <= value <= x.high:
            at = x.place(value)
            parts.append(f'<path class="grid" d="M{at:.1f} {_TOP}V{bottom}"/>')
            parts.append(_words(at, bottom + 18, name, anchor="middle", style="soft"))
    # Round amounts: 1, 2 and 5 times powers of ten, fewer where they would crowd.
    powers = range(math.floor(math.log10(y.low)), math.ceil(math.log10(y.high)) + 1)
    ratio = y.high / y.low
    steps = next(each for least, each in _STEPS if ratio > least)
    for value in [s * 10.0**p for p in powers for s in steps if y.low <= s * 10.0**p <= y.high]:
        at = y.place(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(_words(_LEFT - 8, at + 4, f"{value:,g}", anchor="end", style="soft"))
    parts.append(_words(_LEFT, bottom + 36, "time of the whole run", style="soft"))
    parts.append(_words(6, _TOP + 8, "USD", style="soft"))
    return parts


_STEPS = ((300.0, (1, 3)), (30.0, (1, 2, 5)), (1.0, (1, 1.5, 2, 3, 5, 7)))
"""From which ratio of the greatest to the least amount on, what is marked in a power of ten."""


def _limits(shopped: Shopped, x: Axis, y: Axis) -> list[str]:
    parts, limits = [], shopped.limits
    if limits.deadline_s is not None:
        at = x.place(limits.deadline_s / DAY_S)
        parts.append(f'<path class="limit" d="M{at:.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>')
        told = f"deadline {format_days(limits.deadline_s / DAY_S)}"
        parts.append(_words(at - 5, HEIGHT - _BOTTOM - 8, told, anchor="end", style="halo"))
    if limits.budget_usd is not None:
        at = y.place(limits.budget_usd)
        parts.append(f'<path class="limit" d="M{_LEFT} {at:.1f}H{WIDTH - _RIGHT}"/>')
        told = f"budget {format_money(limits.budget_usd)}"
        parts.append(_words(WIDTH - _RIGHT - 4, at - 6, told, anchor="end", style="halo"))
    return parts


def _at(option: Option, x: Axis, y: Axis) -> tuple[float, float]:
    return x.place(option.predicted_days), y.place(option.predicted_usd or 1.0)


def _line(shopped: Shopped, x: Axis, y: Axis) -> str:
    points = " ".join("{:.1f},{:.1f}".format(*_at(o, x, y)) for o in shopped.found.frontier)
    return f'<polyline class="frontier" points="{points}"/>'


def _generation(option: Option) -> int:
    name = datasheets()[option.kind].architecture
    return next((i for i, (each, _) in enumerate(MARKS) if each in name), len(MARKS) - 1)


def mark(place: int, x: float, y: float, inside: str = "") -> str:
    """Draw a generation's shape: circle, square, triangles, diamond, bars, plus, corner, ring."""
    r, colour = 5.0, MARKS[place][1]
    paths = (
        f"M{x - r} {y}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0",
        f"M{x - r} {y - r}h{2 * r}v{2 * r}h{-2 * r}z",
        f"M{x} {y - r - 1}l{r + 1} {2 * r}h{-2 * r - 2}z",
        f"M{x} {y - r - 1}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z",
        f"M{x} {y + r + 1}l{r + 1} {-2 * r}h{-2 * r - 2}z",
        f"M{x - 2} {y - r - 1}h4v{2 * r + 2}h-4z",
        f"M{x - r - 1} {y - 2}h{2 * r + 2}v4h{-2 * r - 2}z",
        f"M{x - 2} {y - r - 1}h4v{r - 1}h{r - 1}v4h{1 - r}v{r - 1}h-4v{1 - r}h{1 - r}v-4h{r - 1}z",
        f"M{x - r} {y + r}h{2 * r}v-4h{4 - 2 * r}v{4 - 2 * r}h-4z",
        f"M{x - r} {y}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0m3 0a2 2 0 1 1 4 0a2 2 0 1 1 -4 0z",
    )
    return f'<path d="{paths[place]}" fill="{colour}">{inside}</path>'


def _point(option: Option, x: Axis, y: Axis) -> str:
    cost = format_money(option.predicted_usd or 0.0)
    told = f"{option.gpus}: {format_days(option.predicted_days)}, {cost}"
    return mark(_generation(option), *_at(option, x, y), inside=f"<title>{text(told)}</title>")


class _Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: "_Box") -> bool:
        beside = self.right < other.left or other.right < self.left
        return not (beside or self.bottom < other.top or other.bottom < self.top)


def _labels(shopped: Shopped, x: Axis, y: Axis) -> list[str]:
    """Name the options of the frontier, each where no other label or mark is."""
    points = [_at(each, x, y) for each in shopped.found.options if each.predicted_usd]
    taken = [_Box(px - 5, py - 5, px + 5, py + 5) for px, py in points]
    parts = []
    for option in shopped.found.frontier:
        px, py = _at(option, x, y)
        wide = 6.6 * len(option.gpus)
        for dx, dy in ((9, -8), (9, 16), (-9 - wide, 16), (-9 - wide, -8), (9, -22), (9, 30)):
            box = _Box(px + dx, py + dy - 11, px + dx + wide, py + dy + 3)
            inside = box.left > _LEFT and box.right < WIDTH and box.top > 0
            if inside and not any(box.meets(other) for other in taken):
                taken.append(box)
                parts.append(_words(px + dx, py + dy, option.gpus, style="halo"))
                break
    return parts


def _legend(options: Sequence[Option]) -> list[str]:
    parts, at = [], _LEFT
    used = {_generation(option) for option in options}
    for place, (name, _) in enumerate(MARKS):
        if place in used:
            parts += [mark(place, at + 6, HEIGHT - 26), _words(at + 18, HEIGHT - 22, name)]
            at += 36 + 7 * len(name)
    parts.append(f'<path class="frontier" d="M{at:.1f} {HEIGHT - 26}h24"/>')
    parts.append(_words(at + 30, HEIGHT - 22, "frontier: nothing is both faster and cheaper"))
    return parts
