"""What evidence says, as text: a table for the terminal, one for the README."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from evidence import PARTS, Evidence, Spread, in_all, path_of, read_evidence

from brimful.files.writing import write_text

BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"
_WIDTH = 100
AnyEvidence = Evidence[msgspec.Struct]


def summary_text(evidence: AnyEvidence) -> str:
    """Write a part's figures for the terminal, at most 100 columns wide."""
    summary = evidence.summary
    lines = [
        _headline(evidence),
        f"  bar: {'; '.join(summary.bars)}",
        *(f"  refused {r.num_draws:4d}: {r.reason}" for r in summary.refusals),
    ]
    if summary.spreads:
        head = f"{'error of':<13}{'factor':<14}{'value':<12}{'cases':>6}"
        lines.append(f"  {head}{'median':>11}{'p90':>11}{'worst':>11}{'bias':>11}")
        lines += [f"  {_spread_text(spread)}" for spread in summary.spreads]
    lines += [f"  {text}" for text in summary.findings]
    lines += [f"  MISSED {text}" for text in summary.missed] or ["  every bar is met"]
    return "\n".join(line[:_WIDTH] for line in lines)


def _headline(evidence: AnyEvidence) -> str:
    summary, made = evidence.summary, evidence.provenance
    return (
        f"{evidence.part}: {summary.num_cases} cases, {summary.num_rich} of them mostly activations"
        f"; {summary.num_drawn} drawn; seed {made.seed}; {made.wall_s:.0f} s"
    )


def _spread_text(spread: Spread) -> str:
    head = f"{spread.of:<13}{spread.factor:<14}{spread.value:<12}{spread.num_cases:>6}"
    sizes = (spread.median, spread.p90, spread.worst)
    return head + "".join(f"{size:>11.4%}" for size in sizes) + f"{spread.bias:>+11.4%}"


def figures(evidence: Sequence[AnyEvidence]) -> str:
    """Write the README's table: a line per kind of error, or per part without errors."""
    lines = [
        "| evidence | cases | error of | median | p90 | worst | bias | bars | made |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for part in evidence:
        kinds = dict.fromkeys(spread.of for spread in part.summary.spreads) or {"": None}
        lines += [_line(part, of) for of in kinds]
    return "\n".join(lines) + "\n"


def _line(evidence: AnyEvidence, of: str) -> str:
    summary, made = evidence.summary, evidence.provenance
    spread = in_all(summary, of)
    numbers = ["-"] * 4
    if spread is not None:
        sizes = (spread.median, spread.p90, spread.worst)
        numbers = [*(f"{100 * size:.4f} %" for size in sizes), f"{100 * spread.bias:+.4f} %"]
    num_cases = spread.num_cases if spread else summary.num_cases
    state = "met" if not summary.missed else f"{len(summary.missed)} missed"
    versions = ", ".join(made.versions[1:])
    cells = (evidence.part, str(num_cases), of or "-", *numbers, state, f"{made.date}, {versions}")
    return f"| {' | '.join(cells)} |"


def update_readme(folder: Path) -> None:
    """Write the figures of the evidence files beside it into a folder's README."""
    readme = folder / "README.md"
    if not readme.is_file():
        return
    made = [read_evidence(part, folder) for part in PARTS if path_of(part, folder).is_file()]
    text = readme.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_text(readme, before + BEGIN + figures(made) + END + after)
