"""Signed errors drawn: a line for each family, a dot for each run, none at the middle.

The axis is linear within its smallest mark and in powers of ten beyond, so that a run that is off
by half and one that is off by a thousandth are both seen.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scoreboard import Board, Said, Score, scores

from brimful.published.scoreboard import group_by
from brimful.show.markup import text

WIDTH = 760.0
_LEFT, _RIGHT, _TOP, _BOTTOM, _ROW = 236.0, 24.0, 14.0, 44.0, 26.0
_MARKS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_LEAST_ROOM = 46.0
"""Pixels between two marks that have words."""
_STYLE = """
.board { --ink: #1d2430; --soft: #5d6675; --grid: #e3e6ea; --paper: #ffffff; --dot: #0072B2;
  --mid: #D55E00; }
@media screen and (prefers-color-scheme: dark) {
  .board { --ink: #e8ebf0; --soft: #a3acba; --grid: #2d3440; --paper: #14181f; --dot: #56B4E9;
    --mid: #ff9d5c; }
}
.board text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.board .soft { fill: var(--soft); }
.board .grid { stroke: var(--grid); }
.board .none { stroke: var(--soft); }
.board circle { fill: var(--dot); fill-opacity: 0.45; }
.board .mid { stroke: var(--mid); stroke-width: 2.5; }
"""


class Scale(NamedTuple):
    """The horizontal axis.

    Attributes:
        linear: Up to this size of error it is linear.
        most: Its end, of either sign.
    """

    linear: float
    most: float

    def place(self, error: float) -> float:
        """Return where an error is drawn."""
        end = math.asinh(self.most / self.linear)
        share = math.asinh(error / self.linear) / end
        return _LEFT + (WIDTH - _RIGHT - _LEFT) * (1 + share) / 2


def scale_of(says: Sequence[Said]) -> Scale:
    """Choose an axis that holds all, and shows where most of them are."""
    sizes = sorted(abs(one.error) for one in says)
    most = next((mark for mark in _MARKS if mark >= sizes[-1]), sizes[-1])
    usual = sizes[len(sizes) // 2]
    linear = next((mark for mark in _MARKS if mark >= usual / 3), most / 10)
    return Scale(min(max(linear, 1e-6), most / 3), most * 1.1)


def board_svg(board: Board) -> str:
    """Draw a board.

    Args:
        board: With a comparison at least.
    """
    scale = scale_of(board.says)
    families = group_by(board.says, lambda one: one.family)
    rows = scores(board)
    bottom = _TOP + _ROW * len(rows)
    parts = [*_grid(scale, bottom)]
    for number, row in enumerate(rows):
        middle = _TOP + _ROW * (number + 0.5)
        parts += list(_family(row, families[row.family], scale, middle))
    told = f"{board.title}: signed errors of {len(board.says)} runs in {len(rows)} families"
    height = bottom + _BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="board" role="img" '
        f'aria-label="{text(told)}" viewBox="0 0 {WIDTH:g} {height:g}" '
        f'style="width:100%;height:auto;max-width:{WIDTH:g}px">\n<style>{_STYLE}</style>\n'
        f'<rect width="100%" height="100%" style="fill:var(--paper)"/>\n'
        f"{chr(10).join(parts)}\n</svg>\n"
    )


def _grid(scale: Scale, bottom: float) -> Iterator[str]:
    for error in marks(scale):
        x = scale.place(error)
        style = "none" if error == 0 else "grid"
        yield f'<path class="{style}" d="M{x:.1f} {_TOP}V{bottom:.1f}"/>'
        told = "0" if error == 0 else f"{100 * error:+g} %"
        yield _words(x, bottom + 16, told, anchor="middle", style="soft")
    middle = scale.place(0)
    yield _words(middle - 12, bottom + 34, "said less than it was", anchor="end", style="soft")
    yield _words(middle + 12, bottom + 34, "said more", style="soft")


def marks(scale: Scale) -> list[float]:
    """List the errors that the axis names: none, and both signs of round ones with room."""
    sizes: list[float] = []
    for size in reversed([mark for mark in _MARKS if mark <= scale.most]):
        room = abs(scale.place(size) - scale.place(sizes[-1] if sizes else 4 * scale.most))
        if room >= _LEAST_ROOM and scale.place(size) - scale.place(0) >= _LEAST_ROOM:
            sizes.append(size)
    return sorted([*(-size for size in sizes), 0.0, *sizes])


def _family(row: Score, says: Sequence[Said], scale: Scale, y: float) -> Iterator[str]:
    yield _words(_LEFT - 10, y + 4, f"{row.family} ({row.num_runs})", anchor="end")
    for one in says:
        told = text(f"{one.name}: {100 * one.error:+.3g} %")
        yield (
            f'<circle cx="{scale.place(one.error):.1f}" cy="{y:.1f}" r="4">'
            f"<title>{told}</title></circle>"
        )
    x = scale.place(row.bias)
    yield f'<path class="mid" d="M{x:.1f} {y - 9:.1f}V{y + 9:.1f}"/>'


def _words(x: float, y: float, told: str, *, anchor: str = "start", style: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">{text(told)}</text>'
    )
