"""The savings ledger, the decision tree and what comes with them, as tables for the terminal."""

from typing import TYPE_CHECKING

from brimful.report.tables import add_row, bullets, plain_table
from brimful.report.words import UNKNOWN
from brimful.search.alternatives import Alternative
from brimful.search.decide import Decision
from brimful.search.gains import Gain
from brimful.search.ledger import LedgerRow
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS
from brimful.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

NAIVE = (
    f"Savings ledger: from the naive run (fp32, {OPTIMIZERS[DEFAULT].words}, eager attention, no "
    "checkpointing, whole logits, data parallel; the plan's micro-batch) to the plan"
)
JOBS = "* the job's own: it changes what is learnt, and the planner did not choose it"


def explain_tables(
    rows: tuple[LedgerRow, ...],
    decisions: tuple[Decision, ...],
    others: tuple[Alternative, ...],
    gained: tuple[Gain, ...],
) -> "Group":
    """Lay out why a plan is what it is."""
    from rich.console import Group
    from rich.text import Text

    blank = Text("")
    tree = decision_lines(decisions)
    return Group(
        ledger_table(rows),
        bullets("", (JOBS,)) if any(row.owner != "planner" for row in rows) else blank,
        blank,
        bullets("Decision tree, derived from the ledger", tree),
        blank,
        alternatives_table(others),
        blank,
        gains_table(gained),
    )


def decision_lines(decisions: tuple[Decision, ...]) -> list[str]:
    """Say each question of the tree, its answer and what follows."""
    return [f"{node.depth + 1}. {node.question} {node.answer} {node.action}" for node in decisions]


def ledger_table(rows: tuple[LedgerRow, ...]) -> "Table":
    """Lay out the waterfall: a row per switch, the naive run first."""
    table = plain_table(NAIVE)
    table.add_column("switch", max_width=34)
    for heading in ("saves", "peak", "time", "step"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("because", ratio=1)
    if rows:
        add_row(table, naive_cells(rows[0]))
    for row in rows:
        add_row(table, cells(row), style="bold" if row.fits else "")
    return table


def naive_cells(row: LedgerRow) -> tuple[str, ...]:
    """Spell the run that the first row starts at."""
    step = row.step_before_s
    return (
        "the naive run",
        "",
        _peak_words(row),
        "",
        UNKNOWN if step is None else format_seconds(step),
        _naive_fit(row),
    )


def _peak_words(row: LedgerRow) -> str:
    """Spell the peak that a row starts at: what is at least there where nothing predicts it."""
    peak, least = row.peak_before_bytes, row.least_before_bytes
    if peak is None:
        return UNKNOWN if least is None else f"> {format_bytes(least)}"
    return format_bytes(peak)


def _naive_fit(row: LedgerRow) -> str:
    peak, least = row.peak_before_bytes, row.least_before_bytes
    if peak is not None or least is None:
        return _fit(peak, row.usable_bytes)
    short = least - row.usable_bytes
    over = f", short by {format_bytes(short)} by these alone" if short > 0 else ""
    return f"parameters, gradients and optimizer state{over}; activations are not traced here"


def cells(row: LedgerRow) -> tuple[str, ...]:
    """Spell a row: switch, saving, peak, time, step, reason."""
    change = f"{row.before} -> {row.after}" if row.before else row.after
    return (
        f"{'* ' if row.owner != 'planner' else ''}{row.switch} {change}",
        _saved_words(row),
        format_bytes(row.peak_after_bytes),
        signed_seconds(row.added_s),
        UNKNOWN if row.step_after_s is None else format_seconds(row.step_after_s),
        f"{_fit(row.peak_after_bytes, row.usable_bytes)}; {row.reason}".rstrip("; "),
    )


def _saved_words(row: LedgerRow) -> str:
    """Spell what a row saves; at least that, where what it starts at is a bound."""
    if row.saved_bytes is not None:
        return format_bytes(row.saved_bytes)
    least = row.least_before_bytes
    if least is None or least <= row.peak_after_bytes:
        return UNKNOWN
    return f"> {format_bytes(least - row.peak_after_bytes)}"


def signed_seconds(added_s: float | None) -> str:
    """Print a change of time with its sign."""
    if added_s is None:
        return UNKNOWN
    return f"{'-' if added_s < 0 else '+'}{format_seconds(abs(added_s))}"


def _fit(peak_bytes: int | None, usable_bytes: int) -> str:
    if peak_bytes is None:
        return "no formula covers it"
    if peak_bytes <= usable_bytes:
        return "fits"
    return f"short by {format_bytes(peak_bytes - usable_bytes)}"


def alternatives_table(others: tuple[Alternative, ...]) -> "Table":
    """Lay out what each switch of the plan does at its other values."""
    table = plain_table("One switch of the plan at another value, all else as planned")
    table.add_column("setting", max_width=36)
    table.add_column("peak", justify="right", no_wrap=True)
    table.add_column("against the plan", ratio=1)
    for other in others:
        add_row(table, (other.setting, format_bytes(other.peak_bytes), other.words))
    return table


def gains_table(gained: tuple[Gain, ...]) -> "Table":
    """Lay out what each permission would bring."""
    table = plain_table("If you allow it (each searched anew)")
    table.add_column("allow", max_width=24)
    table.add_column("peak", justify="right", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("you gain", ratio=1)
    table.add_column("you pay", ratio=1)
    for gain in gained:
        peak = UNKNOWN if gain.peak_bytes is None else format_bytes(gain.peak_bytes)
        step = UNKNOWN if gain.step_s is None else format_seconds(gain.step_s)
        add_row(table, (gain.allow, peak, step, gain.words, gain.price))
    return table
