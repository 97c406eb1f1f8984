"""Writes how far to trust it, whole and in brief: ``python docs/generate_trust.py``.

The page is ``docs/trust.md``; both READMEs have a few lines of it. Every figure is read from
``validation/``; the words (``trust_words.json``) hold none, and a test keeps all of it so. Of each
kind all rows are counted, not those that came out well.
"""

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

HERE = Path(__file__).parent
ROOT = HERE.parent
VALIDATION = ROOT / "validation"
sys.path[:0] = [str(HERE), str(VALIDATION)]

from evidence import ParityRow  # noqa: E402
from page_parts import table  # noqa: E402
from parity_summary import Bars  # noqa: E402
from rounding import bars_of  # noqa: E402
from scoreboard import Document, measured  # noqa: E402

from brimful.files.writing import write_text  # noqa: E402
from brimful.published.rows import split_of  # noqa: E402
from brimful.published.scoreboard import p90  # noqa: E402
from brimful.text.escaping import json_text  # noqa: E402

BEGIN, END = "<!-- trust: begin -->\n", "<!-- trust: end -->\n"
_TINY = 1e-5
_SMALL = 1e-3
_NO_FIGURE = "-"
_TWINS = {"h100": "h200", "h200": "h100"}
"""Cards of one generation, whose kernels are the same."""


class Words(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The page without its figures; names in braces are filled in from the evidence.

    Attributes:
        first: What has to be known before anything else; lines.
        published_head: First column of the table of published runs.
        card_before: Before the table of our own runs on a GPU; lines.
        card_head: First column of that table.
        between: Before the table of our own runs on CPUs; lines.
        own_head: First column of the table of our own runs.
        figures: A column.
        missing: A column.
        median: A column.
        p90: A column.
        worst: A column.
        inside: Added to a kind whose prediction is a range.
        kinds: Names of the kinds.
        lines: What has no error: a bullet each, of one line or more.
        last: Where the rest is; lines.
    """

    first: tuple[str, ...]
    published_head: str
    card_before: tuple[str, ...]
    card_head: str
    between: tuple[str, ...]
    own_head: str
    figures: str
    missing: str
    median: str
    p90: str
    worst: str
    inside: str
    kinds: dict[str, str]
    lines: tuple[tuple[str, ...], ...]
    last: tuple[str, ...]


class Texts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that is written without its figures.

    Attributes:
        page: The page.
        brief: A line each, by the README that has them.
    """

    page: Words
    brief: dict[str, tuple[str, ...]]


TEXTS = msgspec.json.decode((HERE / "trust_words.json").read_bytes(), type=Texts)
PAGE = "docs/trust.md"
LEARNT = "decisions/0098-measured-on-a-gpu.md"
LEARNT_AGAIN = "decisions/0106-measured-on-a-gpu-again.md"
CARRIED = ROOT / "src" / "brimful" / "web" / "accuracy.json"
"""The same figures, beside the numbers of ``brimful web``."""


class Kind(NamedTuple):
    """One line of a table.

    Attributes:
        key: Its words.
        num_rows: Figures of this kind that there are.
        errors: Signed, of those with a counterpart.
        inside: How many of them lie within the range that was said, where one was.
        num_ranges: Ranges that were said.
    """

    key: str
    num_rows: int
    errors: tuple[float, ...]
    inside: int | None = None
    num_ranges: int = 0


def main() -> None:
    """Write what is generated of the page and of both READMEs."""
    for name, text in generated().items():
        path = ROOT / name
        before, _, rest = path.read_text("utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        write_text(path, before + BEGIN + text + END + after)
    write_text(CARRIED, carried())


def carried() -> str:
    """Return the tables as JSON, errors as the page prints them."""
    tables = {"card": card(), "published": published(), "own": own()}
    told = {name: [_told(kind) for kind in kinds] for name, kinds in tables.items()}
    return json_text(told, indent=1) + "\n"


def _told(kind: Kind) -> dict[str, Any]:
    name, *_, median, ninetieth, worst = _cells(kind, TEXTS.page, has_missing=False)
    errors = {"median": median, "p90": ninetieth, "worst": worst}
    return {
        "key": kind.key,
        "words": name.removeprefix("- "),
        "figures": len(kind.errors),
        **errors,
    }


def generated() -> dict[str, str]:
    """Return what stands between the marks of each file."""
    counts = figures()
    brief = {
        name: "".join(f"- {_filled([line], counts)}\n" for line in lines)
        for name, lines in TEXTS.brief.items()
    }
    return {PAGE: page(TEXTS.page, counts), **brief}


def page(words: Words, counts: dict[str, Any]) -> str:
    """Return the page.

    Args:
        words: No figure is in them.
        counts: The figures, by name.
    """
    parts = [
        _filled(words.first, counts),
        _table(words.card_head, card(), words, has_missing=True),
        _filled(words.card_before, counts),
        _table(words.published_head, published(), words, has_missing=True),
        _filled(words.between, counts),
        _table(words.own_head, own(), words, has_missing=False),
        "\n".join(f"- {_filled(lines, counts)}" for lines in words.lines),
        _filled(words.last, counts),
    ]
    return "\n\n".join(parts) + "\n"


def _filled(lines: Sequence[str], counts: dict[str, Any]) -> str:
    return "\n".join(lines).format(**counts)


def _table(head: str, kinds: Iterable[Kind], words: Words, *, has_missing: bool) -> str:
    columns = [head, words.figures, *([words.missing] if has_missing else []), words.median,
               words.p90, words.worst]  # fmt: skip
    return table(columns, [_cells(kind, words, has_missing=has_missing) for kind in kinds])


def _cells(kind: Kind, words: Words, *, has_missing: bool) -> list[str]:
    name = words.kinds[kind.key]
    if kind.inside is not None:
        name += words.inside.format(inside=kind.inside, ranges=kind.num_ranges)
    missing = [str(kind.num_rows - len(kind.errors))] if has_missing else []
    sizes = sorted(map(abs, kind.errors))
    if not sizes:
        return [name, str(kind.num_rows), *missing, *[_NO_FIGURE] * 3]
    shown = map(share, (statistics.median(sizes), p90(sizes), sizes[-1]))
    return [name, str(kind.num_rows), *missing, *shown]


def share(value: float) -> str:
    """Write a relative error as percent."""
    if value < _TINY:
        return f"{100 * value:.0e} %" if value else "0 %"
    return f"{100 * value:.1f} %" if value >= _SMALL else f"{100 * value:.3f} %"


def rows_of(name: str) -> list[Document]:
    """Return the rows of an evidence file; none where it is not made."""
    path = VALIDATION / f"{name}.json"
    rows: list[Document] = msgspec.json.decode(path.read_bytes())["rows"] if path.is_file() else []
    return rows


def published() -> list[Kind]:
    """Compare what others published with what is said, kind by kind, all rows."""
    rows, simulated = rows_of("published_predicted"), rows_of("published")
    timed = [
        _pointed(f"speed {split}", [row for row in rows if split_of(row["source"]) == split], speed)
        for split in ("fit", "validation", "test")
    ]
    peaks = tuple(row["peak_error"] for row in simulated if row["peak_error"] is not None)
    return [
        _pointed("allocated", rows, allocated),
        _pointed("allocated fitted", [row for row in rows if row.get("is_fitted")], allocated),
        _pointed("allocated unseen", [row for row in rows if not row.get("is_fitted")], allocated),
        _ranged("reserved", rows),
        _ranged("process", rows),
        _pointed("speed", rows, speed),
        *timed,
        Kind("simulated", len(simulated), peaks),
    ]


def card() -> list[Kind]:
    """Compare our own runs on a GPU with what is said, kind by kind, all that came to an end."""
    rows = [row for row in _card_files("rows", "nvidia-") if row["measured"]]
    names = {
        "card live": "simulated_to_requested",
        "card reserved": "simulated_to_reserved",
        "card predicted": "predicted_to_allocated",
    }
    timed = [row for row in rows if row["measured"]["measured_step_s"]]
    steps = {"card step": "predicted_to_step_s", "card datasheet": "datasheet_to_step_s"}
    programs = card_programs()
    return [
        *(kind for key, field in names.items() for kind in (
            _told_of(key, rows, field), _first_said(key, "case"),
        )),
        _told_of("card replayed", rows, "predicted_to_reserved"),
        *(_told_of(key, timed, field) for key, field in steps.items()),
        *(kind for name in ("live", "reserved") for kind in (
            Kind(f"card programs {name}", len(programs), tuple(
                here / there - 1 for here, there in (pair[name] for pair in programs) if here
            )),
            _first_said(f"card programs {name}", "program"),
        )),
    ]  # fmt: skip


def _first_said(key: str, kind: str) -> Kind:
    """Return how far off what had been said was, before anything was learnt from it."""
    rows = [row for row in _card_files("rows", "first-said-") if row["kind"] == kind]
    field = f"{key.rsplit(maxsplit=1)[-1]}_error"
    errors = (row[field] for row in rows)
    return Kind(f"{key} first", len(rows), tuple(e for e in errors if e is not None))


def _told_of(key: str, rows: Sequence[Document], field: str) -> Kind:
    errors = (row["errors"].get(field) for row in rows)
    return Kind(key, len(rows), tuple(error for error in errors if error is not None))


def _card_files(field: str, prefix: str) -> list[Document]:
    found: list[Document] = []
    for path in sorted((VALIDATION / "gpu").glob(f"{prefix}*.json")):
        found += msgspec.json.decode(path.read_bytes())[field]
    return found


def _card_rows(prefix: str) -> Iterator[tuple[str, Document]]:
    """Yield rows beside the card that was pretended, or was there: h100 or h200, say."""
    for path in sorted((VALIDATION / "gpu").glob(f"{prefix}*.json")):
        file = msgspec.json.decode(path.read_bytes())
        card = file["environment"]["gpu"].lower().removeprefix("nvidia ")
        yield from ((card.replace("-", " ").split()[0], row) for row in file["rows"])


def card_programs() -> list[dict[str, tuple[Any, ...]]]:
    """Return, of each program of others that was measured, what was said and what it took.

    What was said of another card of the same generation stands in where nothing was of this one.
    Of a program that resets its peaks, only what it reserved can be compared.
    """
    said = {(card, row["name"]): row for card, row in _card_rows("programs-simulated")}
    pairs = []
    for card, row in _card_rows("programs-nvidia-"):
        if row["failure"]:
            continue
        own = said.get((card, row["name"])) or said.get((_TWINS.get(card), row["name"]), {})
        if row.get("resets_peaks"):
            own = {**own, "simulated_peak_requested_bytes": None}
        pairs.append({
            name: tuple(
                rung.get(f"{kind}_peak_{counter}_bytes")
                for kind, rung in (("simulated", own), ("measured", row))
            )
            for name, counter in (("live", "requested"), ("reserved", "reserved"))
        })  # fmt: skip
    return pairs


def allocated(row: Document) -> tuple[float | None, float | None]:
    """Return a row's published and predicted peak."""
    return row.get("published_allocated_gib"), row.get("predicted_allocated_gib")


def speed(row: Document) -> tuple[float | None, float | None]:
    """Return a row's published and predicted speed."""
    return row.get("published_tokens_per_s"), row.get("predicted_tokens_per_s")


def _pointed(
    key: str,
    rows: Sequence[Document],
    pair: Callable[[Document], tuple[float | None, float | None]],
) -> Kind:
    pairs = [found for found in map(pair, rows) if found[0]]
    return Kind(key, len(pairs), tuple(here / there - 1 for there, here in pairs if there and here))


def _ranged(key: str, rows: Sequence[Document]) -> Kind:
    """Compare with the likeliest figure, else the middle of a range; count what lies within it."""
    there = [row for row in rows if row.get(f"published_{key}_gib")]
    told = [(row[f"published_{key}_gib"], row.get(f"likely_{key}_gib"),
             row.get(f"predicted_{key}_gib")) for row in there]  # fmt: skip
    errors = tuple(
        (likely or (band["low"] + band["high"]) / 2) / figure - 1
        for figure, likely, band in told
        if likely or band
    )
    banded = [(figure, band) for figure, _, band in told if band]
    inside = sum(band["low"] <= figure <= band["high"] for figure, band in banded)
    return Kind(key, len(there), errors, inside, len(banded))


def own() -> list[Kind]:
    """Compare our own runs on a CPU, and the two rungs, kind by kind."""
    return [
        _errors("peak", (said.error for said in measured(VALIDATION))),
        _of_field("predicted peak", "simulated_vs_measured", "predicted_error"),
        _of_field("formulas", "predicted_vs_simulated", "peak_error"),
        _of_field("host peak", "offload", "host_error"),
        _of_field("step time", "step_time", "step_error"),
        _errors("pipeline step", (row["predicted_step_s"] / row["measured_step_s"] - 1
                                  for row in rows_of("bubbles"))),
        _of_field("idle share", "bubbles", "share_error"),
    ]  # fmt: skip


def _of_field(key: str, name: str, field: str) -> Kind:
    return _errors(key, (row[field] for row in rows_of(name) if row.get(field) is not None))


def _errors(key: str, errors: Iterable[float]) -> Kind:
    found = tuple(errors)
    return Kind(key, len(found), found)


def figures() -> dict[str, Any]:
    """Return the figures of the sentences, by name."""
    runs, ladder = rows_of("published_predicted"), rows_of("ladder")
    resume, lost, doctor = rows_of("resume"), rows_of("lost_workers"), rows_of("precision")
    laws, fuzz, soak = rows_of("laws"), rows_of("fuzz"), rows_of("soak")
    trainer = [row for row in rows_of("hf_trainer") if row["settings"] == "same"]
    traced = [row for row in runs if row["has_bar"]]
    kinds = {kind.key: kind for kind in (*card(), *published(), *own())}
    return {
        **_of_kind("allocated", kinds["allocated"]),
        **_of_kind("fitted", kinds["allocated fitted"]),
        **_of_kind("unseen", kinds["allocated unseen"]),
        **_of_kind("speed", kinds["speed"]),
        **_of_kind("peak", kinds["peak"]),
        **_of_kind("card", kinds["card live first"]),
        **_of_kind("card_reserved", kinds["card reserved first"]),
        **_of_kind("programs_reserved", kinds["card programs reserved first"]),
        **_of_kind("card_step", kinds["card step"]),
        **_of_kind("programs", kinds["card programs live first"]),
        "learnt": LEARNT,
        "learnt_again": LEARNT_AGAIN,
        "kernels": _num_calls(),
        "runs": len(runs),
        "sources": len({row["source"] for row in runs}),
        "answered": sum(not row.get("reason") for row in runs),
        "traced": len(_pointed("", traced, allocated).errors),
        "traced_median": _median(_pointed("", traced, allocated).errors),
        **_exactness(),
        "resumed": len(resume),
        "resumed_equal": sum(row["is_bit_equal"] for row in resume),
        "lost": len(lost),
        "lost_steps": max((row["num_lost"] for row in lost), default=0),
        "ladder": len(ladder),
        "doctor": len(doctor),
        "doctor_right": sum(row["holds"] for row in doctor),
        "exports": sum(not row["refused"] and not row["complaint"] for row in rows_of("exporters")),
        "laws": len(laws),
        "law_cases": sum(row["num_looked_at"] for row in laws),
        "law_broken": sum(len(row["broken"]) for row in laws),
        "fuzzed": sum(row["num_examples"] for row in fuzz),
        "fuzz_answered": sum(row["num_fit"] + row["num_unfit"] for row in fuzz),
        "fuzz_faults": sum(len(row["faults"]) for row in fuzz),
        "soak_steps": max((row["num_steps"] for row in soak), default=0),
        "soak_change": share(max((abs(row["change_share"]) for row in soak), default=0.0)),
        "trainer": len(trainer),
        "trainer_least": f"{min((row['speed_ratio'] for row in trainer), default=0):.3f}",
        "trainer_most": f"{max((row['speed_ratio'] for row in trainer), default=0):.3f}",
    }


def _num_calls() -> int:
    """Count the calls of single operations that ran on a GPU."""
    files = (VALIDATION / "gpu").glob("kernels-*.jsonl")
    lines = (line for path in files for line in path.read_bytes().splitlines())
    return sum("failed" not in msgspec.json.decode(line) for line in lines)


def _of_kind(name: str, kind: Kind) -> dict[str, Any]:
    """Return how many figures of a kind there are, how many have a counterpart, and how far off."""
    sizes = sorted(map(abs, kind.errors))
    answered = {f"{name}_rows": kind.num_rows, f"{name}_answered": len(sizes)}
    if not sizes:
        return answered | dict.fromkeys(
            (f"{name}_{figure}" for figure in ("median", "p90", "worst")), _NO_FIGURE
        )
    return answered | {
        f"{name}_median": share(statistics.median(sizes)),
        f"{name}_p90": share(p90(sizes)),
        f"{name}_worst": share(sizes[-1]),
    }


def _exactness() -> dict[str, Any]:
    """Return how far training is from the plain loop, on one device, on several, and resharded."""
    found: dict[str, Any] = {}
    names = {"exact": "parity", "parallel": "parallel_parity", "reshard": "reshard", "dpo": "dpo"}
    for key, name in names.items():
        rows = [row for row in rows_of(name) if key != "parallel" or _is_in_fp32(row)]
        found[key] = len(rows)
        for field in ("loss", "norm"):
            found[f"{key}_{field}"] = f"{max(abs(row[f'{field}_error']) for row in rows):.0e}"
    return found


def _is_in_fp32(row: Document) -> bool:
    """Whether nothing of a product is rounded, so that the plain loop's losses are asked of it."""
    return bars_of(msgspec.convert(row, ParityRow)) == Bars()


def _median(errors: Sequence[float]) -> str:
    return share(statistics.median(map(abs, errors))) if errors else _NO_FIGURE


if __name__ == "__main__":
    main()
