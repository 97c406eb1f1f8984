"""A sweep as a small plot: points that are links, the limit as a line, and the same in words.

What fits is a disc and what does not a cross, so that nothing depends on colour. Colours are the
style sheet's, dark and light.
"""

import math
from collections.abc import Callable

from brimful.show import markup
from brimful.show.marks import line, words
from brimful.show.markup import Html
from brimful.units import GIB, format_bytes
from brimful.web.state import State, query_of
from brimful.web.sweeps import Point, Sweep
from brimful.web.words import Words

WIDTH, HEIGHT = 320.0, 190.0
_LEFT, _RIGHT, _TOP, _FLOOR = 46.0, 14.0, 16.0, 154.0
_HEADROOM = 1.08
_FAR = 3.0
"""Where peaks are beyond this many limits, the axis ends there, and points stand at its end."""
_NUM_TICKS = 4
_DISC, _CROSS = 4.5, 4.0
_NARROW = 26.0
"""Pixels that a label below the axis takes."""
SOFT = "currentColor"


def sweep_figure(found: Sweep, state: State, text: Words) -> Html:
    """Set a sweep with its caption.

    ``state``: what was asked, from which each point differs in one setting.
    """
    title = text[f"axis.{found.axis}"]
    known = [point for point in found.points if point.peak_bytes is not None]
    caption = _caption(found, text)
    heading = f"<h3>{markup.text(title)}</h3>"
    if not known:
        return Html(f"<figure>{heading}<p>{markup.text(caption)}</p></figure>")
    drawn = markup.join(_drawn(known, state, text))
    label = markup.text(f"{title}: {caption}")
    return Html(
        f'<figure class="sweep">{heading}<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="group" '
        f'aria-label="{label}">{drawn}</svg>'
        f"<figcaption>{markup.text(caption)}</figcaption></figure>"
    )


def _caption(found: Sweep, text: Words) -> str:
    """Say where it breaks, or that it does not; and what was refused, once."""
    known = [point for point in found.points if point.peak_bytes is not None]
    refused = next((point for point in found.points if point.peak_bytes is None), None)
    why = text["sweep.refused"].format(value=refused.value, why=refused.refused) if refused else ""
    if not known:
        return why
    breaks = found.breaks_at
    if breaks is None:
        said = text["sweep.fits"]
    elif len([point for point in known if _is_short(point)]) == len(known):
        said = text["sweep.none"]
    else:
        key = "sweep.needs" if found.falls else "sweep.breaks"
        said = text[key].format(value=f"{breaks:,}")
    return " ".join(filter(None, (said, why)))


def _is_short(point: Point) -> bool:
    return (point.peak_bytes or 0) > point.limit_bytes


def _drawn(points: list[Point], state: State, text: Words) -> list[Html]:
    """Draw axis, limit and points."""
    limit = points[0].limit_bytes
    most = max(limit, *(min(point.peak_bytes or 0, _FAR * limit) for point in points)) * _HEADROOM

    def up(num_bytes: float) -> float:
        return _FLOOR - (_FLOOR - _TOP) * min(num_bytes, most) / most

    across = _places(points)
    parts = [*_axis(most, up), *_below(points, across)]
    mark = line(_LEFT, up(limit), WIDTH - _RIGHT, up(limit), SOFT, dashed=True)
    parts.append(f'<g class="limit-line">{mark}</g>')
    spots = [(across[place], up(point.peak_bytes or 0)) for place, point in enumerate(points)]
    trail = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    parts.append(f'<polyline class="trail" points="{trail}" fill="none"/>')
    parts += [_spot(point, spot, state, text) for point, spot in zip(points, spots, strict=True)]
    return list(map(Html, parts))


def _places(points: list[Point]) -> list[float]:
    """Spread points by their logarithms, or evenly where they begin at 0."""
    values = [point.value for point in points]
    room = WIDTH - _LEFT - _RIGHT - 16
    if len(values) == 1:
        return [_LEFT + 8 + room / 2]
    scaled = [math.log2(value) for value in values] if min(values) > 0 else list(map(float, values))
    low, high = scaled[0], scaled[-1]
    return [_LEFT + 8 + room * (value - low) / ((high - low) or 1) for value in scaled]


def _axis(most: float, up: Callable[[float], float]) -> list[str]:
    """Draw round values of memory."""
    step = GIB / 1024
    while most / step > _NUM_TICKS:
        step *= 2
    marks = [step * place for place in range(int(most // step) + 1)]
    return [
        f'<g class="grid">{line(_LEFT, up(tick), WIDTH - _RIGHT, up(tick), SOFT)}</g>'
        f'<g class="tick">{words(2, up(tick) + 4, _short(tick), size=11, ink=SOFT)}</g>'
        for tick in marks
    ]


def _short(num_bytes: float) -> str:
    return "0" if not num_bytes else f"{num_bytes / GIB:g} GiB"


def _below(points: list[Point], across: list[float]) -> list[str]:
    """Name values below the axis where they have room, what was asked first."""
    order = sorted(range(len(points)), key=lambda place: not points[place].is_here)
    taken: list[float] = []
    parts = []
    for place in order:
        x = across[place]
        if any(abs(x - other) < _NARROW for other in taken):
            continue
        taken.append(x)
        style = "tick here" if points[place].is_here else "tick"
        label = words(x, _FLOOR + 16, _thousands(points[place].value), size=11, ink=SOFT)
        parts.append(f'<g class="{style}" text-anchor="middle">{label}</g>')
    return parts


def _thousands(value: int) -> str:
    return f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else f"{value}"  # noqa: PLR2004


def _spot(point: Point, spot: tuple[float, float], state: State, text: Words) -> str:
    """Draw a point as the link that takes it."""
    x, y = spot
    fits = not _is_short(point)
    said = text["sweep.point"].format(
        value=f"{point.value:,}",
        peak=format_bytes(point.peak_bytes or 0),
        limit=format_bytes(point.limit_bytes),
        fits=text["sweep.yes"] if fits else text["sweep.no"],
    )
    if fits:
        mark = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_DISC}"/>'
    else:
        mark = line(x - _CROSS, y - _CROSS, x + _CROSS, y + _CROSS, SOFT)
        mark += line(x - _CROSS, y + _CROSS, x + _CROSS, y - _CROSS, SOFT)
    ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="9"/>' if point.is_here else ""
    href = markup.text(f"/?{query_of(state.changed(**point.changes), lang=text.language)}")
    style = f"{'fits' if fits else 'short'}-point"
    return (
        f'<a class="{style}" href="{href}" data-take="1" aria-label="{markup.text(said)}">'
        f"<title>{markup.text(said)}</title>"
        f'<rect class="touch" x="{x - 14:.1f}" y="{y - 14:.1f}" width="28" height="28"/>'
        f"{ring}{mark}</a>"
    )
