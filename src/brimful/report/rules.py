"""Rules of thumb beside our numbers, as tables for the terminal and as a page in Markdown."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from brimful.hardware.cluster import Cluster, spelled
from brimful.report.tables import add_row, plain_table
from brimful.rules.base import Checked, verdict_words
from brimful.units import format_bytes, format_seconds
from brimful.values.plan import Plan

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

VERDICTS = ("holds", "holds only when", "wrong", "not checkable here", "unknown")


def rules_tables(rows: Sequence[Checked]) -> "Group":
    """Lay out what the check of every rule found, a table per group."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Table | Text] = []
    for name, group in groupby(rows, key=lambda row: row.group):
        parts += [_table(name, group), Text("")]
    return Group(*parts, Text(summary(rows), style="bold"))


def plan_sentence(cluster: Cluster, plan: Plan) -> str:
    """Say what rules are checked on: one device, but for those of the plan for all of them.

    ``plan``: of ``brimful plan``, for them.
    """
    assert plan.estimate is not None
    peak = format_bytes(plan.estimate.predicted_peak_allocated_bytes)
    step = plan.estimate.predicted_step_s
    time = "an unknown time" if step is None else format_seconds(step)
    return (
        f"rules are checked on one {cluster.name}; the order of switches is that of the plan for "
        f"{spelled(cluster)}, which peaks at {peak} and takes {time} a step (brimful plan)"
    )


def _table(name: str, rows: Iterable[Checked]) -> "Table":
    table = plain_table(f"{name[0].upper()}{name[1:]}")
    table.add_column("rule", width=18)
    table.add_column("it says", width=19)
    table.add_column("here", width=23)
    table.add_column("verdict, and why", ratio=1)
    for row in rows:
        says = f"{row.statement}: {row.says}"
        add_row(table, (row.key, says, row.ours, f"{verdict_words(row)}: {row.why}"))
    return table


def summary(rows: Sequence[Checked]) -> str:
    """Count the verdicts."""
    counts = {name: sum(row.verdict == name for row in rows) for name in VERDICTS}
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{len(rows)} rules: {said}"


def markdown(rows: Sequence[Checked]) -> str:
    """Set the rules as sections of a page, a heading per group."""
    parts = []
    for name, group in groupby(rows, key=lambda row: row.group):
        parts += [f"### {name[0].upper()}{name[1:]}", *(_section(row) for row in group)]
    return "\n\n".join(parts)


def _section(row: Checked) -> str:
    stated = "" if row.stated == "-" else f" As it circulates: {row.stated}."
    return (
        f"#### {row.key}\n\n"
        f"> {row.statement}.{stated}\n\n"
        f"- Here the rule says: {row.says}\n"
        f"- Ours: {row.ours}\n"
        f"- Verdict: **{verdict_words(row)}**\n\n"
        f"{_sentence(row.why)}"
    )


def _sentence(words: str) -> str:
    """Begin with a capital, unless with a name such as ``gpt2``, and end with a full stop."""
    first = words.split(maxsplit=1)[0]
    return f"{words[0].upper() if first.isalpha() else words[0]}{words[1:]}."


def verdict_table(columns: Sequence[tuple[str, Sequence[Checked]]]) -> str:
    """Set the verdicts on several subjects side by side.

    ``columns``: a heading and the rows of each; the same rules in the same order.
    """
    heading = " | ".join(["rule", *(name for name, _ in columns)])
    lines = [f"| {heading} |", "|" + "---|" * (len(columns) + 1)]
    for same in zip(*(rows for _, rows in columns), strict=True):
        cells = [f"[{same[0].key}](#{_anchor(same[0].key)})", *map(verdict_words, same)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _anchor(key: str) -> str:
    return key.replace(".", "")
