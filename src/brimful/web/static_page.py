"""One model as a page without a server: every answer that it can show is computed beforehand.

What is asked by the page's four choices is a cell of one table, in the file itself; the script
only looks cells up. So it holds what it was made with and nothing else, and says so.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from importlib import resources
from string import Template
from typing import Any, NamedTuple

import msgspec

from brimful import __version__
from brimful.cli import resolved
from brimful.cli.assumed import prices_from
from brimful.cli.main import parse
from brimful.cost.estimate import estimate
from brimful.cost.money import cost_of
from brimful.cost.reserved import predicted_reserved
from brimful.errors import BrimfulError
from brimful.hardware.gpus import gpus
from brimful.hardware.names import split_counts
from brimful.show import markup
from brimful.show.markup import Html
from brimful.show.predicted import meter_of, short_gpu, verdict_of
from brimful.text.escaping import json_text, one_line
from brimful.text.terminal import forget_notes
from brimful.values.results import ITEM_NAMES
from brimful.web.accuracy import accuracy_tables
from brimful.web.models import find_model
from brimful.web.page import asset
from brimful.web.state import GPUS, MODEL, WHAT, WHATS, State, arguments, read_state
from brimful.web.words import Words, words_of

GPU_CHOICES = (
    "rtx-3090", "rtx-4090", "rtx-5090", "l40s", "a100-80gb", "h100-80gb", "2xrtx-4090",
    "8xh100-80gb",
)  # fmt: skip
WHAT_CHOICES = ("qlora", "lora", "full")
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
BATCHES = (1, 2, 4, 8)
CHECKPOINTING = ("none", "full")
AXES = {
    GPUS: GPU_CHOICES,
    WHAT: WHAT_CHOICES,
    "seq_len": tuple(map(str, LENGTHS)),
    "micro_batch": tuple(map(str, BATCHES)),
    "activation_checkpointing": CHECKPOINTING,
}
"""What can be chosen: a cell's number counts through it as an odometer does, the last fastest."""
_BILLION = 1e9
_KIB = 1024
_LANGUAGES = ("en", "zh")


class Cell(NamedTuple):
    """One answer.

    Attributes:
        verdict: As ``brimful estimate`` says it.
        need_kib: What it needs of one GPU.
        usable_kib: What that has.
        how: Which figure the first is.
        step_s: Of one step; None: unknown.
        tokens_per_s: Of all devices; None: unknown.
        usd: For a billion tokens; None: unknown.
        items_kib: What is in memory at the peak, in the order of ``ITEM_NAMES``.
    """

    verdict: str
    need_kib: int
    usable_kib: int
    how: str
    step_s: float | None
    tokens_per_s: float | None
    usd: float | None
    items_kib: tuple[int, ...]


def states(model: str) -> Iterator[State]:
    """Yield every question of the page, in the order of its cells."""
    for values in itertools.product(*AXES.values()):
        yield read_state({MODEL: model, **dict(zip(AXES, values, strict=True))})


def cell_of(state: State) -> Cell | str:
    """Answer one question as ``brimful estimate`` does; of what is refused, why."""
    forget_notes()
    try:
        args = parse("estimate", arguments(state, find_model(state).argument))
        asked = resolved.asked(args)
        made = estimate(*asked)
        made = msgspec.structs.replace(made, predicted_reserved=predicted_reserved(*asked))
    except BrimfulError as error:
        return one_line(str(error))
    meter = meter_of(made)
    cost = cost_of(asked.job, asked.cluster, made.predicted_step_s, prices_from(args))
    totals = dict.fromkeys(ITEM_NAMES, 0)
    for item in made.items:
        totals[item.name] = totals.get(item.name, 0) + item.num_bytes
    return Cell(
        verdict=verdict_of(made),
        need_kib=round(meter.used_bytes / _KIB),
        usable_kib=round(meter.usable_bytes / _KIB),
        how=meter.how,
        step_s=_short(made.predicted_step_s),
        tokens_per_s=_short(made.tokens_per_s),
        usd=_short(cost.usd * _BILLION / cost.num_tokens if cost.usd and cost.num_tokens else None),
        items_kib=tuple(round(totals[name] / _KIB) for name in ITEM_NAMES),
    )


def _short(value: float | None) -> float | None:
    """Keep four digits, which is what the page shows."""
    return None if value is None else float(f"{value:.4g}")


def static_page(model: str, cells: Sequence[Cell | str] | None = None) -> str:
    """Set the page of one model.

    ``cells``: of ``states``, in their order; None: they are computed, which takes minutes. Returns
    HTML that needs no other file, no server and no network. Raises BrimfulError: the model is not
    known here.
    """
    found = find_model(read_state({MODEL: model}))
    every = [cell_of(state) for state in states(found.argument)] if cells is None else cells
    return _page(found.argument, every)


def _page(model: str, cells: Sequence[Cell | str]) -> str:
    hows = sorted({cell.how for cell in cells if isinstance(cell, Cell)})
    why = sorted({cell for cell in cells if isinstance(cell, str)})
    told = {
        "model": model,
        "axes": AXES,
        "gpus": {name: _described(name) for name in GPU_CHOICES},
        "flags": {what: list(WHATS[what]) for what in WHAT_CHOICES},
        "items": [[name, markup.style_class("item", name)] for name in ITEM_NAMES],
        "hows": hows,
        "why": why,
        "cells": [_packed(cell, hows, why) for cell in cells],
        "words": {language: _strings(words_of(language)) for language in _LANGUAGES},
    }
    return Template(_own("static.html")).substitute(
        title=markup.text(f"{model}: {words_of('en')['static.title']}"),
        style="\n".join(asset(name).decode("utf-8") for name in ("report.css", "web.css")),
        cells=json_text(told, also="<>&"),
        script=_own("static.js"),
        accuracy=markup.join(map(_accuracy, _LANGUAGES)),
        version=markup.text(__version__),
    )


def _own(name: str) -> str:
    return resources.files("brimful.web").joinpath("assets", name).read_text("utf-8")


def _accuracy(language: str) -> Html:
    tables = accuracy_tables(words_of(language))
    return Html(f'<div lang="{language}" data-lang="{language}">{tables}</div>')


def _described(name: str) -> str:
    counts = split_counts(name)
    device = short_gpu(gpus()[counts.gpu].description)
    num = counts.num_nodes * counts.per_node
    return f"{num} x {device}"


def _packed(cell: Cell | str, hows: list[str], why: list[str]) -> list[Any] | int:
    """Write a cell as numbers; what is refused is the place of its reason."""
    if isinstance(cell, str):
        return why.index(cell)
    return [*cell._replace(how=hows.index(cell.how))[:-1], *cell.items_kib]  # type: ignore[arg-type]


def _strings(words: Words) -> dict[str, str]:
    """Take what the page says."""
    return {key: words[key] for key in _SAID} | {
        f"what.{what}": words[f"what.{what}"] for what in WHAT_CHOICES
    }


_SAID = (
    "language", "form.what", "form.gpus", "form.seq_len", "form.micro_batch", "form.model",
    "field.activation_checkpointing", "figure.peak", "figure.speed", "figure.step", "figure.money",
    "kind.predicted", "peak.title", "sweeps.title", "market.title", "take.command", "js.copied",
    "axis.seq_len", "axis.micro_batch", "sweep.yes", "sweep.no", "take.link", "accuracy.title",
    "market.column.0", "market.column.1", "compare.memory", "market.column.4", "market.column.6",
    "market.caption", "static.title", "static.lead", "static.others", "static.item",
    "static.share", "static.would", "static.nothing", "static.sweeps", "static.gpus",
    "static.none", "static.full", "static.short", "static.of", "static.trust", "static.limit",
    "tagline",
)  # fmt: skip


def held_cells(page: str) -> list[Cell | str]:
    """Read back the answers that a page holds."""
    start = page.index(">", page.index('id="cells"')) + 1
    told = json.loads(page[start : page.index("</script>", start)])
    return [_unpacked(held, told) for held in told["cells"]]


def _unpacked(held: Any, told: dict[str, Any]) -> Cell | str:
    if isinstance(held, int):
        return str(told["why"][held])
    verdict, need_kib, usable_kib, how, step_s, tokens_per_s, usd, *items_kib = held
    return Cell(
        verdict, need_kib, usable_kib, told["hows"][how], step_s, tokens_per_s, usd,
        tuple(items_kib),
    )  # fmt: skip
