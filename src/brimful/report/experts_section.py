"""How a run loaded its experts: a picture of every expert, and the block that is worst."""

from collections.abc import Sequence

from brimful.report.run_folder import RunFolder
from brimful.show import markup
from brimful.show.marks import INK, picture, words
from brimful.show.markup import Html
from brimful.train.expert_load import BlockLoad, alarm_of, drop_share, loads_of, worst_load
from brimful.values.run_files import ExpertRow

LEFT, TOP, BOTTOM, WIDTH = 70, 26, 34, 760
"""Pixels: margins, and of the picture."""
_ROW = 16
_LIGHT, _DARK = (0.93, 0.95, 0.98), (0.07, 0.19, 0.42)
"""From no load to the heaviest: one hue, so that it reads without colour too."""
_STEPS = 12


def experts_section(folder: RunFolder) -> Html | None:
    """Draw the load of every expert over the run; None where nobody watched any."""
    rows = folder.expert_rows
    if not rows:
        return None
    whole = whole_run(rows)
    caption = _caption(rows, whole)
    svg = load_svg(whole)
    figure = (
        f'<figure><div role="img" aria-label="{markup.text(caption)}" style="overflow-x:auto">'
        f"{svg}</div><figcaption>{markup.text(caption)}</figcaption></figure>"
    )
    return Html(figure)


def whole_run(rows: Sequence[ExpertRow]) -> ExpertRow:
    """Add up the windows of a run."""
    last = rows[-1]
    load = tuple(
        tuple(map(sum, zip(*blocks, strict=True)))
        for blocks in zip(*(row.load for row in rows), strict=True)
    )
    dropped = tuple(map(sum, zip(*(row.dropped for row in rows), strict=True)))
    return ExpertRow(
        step=last.step,
        num_steps=sum(row.num_steps for row in rows),
        blocks=last.blocks,
        load=load,
        num_choices=last.num_choices,
        dropped=dropped,
    )


def load_svg(row: ExpertRow) -> str:
    """Draw a cell for each expert of each block, darker the more tokens chose it."""
    loads = {load.block: load for load in loads_of(row)}
    num_experts, bottom = len(row.load[0]), TOP + _ROW * len(row.blocks)
    width = (WIDTH - LEFT - 10) / num_experts
    top = max((load.imbalance for load in loads.values()), default=1.0)
    parts = [words(LEFT, 16, "Load of every expert, as a multiple of its block's mean")]
    for place, block in enumerate(row.blocks):
        y = TOP + _ROW * place
        parts.append(words(4, y + 12, f"block {block}", size=10))
        parts += _cells(row.load[place], y, width, top)
    parts.append(words(LEFT, bottom + 14, "expert 0", size=10))
    end = words(WIDTH - 10, bottom + 14, f"{num_experts - 1}", size=10)
    parts.append(end.replace("<text ", '<text text-anchor="end" '))
    parts += _key(bottom + 20, top)
    return picture(WIDTH, bottom + BOTTOM + 12, parts)


def _cells(load: Sequence[int], y: float, width: float, top: float) -> list[str]:
    mean = sum(load) / len(load) or 1
    return [
        f'<rect x="{LEFT + width * expert:.1f}" y="{y}" width="{max(width - 0.5, 0.5):.1f}" '
        f'height="{_ROW - 1}" fill="{_shade(count / mean / top)}"/>'
        for expert, count in enumerate(load)
    ]


def _key(y: float, top: float) -> list[str]:
    parts = [words(LEFT, y + 12, "0", size=10)]
    for step in range(_STEPS):
        shade = _shade(step / (_STEPS - 1))
        x = LEFT + 14 + 12 * step
        parts.append(f'<rect x="{x}" y="{y + 2}" width="12" height="11" fill="{shade}"/>')
    end = LEFT + 20 + 12 * _STEPS
    return [*parts, words(end, y + 12, f"{top:.2g} x the mean", size=10, ink=INK)]


def _shade(part: float) -> str:
    """Return the colour of a part from 0 to 1."""
    mixed = (light + (dark - light) * part for light, dark in zip(_LIGHT, _DARK, strict=True))
    return "#" + "".join(f"{round(255 * min(1.0, max(0.0, value))):02x}" for value in mixed)


def _caption(rows: Sequence[ExpertRow], whole: ExpertRow) -> str:
    worst = worst_load(whole)
    if worst is None:
        return "No token was counted."
    most = (
        f"Over {whole.num_steps} steps the busiest expert was {worst.busiest} of block "
        f"{worst.block}: {worst.share:.0%} of the tokens chose it, balanced {worst.fair_share:.0%}."
    )
    said = [most]
    if whole.dropped:
        said.append(f"{drop_share(whole):.1%} of the tokens found no place with their expert.")
    last = [load for load in loads_of(rows[-1]) if load.trouble]
    said += [_at_the_end(load, rows[-1]) for load in last[:3]]
    if len(last) > 3:  # noqa: PLR2004 - as many as were said
        said.append(f"So in {len(last) - 3} blocks more.")
    return " ".join(said)


def _at_the_end(load: BlockLoad, row: ExpertRow) -> str:
    text = alarm_of(load, row)
    return f"{text[0].upper()}{text[1:]}."
