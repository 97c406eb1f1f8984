"""The precision doctor: planted faults, healthy programs, scripted loss scales, shares in fp64."""

from collections.abc import Sequence
from itertools import groupby

import torch
from evidence import Summary
from precision_cases import (
    NUM_STEPS,
    SCRIPT,
    Expected,
    Planted,
    faults,
    gradient,
    group_faults,
    healthy,
    make_case,
    nothing,
    recurrence,
    scale_cases,
)
from precision_group import Scaled, found_by, scaled_by_script, told
from precision_rows import PrecisionRow
from precision_shares import worst_errors
from progress import shown

from brimful.doctor.findings import Finding
from brimful.values.strategy import world_size

SHARE_BAR = 1e-6
_LAYER, _BLOCK = "model.layers.1.mlp.down_proj", "transformer.h.1.attn.c_proj"


def run(*, seed: int, quick: bool) -> tuple[list[PrecisionRow], Summary]:
    """Plant, look, and compare; nothing is drawn."""
    del seed
    torch.set_num_threads(1)
    singles = (*faults(), *healthy())
    singles = singles[::10] if quick else singles
    rows = [row_of(planted) for planted in shown("precision", singles)]
    rows += [share_row(place) for place in range(len(_shares()))][: 2 if quick else None]
    places = [i for i, case in enumerate(scale_cases()) if world_size(case.strategy) == 1]
    rows += [_scale_row(i, [scaled_by_script(i)]) for i in places]
    rows += group_rows(quick=quick)
    return rows, summarize(rows)


def row_of(planted: Planted) -> PrecisionRow:
    """Plant a fault, or none, in this process and look."""
    return _row(planted, [found_by(planted)])


def group_rows(*, quick: bool, sizes: Sequence[int] = (2, 4)) -> list[PrecisionRow]:
    """Look at groups of processes, those of one size together."""
    rows = []
    for size in sizes:
        ill = [i for i, p in enumerate(group_faults()) if world_size(p.case.strategy) == size]
        scales = [i for i, case in enumerate(scale_cases()) if world_size(case.strategy) == size]
        if quick:
            ill, scales = ill[:1], scales[:1]
        answers = told(size, ill, scales)
        for place, number in enumerate(ill):
            rows.append(_row(group_faults()[number], [of[0][place] for of in answers]))
        for place, number in enumerate(scales):
            rows.append(_scale_row(number, [of[1][place] for of in answers]))
    return rows


def _row(planted: Planted, by_rank: Sequence[tuple[Finding, ...]]) -> PrecisionRow:
    expected, found = planted.expected, by_rank[0]
    agree = all(other == found for other in by_rank)
    first = found[0] if found else None
    return PrecisionRow(
        what="healthy" if expected is None else "fault",
        label=planted.label,
        case=planted.case,
        expected="" if expected is None else _words(expected),
        said="" if first is None else first.text,
        num_findings=len(found),
        difference=0.0,
        num_compared=len(by_rank),
        holds=agree and _is_as_expected(first, expected),
    )


def _is_as_expected(first: Finding | None, expected: Expected | None) -> bool:
    if first is None or expected is None:
        return first is None and expected is None
    ranks = expected.ranks or (0,)
    return (
        (first.fault, first.kind, first.ranks) == (expected.fault, expected.kind, ranks)
        and expected.name in {None, first.name}
        and first.name in first.text
    )


def _words(expected: Expected) -> str:
    name = "any" if expected.name is None else expected.name
    ranks = "" if expected.ranks is None else f" of process {expected.ranks[0]}"
    return f"{expected.fault}: {expected.kind} of {name}{ranks}"


def _scale_row(number: int, by_rank: Sequence[Scaled]) -> PrecisionRow:
    case, right = scale_cases()[number], recurrence()
    wrong = sum(
        tuple(step) != other
        for scaled in by_rank
        for step, other in zip(scaled.steps, right, strict=True)
    )
    changed = sum(scaled.num_changed for scaled in by_rank)
    strategy = case.strategy
    degrees = f"{strategy.dp_replicate} x {strategy.dp_shard} x {strategy.tp}"
    return PrecisionRow(
        what="scale",
        label=f"{case.job.precision}, zero {strategy.zero} on {degrees}: Inf on the last process",
        case=case,
        expected="as worked out by hand; a skipped step changes nothing",
        said=f"{wrong} steps differ, {changed} skipped steps changed a weight",
        num_findings=0,
        difference=float(wrong),
        num_compared=len(SCRIPT) * len(by_rank),
        holds=not wrong and not changed,
    )


def _shares() -> tuple[Planted, ...]:
    eager = {"attention": "eager"}
    asked = (
        ("llama", "fp16-mixed", nothing, {}),
        ("llama", "fp16-mixed", nothing, eager),
        ("llama", "fp16-master", gradient(2.0**-34, _LAYER), {}),
        ("llama", "bf16-mixed", nothing, {}),
        ("gpt2", "fp16-mixed", gradient(2.0**-30, _BLOCK), {}),
        ("gpt2", "bf16", nothing, {}),
        ("gpt2", "fp16", nothing, {}),
        ("cnn", "fp16-mixed", gradient(2.0**-30, "model.3"), {}),
        ("bert", "fp16-mixed", nothing, {}),
        ("bert", "fp16-mixed", gradient(2.0**-34, "bert.encoder.layer.1.output.dense"), {}),
    )
    return tuple(
        Planted(f"{kind} {precision}", make_case(kind, precision, ways=ways), plant, None)
        for kind, precision, plant, ways in asked
    )


def share_row(place: int) -> PrecisionRow:
    """Compare the shares of one case with fp64."""
    planted = _shares()[place]
    counted, vanished, num = worst_errors(planted.case, planted.plant)
    worst = max(counted, vanished)
    return PrecisionRow(
        what="shares",
        label=planted.label,
        case=planted.case,
        expected=f"within {SHARE_BAR:g} of fp64",
        said=f"counted {counted:.1e}, vanished {vanished:.1e} at most",
        num_findings=0,
        difference=worst,
        num_compared=num,
        holds=worst <= SHARE_BAR,
    )


def summarize(rows: list[PrecisionRow]) -> Summary:
    """Count what holds, by what was asked."""
    ordered = sorted(rows, key=lambda row: row.what)
    findings = []
    for what, of in groupby(ordered, key=lambda row: row.what):
        listed = list(of)
        good = sum(row.holds for row in listed)
        findings.append(f"{what}: {good} of {len(listed)} as they must be")
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(),
        bars=(
            "every planted fault is named first, by module and kind (and process)",
            "no finding on a healthy program",
            f"shares within {SHARE_BAR:g} of fp64",
            f"loss scales as worked out by hand in each of {len(SCRIPT)} steps",
        ),
        missed=tuple(
            f"{row.label}: expected {row.expected or 'nothing'}; {row.said or 'nothing said'}"
            for row in rows
            if not row.holds
        ),
        findings=(*findings, f"{NUM_STEPS} steps each, every second one watched"),
    )
