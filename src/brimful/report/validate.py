"""How near predictions of published runs come, as tables for the terminal."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from brimful.published.compare import Compared
from brimful.published.scoreboard import overall
from brimful.published.scores import (
    MAX_MEDIAN,
    MAX_P90,
    MAX_SPEED_MEDIAN,
    MIN_COVERAGE,
    MIN_SWEPT,
    MIN_TAU,
    NEAR,
    Coverage,
    Errors,
    Missing,
    Order,
    Scoreboard,
)
from brimful.report.tables import add_row, bullets, plain_table
from brimful.show.summary import Fact, Summary
from brimful.values.plan import Band

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_NONE = "-"
_PROGRAM = ("family", "program")
_ERRORS = ("runs", "predicted", "median", "|median|", "p90", "worst", f"<{NEAR:.0%}")
_BANDS = ("figure", "sources", "figures", "below", "above", "within", "width")
_NUMBERS = frozenset({*_ERRORS, *_BANDS[2:], "sweeps", "pairs", "tau", "error"})
_PROGRAMS = (
    "error = predicted / published - 1; * the program that profiles were traced of: bars count; "
    "all others are predicted with the same profiles and have no bar"
)
_BARS = (
    f"bars: |median| <= {MAX_MEDIAN:.0%} and p90 <= {MAX_P90:.0%} of allocated bytes, bands cover "
    f">= {MIN_COVERAGE:.0%}; speeds |median| <= {MAX_SPEED_MEDIAN:.0%}, tau >= {MIN_TAU}"
)
_SPLITS = (
    "sources: parameters were fitted to fit, chosen among by validation, and never saw test "
    "(brimful/data/published/splits.json)"
)
_TAU = (
    f"tau: Kendall's, over pairs of runs that differ in strategy only, in sweeps of {MIN_SWEPT} "
    "and more"
)


def summary(scores: Scoreboard, rows: Sequence[Compared]) -> Summary:
    """Say in a few lines how near predictions come; ``rows``: that the scores sum up."""
    memory, speed = overall(rows)
    num = sum(each.num_figures for each in scores.bands)
    within = sum(each.num_within for each in scores.bands)
    share = f"{within / num:.0%}" if num else "none"
    ranges = f"{share} of {num} figures of reserved and process bytes are within theirs"
    return Summary(
        None,
        _title(scores),
        None,
        (
            *_errors_fact("memory", memory, "peak allocated bytes"),
            *_errors_fact("speed", speed, "tokens/s"),
            *([Fact("ranges", ranges)] if num else []),
            Fact("next", "-v prints tables by family and program, --runs every run too"),
        ),
    )


def _errors_fact(label: str, errors: Errors, what: str) -> tuple[Fact, ...]:
    if errors.median_size is None or errors.p90_size is None:
        return ()
    words = (
        f"{what} of {errors.num_predicted} runs: half are within {errors.median_size:.1%}, nine "
        f"in ten within {errors.p90_size:.1%}; farthest {_signed(errors.worst)}, {errors.worst_id}"
    )
    return (Fact(label, words),)


def _title(scores: Scoreboard) -> str:
    return f"{scores.num_runs} published runs, {scores.num_predicted or 'none'} of them predicted"


def score_tables(scores: Scoreboard) -> "tuple[RenderableType, ...]":
    """Lay out the scoreboard."""
    return (
        _error_table(f"Peak allocated memory ({_title(scores)})", scores.memory),
        _band_table(scores.bands),
        _error_table("Tokens per second of a device", scores.speeds),
        _order_table(scores.orders),
        bullets("Worst", [*_worst(scores.memory), *_worst(scores.speeds)]),
        bullets("No formula", [_missing_words(missing) for missing in scores.missing]),
        bullets("", (_PROGRAMS, _BARS, _SPLITS, _TAU)),
    )


def run_tables(rows: Sequence[Compared]) -> "tuple[Table, ...]":
    """Lay out every run that has a prediction beside it."""
    memory = _table("Runs: memory in GiB", ("run", "figure", "published", "predicted", "error"))
    speed = _table("Runs: tokens/s", ("run", "published", "predicted", "error"))
    for row in rows:
        for cells in _memory_cells(row):
            add_row(memory, cells)
        there, here = row.published_tokens_per_s, row.predicted_tokens_per_s
        if there and here:
            add_row(speed, (row.id, f"{there:.0f}", f"{here:.0f}", _signed(here / there - 1)))
    return memory, speed


def _memory_cells(row: Compared) -> Iterator[tuple[str, ...]]:
    there, here = row.published_allocated_gib, row.predicted_allocated_gib
    if there and here:
        yield row.id, "allocated", f"{there:.2f}", f"{here:.2f}", _signed(here / there - 1)
    figures = (
        (
            "reserved",
            row.published_reserved_gib,
            row.predicted_reserved_gib,
            row.likely_reserved_gib,
        ),
        ("process", row.published_process_gib, row.predicted_process_gib, row.likely_process_gib),
    )
    for figure, published, band, likely in figures:
        if not published or not (band or likely):
            continue
        words = (
            f"{likely:.1f}" if likely else "",
            f"{band.low:.1f} to {band.high:.1f}" if band else "",
        )
        error = (
            _place(published, band) if band else "",
            _signed(likely / published - 1) if likely else "",
        )
        yield row.id, figure, f"{published:.2f}", _listed(words), _listed(error)


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(filter(None, words))


def _place(published: float, band: Band) -> str:
    if band.low <= published <= band.high:
        return "within"
    return "below" if published < band.low else "above"


def _table(title: str, columns: Sequence[str]) -> "Table":
    table = plain_table(title)
    for name in columns:
        is_number = name in _NUMBERS or name in {"published", "predicted"}
        table.add_column(name, justify="right" if is_number else "left")
    return table


def _error_table(title: str, groups: Sequence[Errors]) -> "Table":
    table = _table(title, (*_PROGRAM, *_ERRORS))
    for group in groups:
        shares = (group.median_size, group.p90_size)
        cells = (
            group.family,
            _starred(group.label, has_bar=group.has_bar),
            str(group.num_runs),
            str(group.num_predicted),
            _signed(group.median),
            *(_NONE if share is None else f"{share:.1%}" for share in shares),
            _signed(group.worst),
            _NONE if group.near_share is None else f"{group.near_share:.0%}",
        )
        add_row(table, cells)
    return table


def _band_table(groups: Sequence[Coverage]) -> "Table":
    table = _table("Bands", (*_PROGRAM, *_BANDS))
    for group in groups:
        cells = (
            group.family,
            _starred(group.label, has_bar=group.has_bar),
            group.figure,
            group.split,
            str(group.num_figures),
            str(group.num_below),
            str(group.num_above),
            f"{group.num_within / group.num_figures:.0%}",
            f"{group.median_width:.0%}",
        )
        add_row(table, cells)
    return table


def _order_table(groups: Sequence[Order]) -> "Table":
    table = _table("Order of strategies by speed", (*_PROGRAM, "sweeps", "pairs", "tau"))
    for group in groups:
        numbers = (str(group.num_sweeps), str(group.num_pairs), f"{group.tau:+.2f}")
        add_row(table, (group.family, group.label, *numbers))
    return table


def _worst(groups: Sequence[Errors]) -> list[str]:
    return [f"{_signed(group.worst)} {group.worst_id}" for group in groups if group.worst_id]


def _missing_words(missing: Missing) -> str:
    runs = "run" if missing.num_runs == 1 else "runs"
    return f"{missing.num_runs} {runs}: {missing.reason}"


def _starred(label: str, *, has_bar: bool) -> str:
    return f"{label} *" if has_bar else label


def _signed(share: float | None) -> str:
    return _NONE if share is None else f"{share:+.1%}"
