"""An answer as one picture: verdict, question, memory against the card, and memory over time.

Plain SVG, which takes neither a library nor a script and can be sent on by itself.
"""

import textwrap
from collections.abc import Callable, Iterator
from itertools import pairwise

from brimful.show.marks import BAD, BAR, INK, MARK, line, picture, words
from brimful.show.summary import Meter, Summary, Verdict
from brimful.units import GIB
from brimful.values.results import Timeline
from brimful.values.timeline import limit_in_view

WIDTH = 860.0
_LEFT, _RIGHT = 64.0, 20.0
_SUBJECT_CHARS = 88
_PLOT_HEIGHT = 210.0
_NUM_TICKS = 4
_HEADROOM = 1.04
"""The plot ends this much above the highest of what it shows."""
_COMMAND_CHARS = 136
_CHAR_WIDTH = 6.6
"""Of 12 px sans-serif, about: a phase is named where its name has room."""
_Scale = Callable[[float], float]
_GOOD, _FAINT, _SOFT, _FILL = "#1a6b3c", "#e3e5e9", "#565b64", "#dbe7f5"
_TONES: dict[Verdict, str] = {"FITS": _GOOD, "TIGHT": MARK, "NO": BAD, "UNKNOWN": _SOFT}


def card(summary: Summary, *, command: str, timeline: Timeline | None = None) -> str:
    """Draw an answer.

    ``timeline``: live bytes event by event, of the rung that answered; None: no plot.
    """
    parts, y = _head(summary)
    if summary.meter is not None:
        parts += _bar(summary.meter, y)
        y += 52
        if timeline is not None and timeline.event:
            parts += _plot(timeline, summary.meter.usable_bytes, y)
            y += _PLOT_HEIGHT + 44
    shown = textwrap.shorten(command, _COMMAND_CHARS, placeholder=" ...")
    parts.append(words(_LEFT, y + 6, f"$ {shown}", ink=_SOFT))
    return picture(WIDTH, y + 24, parts)


def _head(summary: Summary) -> tuple[list[str], float]:
    """Draw verdict and question, and return where they end."""
    told = summary.verdict or "ANSWER"
    ink = INK if summary.verdict is None else _TONES[summary.verdict]
    parts, y = [words(_LEFT, 36, told, size=24, ink=ink)], 36.0
    for text in textwrap.wrap(summary.subject, _SUBJECT_CHARS):
        y += 20
        parts.append(words(_LEFT, y, text, size=15))
    return parts, y + 14


def _bar(meter: Meter, y: float) -> list[str]:
    """Draw what is used of what there is; where it is too little, the bar ends beyond the mark."""
    width = WIDTH - _LEFT - _RIGHT
    most = max(meter.used_bytes, meter.usable_bytes, 1)
    used, usable = (width * part / most for part in (meter.used_bytes, meter.usable_bytes))
    over = meter.used_bytes > meter.usable_bytes
    parts = [
        _box(_LEFT, y, usable, 16, _FAINT),
        _box(_LEFT, y, min(used, usable), 16, BAR),
    ]
    if over:
        parts.append(_box(_LEFT + usable, y, used - usable, 16, BAD))
    parts.append(words(_LEFT, y + 34, meter.words, size=13))
    return parts


def _plot(timeline: Timeline, usable_bytes: int, y: float) -> list[str]:
    top, floor = y + 8, y + _PLOT_HEIGHT
    last = max(timeline.event[-1], 1)
    shows_limit = limit_in_view(usable_bytes, max(timeline.live_bytes))
    most = max(*timeline.live_bytes, usable_bytes if shows_limit else 0) * _HEADROOM

    def across(event: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * event / last

    def up(num_bytes: float) -> float:
        return floor - (floor - top) * num_bytes / most

    parts: list[str] = []
    # Round values up to the greatest, at most as many as there is room for.
    step = GIB / 1024
    while most / step > _NUM_TICKS:
        step *= 2
    for tick in [step * place for place in range(int(most // step) + 1)]:
        parts.append(line(_LEFT, up(tick), WIDTH - _RIGHT, up(tick), _FAINT))
        parts.append(words(8, up(tick) + 4, f"{tick / GIB:g} GiB", size=11, ink=_SOFT))
    parts.append(_area(timeline, across, up, floor))
    if shows_limit:
        parts.append(line(_LEFT, up(usable_bytes), WIDTH - _RIGHT, up(usable_bytes), BAD,
                          dashed=True))  # fmt: skip
        parts.append(words(_LEFT + 6, up(usable_bytes) - 5, "what the card has for it", ink=BAD))
    parts += _phases(timeline, across, floor)
    return parts


def _area(timeline: Timeline, across: _Scale, up: _Scale, floor: float) -> str:
    """Draw live bytes as steps: a value stays until the next event."""
    points = [f"{across(timeline.event[0]):.1f},{floor:.1f}"]
    for (event, num_bytes), (until, _) in pairwise(
        [*zip(timeline.event, timeline.live_bytes, strict=True), (timeline.event[-1], 0)]
    ):
        height = f"{up(num_bytes):.1f}"
        points += [f"{across(event):.1f},{height}", f"{across(until):.1f},{height}"]
    points.append(f"{across(timeline.event[-1]):.1f},{floor:.1f}")
    return f'<polygon points="{" ".join(points)}" fill="{_FILL}" stroke="{BAR}"/>'


def _phases(timeline: Timeline, across: _Scale, floor: float) -> Iterator[str]:
    """Name the phases below the plot, those that have room for their name."""
    ends = [*timeline.phase_starts[1:], timeline.event[-1]]
    for name, start, end in zip(timeline.phases, timeline.phase_starts, ends, strict=True):
        x, room = across(start), across(end) - across(start)
        if room < len(name) * _CHAR_WIDTH:
            continue
        yield line(x, floor, x, floor + 5, _SOFT)
        yield words(x + 2, floor + 16, name, size=11, ink=_SOFT)


def _box(x: float, y: float, width: float, height: float, ink: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{ink}"/>'
