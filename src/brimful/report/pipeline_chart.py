"""What each device of a pipeline does when: a chart of blocks, as text and as SVG."""

from collections.abc import Mapping, Sequence

from brimful.cost.pipeline_replay import Done, Replay, replay
from brimful.show.marks import INK, line, picture, words
from brimful.values.job import Job
from brimful.values.strategy import Strategy, num_micro_batches

WIDTH = 100
_NAME = 9
UNIT_S = (1.0, 2.0)
"""Forward and backward where nobody knows their seconds: a backward is two products for one."""
_LETTERS = {"forward": "F", "backward": "B", "input": "I", "weight": "W"}
_INKS = {"forward": "#3b6fb6", "backward": "#b08030", "input": "#c9a25e", "weight": "#e0cfa8"}
_IDLE = "."
_LEFT, _ROW, _TOP, _PLOT = 80, 26, 30, 860


def schedule_of(job: Job, strategy: Strategy) -> Replay:
    """Replay a strategy's order of work with equal stages, in units of a forward."""
    return replay(
        strategy.pp_schedule,
        num_micro_batches=num_micro_batches(job, strategy),
        stage_s=[UNIT_S] * strategy.pp,
        send_s=0.0,
        chunks=strategy.stages_per_device,
    )


def chart_text(ran: Replay) -> str:
    """Draw a replay in at most 100 columns: a row per device, a letter per moment."""
    columns = WIDTH - _NAME
    rows = [[_IDLE] * columns for _ in ran.busy_s]
    for done in ran.done:
        first, last = (round(t / ran.total_s * columns) for t in (done.start_s, done.end_s))
        letter = _LETTERS[done.operation.kind]
        mark = letter.lower() if done.operation.micro_batch % 2 else letter
        rows[done.device][first:last] = mark * (last - first)
    lines = [f"{f'device {i}':<{_NAME}}{''.join(row)}" for i, row in enumerate(rows)]
    return "\n".join([*lines, _legend(ran)])


def _legend(ran: Replay) -> str:
    kinds = {done.operation.kind for done in ran.done}
    told = (
        ", ".join(f"{letter} {kind}" for kind, letter in _LETTERS.items() if kind in kinds)
        .replace("input", "of inputs")
        .replace("weight", "of weights")
    )
    first, last = ran.in_flight[0], ran.in_flight[-1]
    return (
        f"{told}; capitals: even micro-batches\n"
        f"idle {ran.bubble_share:.1%} if a backward takes two forwards; the first keeps "
        f"{first:g} micro-batches, the last {last:g}"
    )


def chart_svg(charts: Mapping[str, Sequence[Done]], *, unit: str = " s") -> str:
    """Draw charts one below the other on one scale of seconds.

    ``charts``: what each device did and when, by a title; not empty. ``unit``: of their ends;
    empty: they are in forward passes and are not written.
    """
    longest = max(done.end_s for chart in charts.values() for done in chart)
    parts: list[str] = []
    top = 10.0
    for title, chart in charts.items():
        parts += _chart(title, chart, top, longest, unit)
        top += _TOP + _ROW * (1 + max(done.device for done in chart)) + 16
    return picture(_LEFT + _PLOT + 20, top + 24, [*parts, *_keys(charts, top)])


def _chart(title: str, chart: Sequence[Done], top: float, longest: float, unit: str) -> list[str]:
    scale = _PLOT / longest
    parts = [words(8, top + 14, title)]
    for device in sorted({done.device for done in chart}):
        y = top + _TOP + _ROW * device
        parts.append(words(8, y + 14, f"device {device}", size=11))
        parts.append(line(_LEFT, y + _ROW - 4, _LEFT + _PLOT, y + _ROW - 4, "#dddddd"))
    for done in chart:
        x, y = _LEFT + done.start_s * scale, top + _TOP + _ROW * done.device
        width = (done.end_s - done.start_s) * scale
        parts.append(_block(x, y, width, done))
    end = max(done.end_s for done in chart)
    if unit:
        parts.append(words(_LEFT + end * scale - 40, top + 14, f"{end:.2f}{unit}", size=11))
    return parts


def _block(x: float, y: float, width: float, done: Done) -> str:
    ink = _INKS[done.operation.kind]
    opacity = 1.0 if done.operation.chunk == 0 else 0.7
    drawn = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width - 0.8, 0.5):.1f}" height="{_ROW - 6}" '
        f'fill="{ink}" fill-opacity="{opacity}"/>'
    )
    light = done.operation.kind in {"forward", "backward"}
    number = words(
        x + 2, y + 14, str(done.operation.micro_batch), size=10, ink="#ffffff" if light else INK
    )
    return drawn + number if width > 12 else drawn  # noqa: PLR2004 - pixels that a number takes


def _keys(charts: Mapping[str, Sequence[Done]], top: float) -> list[str]:
    kinds = {done.operation.kind for chart in charts.values() for done in chart}
    shown = [kind for kind in _INKS if kind in kinds]
    return [part for place, kind in enumerate(shown) for part in _key(kind, place, top)]


def _key(kind: str, place: int, top: float) -> tuple[str, str]:
    x = _LEFT + 150 * place
    square = f'<rect x="{x}" y="{top}" width="14" height="14" fill="{_INKS[kind]}"/>'
    return square, words(x + 20, top + 12, kind, size=11)
