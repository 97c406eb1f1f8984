"""What the precision doctor saw, as tables for the terminal and as JSON."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec

from brimful.doctor.examination import Examination
from brimful.doctor.findings import MEANINGS, Finding
from brimful.doctor.formats import NARROW, SIXTEEN_BITS
from brimful.doctor.records import Kind, Lost, Row, ScaleStep
from brimful.doctor.seen import Place
from brimful.doctor.spectrum import NOTHING, Spectrum, added
from brimful.report.tables import add_row, bullets, pairs_table, plain_table

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

NUM_SHOWN = 6
NUM_NAMED = 2
"""Places of a fault that are named beside the first."""
_MORE = "numbers of modules, exponents and updates: -v here, --out DIR with plots, --json"
NAME_WIDTH = 33
"""Columns for a name, beside what is said of it."""
"""Places of a kind that a terminal shows; JSON holds all."""
SHOWN: tuple[Kind, ...] = ("weight", "activation", "output-gradient", "gradient")
LEAST, MOST = -40, 20
"""Powers of two that a histogram shows; what lies beyond is in its end columns."""
_LEVELS = " ▁▂▃▄▅▆▇█"
UNKNOWN = "-"


def precision_tables(examined: Examination, *, is_whole: bool = True) -> "Group":
    """Lay out findings, advice, and then the numbers that both rest on.

    ``is_whole``: whether the tables of modules are there too.
    """
    from rich.console import Group
    from rich.text import Text

    blank = Text("")
    num = len(examined.findings)
    title = f"Findings ({num})" if num else "Findings"
    pairs = [(advice.topic, advice.text) for advice in examined.advice]
    parts: list[RenderableType] = [
        bullets(title, _by_fault(examined.findings)),
        blank,
        _numbers(examined),
        blank,
        pairs_table(pairs, title="Advice"),
        blank,
    ]
    parts += _of_modules(examined) if is_whole else [Text(_MORE), blank]
    return Group(*parts[:-1])


def _of_modules(examined: Examination) -> "list[RenderableType]":
    from rich.text import Text

    blank = Text("")
    parts: list[RenderableType] = []
    for kind in SHOWN:
        rows = _newest(examined, kind)
        if rows:
            parts += [_table(kind, rows, examined), blank]
    parts += [_histograms(examined), blank]
    lost = _lost(examined)
    if lost.row_count:
        parts += [lost, blank]
    return parts


def _by_fault(findings: Sequence[Finding]) -> list[str]:
    """Say each fault once: what it means, the first that has it, and where else it is."""
    told = []
    for fault in dict.fromkeys(finding.fault for finding in findings):
        first, *others = (each for each in findings if each.fault == fault)
        told.append(f"{fault}: {MEANINGS[fault]}; {first.text}")
        if others:
            named = ", ".join(each.name for each in others[:NUM_NAMED])
            rest = len(others) - NUM_NAMED
            told[-1] += f"; likewise {named}{f' and {rest} more' if rest > 0 else ''}"
    return told


def _numbers(examined: Examination) -> "Table":
    losses = [loss for loss in examined.losses if loss is not None]
    watched = examined.seen.ranks[0]
    steps = ", ".join(map(str, watched.steps))
    pairs = [
        ("steps", f"{len(examined.losses)}, of which {steps or 'none'} were watched"),
        ("loss", f"{losses[0]:.4f} to {losses[-1]:.4f}" if losses else "no number"),
    ]
    if len(examined.seen.ranks) > 1:
        pairs.append(("processes", f"{len(examined.seen.ranks)}; tables show the first one's"))
    if watched.scales:
        pairs.append(("loss scale", "; ".join(scale_runs(watched.scales))))
    return pairs_table(pairs, title=f"Precision of {PurePath(examined.job.model.name).name}")


def scale_runs(scales: Sequence[ScaleStep]) -> list[str]:
    """Say the history of a loss scale: steps of one scale together, and skipped ones in a row."""
    runs: list[list[ScaleStep]] = []
    for step in scales:
        last = runs[-1][-1] if runs else None
        if last is not None and _goes_on(last, step):
            runs[-1].append(step)
        else:
            runs.append([step])
    return [_run_words(run) for run in runs]


def _goes_on(last: ScaleStep, step: ScaleStep) -> bool:
    return last.skipped == step.skipped and (step.skipped or last.scale == step.scale)


def _run_words(run: Sequence[ScaleStep]) -> str:
    first, last = run[0], run[-1]
    where = f"step {first.step}" if first is last else f"steps {first.step} to {last.step}"
    scale = (
        f"{first.scale:g}" if first.scale == last.scale else f"{first.scale:g} to {last.scale:g}"
    )
    return f"{where} at {scale}{', skipped' if first.skipped else ''}"


def _newest(examined: Examination, kind: Kind) -> list[Row]:
    """List the first process's rows of the last watched step, those nearest to fp16's end first."""
    watched = examined.seen.ranks[0]
    rows = [row for row in watched.of_kind(kind) if row.step == watched.steps[-1]]
    return sorted(rows, key=lambda row: -row.largest)


def _table(kind: Kind, rows: Sequence[Row], examined: Examination) -> "Table":
    shown = rows[:NUM_SHOWN]
    of = f"{len(shown)} largest of {len(rows)}" if len(rows) > len(shown) else "all"
    scaled = f", times {rows[0].scale:g}" if rows[0].scale != 1 else ""
    table = plain_table(f"{kind}s, step {rows[0].step} ({of}{scaled})")
    table.add_column("name", ratio=1)
    columns = ("held", "largest", "growth", "to fp16's end", "zeros", "subnormal", "vanished")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    vanished = _vanished(examined)
    watched = examined.seen.ranks[0].of_kind(kind)
    first = {row.name: row for row in reversed(watched)}
    for row in shown:
        lost = vanished.get((row.name, row.kind))
        cells = _cells(row, began=first[row.name])
        vanished_share = UNKNOWN if lost is None else f"{lost:.1%}"
        add_row(table, (_short(row.name), *cells, vanished_share))
    return table


def _short(name: str) -> str:
    """Cut the beginning of a long name: what tells modules apart stands at its end."""
    return name if len(name) <= NAME_WIDTH else f"…{name[1 - NAME_WIDTH :]}"


def _cells(row: Row, *, began: Row) -> Iterator[str]:
    """Spell a row; growth is in doublings since its first watched step, without the loss scale."""
    yield row.format.name if row.format else row.held
    yield f"{row.largest:.3g}"
    now, then = row.largest / row.scale, began.largest / began.scale
    yield f"{math.log2(now / then):+.1f}" if now > 0 and then > 0 else UNKNOWN
    room = row.headroom("fp16")
    yield UNKNOWN if room is None else f"{room:.1f}"
    yield f"{row.zero_share:.1%}"
    yield f"{row.subnormal_share:.1%}"


def _vanished(examined: Examination) -> dict[Place, float]:
    return {} if examined.seen.compared is None else examined.seen.compared.vanished()


def _histograms(examined: Examination) -> "Group":
    from rich.console import Group
    from rich.text import Text

    lines = [Text(f"Exponents, a column per power of two from 2^{LEAST} to 2^{MOST}", style="bold")]
    for kind, spectrum in spectra(examined).items():
        lines.append(Text(f"  {kind:<16}|{_bars(spectrum)}|"))
    marks = {-25: "fp16's 0", -14: "fp16 normal", 0: "1", 15: "fp16's end"}
    line = " " * 19
    for exponent, words in marks.items():
        line = line.ljust(19 + exponent - LEAST) + f"^{words}"
    return Group(*lines, Text(line, style="dim"))


def spectra(examined: Examination) -> dict[Kind, Spectrum]:
    """Add up all rows of each kind, of all processes and watched steps."""
    found: dict[Kind, Spectrum] = {}
    for watched in examined.seen.ranks:
        for row in watched.of_kind(*SHOWN):
            found[row.kind] = added(found.get(row.kind, NOTHING), row.spectrum)
    return {kind: found[kind] for kind in SHOWN if kind in found}


def shares_by_exponent(spectrum: Spectrum) -> dict[int, float]:
    """Return which share of the numbers that are not 0 lies at each power of two."""
    total = max(spectrum.num_nonzero, 1)
    found: dict[int, float] = {}
    for exponent, count in spectrum.exponents().items():
        place = min(max(exponent, LEAST), MOST)
        found[place] = found.get(place, 0.0) + count / total
    return found


def _bars(spectrum: Spectrum) -> str:
    shares = shares_by_exponent(spectrum)
    top = max(shares.values(), default=1.0)
    heights = (shares.get(exponent, 0.0) / top for exponent in range(LEAST, MOST + 1))
    return "".join(_LEVELS[-int(-height * (len(_LEVELS) - 1) // 1)] for height in heights)


def _lost(examined: Examination) -> "Table":
    """Lay out the parameters of which most updates are lost, where any are."""
    totals: dict[str, list[Lost]] = {}
    for lost in examined.seen.ranks[0].lost:
        totals.setdefault(lost.name, []).append(lost)
    table = plain_table("updates (those of which most are lost)")
    table.add_column("name", ratio=1)
    for column in ("held in", "largest", "lost", "would be in bf16", "in fp16"):
        table.add_column(column, justify="right", no_wrap=True)
    ordered = sorted(totals.items(), key=lambda item: -_share(item[1]))
    for name, of in ordered[:NUM_SHOWN]:
        moved = max(sum(x.num_moved for x in of), 1)
        would = [f"{sum(x.num_lost_in[n] for x in of) / moved:.1%}" for n in SIXTEEN_BITS]
        largest = f"{max(x.largest for x in of):.2g}"
        add_row(table, (_short(name), of[0].held, largest, f"{_share(of):.1%}", *would))
    return table


def _share(of: Iterable[Lost]) -> float:
    listed = list(of)
    return sum(x.num_lost for x in listed) / max(sum(x.num for x in listed), 1)


def precision_json(examined: Examination) -> dict[str, Any]:
    """Return an examination as one JSON object, with what follows from the counts worked out."""
    seen = examined.seen
    told: dict[str, Any] = msgspec.to_builtins(examined)
    told["seen"]["ranks"] = [
        {**msgspec.to_builtins(watched), "rows": [_row_json(row) for row in watched.rows]}
        for watched in seen.ranks
    ]
    compared = None
    if seen.compared is not None:
        shares = seen.compared.vanished().items()
        rows = [{"name": name, "kind": kind, "share": share} for (name, kind), share in shares]
        compared = {"wide": seen.compared.wide, "vanished": rows}
    told["seen"]["compared"] = compared
    return told


def _row_json(row: Row) -> dict[str, Any]:
    spectrum = row.spectrum
    return {
        "step": row.step,
        "name": row.name,
        "kind": row.kind,
        "held": row.held,
        "scale": row.scale,
        "largest": row.largest,
        "num": spectrum.num,
        "num_zeros": spectrum.num_zeros,
        "num_inf": spectrum.num_inf,
        "num_nan": spectrum.num_nan,
        "subnormal_share": row.subnormal_share,
        "headroom_doublings": {name: row.headroom(name) for name in NARROW},
        "vanishing_share": {name: row.vanishing_share(name) for name in NARROW},
        "exponents": {str(exponent): n for exponent, n in spectrum.exponents().items()},
    }
