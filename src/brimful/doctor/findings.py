"""What is wrong with the numbers of a run: one rule per fault, each with the numbers it rests on.

No torch: everything is drawn from what was counted. Rules are ordered; the first finding is the one
to look at first.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from brimful.doctor.formats import FORMATS_BY_TYPE
from brimful.doctor.records import (
    BATCH,
    GRADIENTS,
    LOSS,
    Kind,
    Lost,
    Moments,
    Row,
    ScaleStep,
    Watched,
    earliest,
)
from brimful.doctor.seen import Compared, Place, Seen

Fault = Literal[
    "not-finite", "scale-too-high", "scale-too-low", "underflow", "vanished", "dead-output",
    "lost-update", "near-limit", "exploding", "outlier", "router", "rank-apart", "epsilon",
]  # fmt: skip


MEANINGS: dict[Fault, str] = {
    "not-finite": "a number is beyond all numbers of its type (Inf), or is none (NaN)",
    "scale-too-high": "times the loss scale gradients are beyond fp16's largest: steps are skipped",
    "scale-too-low": "gradients are below fp16's smallest and become 0; a loss scale lifts them",
    "underflow": "gradients are below the smallest number of their type and become 0",
    "vanished": "outputs become 0 that are not 0 in a wider type",
    "dead-output": "a layer returns nothing but zeros",
    "lost-update": "what a step would change is too small beside the weight for its type to hold",
    "near-limit": "numbers come near the largest of their type",
    "exploding": "numbers grow from step to step",
    "outlier": "a few weights are far larger than all others",
    "router": "a router is sure of one expert, and learns little of others",
    "rank-apart": "one process's numbers are unlike all others'",
    "epsilon": "AdamW divides by its epsilon alone, and its steps are too large",
}
"""What a fault is, to somebody who meets it for the first time."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong.

    Attributes:
        fault: Which.
        name: Of the module or the parameter; ``batch``: what the model is given; ``loss``.
        kind: What of it.
        step: Where it was seen first.
        ranks: Processes that saw it.
        text: One sentence with the numbers.
    """

    fault: Fault
    name: str
    kind: Kind
    step: int
    ranks: tuple[int, ...]
    text: str


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """From where on something is a finding; chosen so that healthy runs have none.

    Attributes:
        skipped_share: Skipped steps among all.
        num_skipped: And at least as many: a scale that begins high finds its place in a few.
        vanished_share: Numbers of a gradient, or of a norm's output, that are 0 and not in fp32.
        most_share: Likewise, of other outputs: what saturates may well be 0.
        many_share: Tensors of gradients that vanish, so that the loss scale is to blame.
        lost_share: Updates that leave a weight as it was.
        fp16_headroom: Doublings between an fp16 activation and 65504.
        wide_headroom: Doublings between a number held in bf16 or fp32 and their largest.
        growth: Doublings of the largest number from the first watched step to the last.
        least_weight: No weight below it has exploded.
        least_activation: Likewise.
        outlier: Doublings between the largest and the middle weight of a parameter.
        router_logit: Softmax of more is one or zero in 16 bits.
        epsilon_doublings: Doublings between AdamW's epsilon and the root of a second moment that
            vanishes: updates may be too large by as many.
        apart: Doublings between one process's largest gradient and the others' middle one.
    """

    skipped_share: float = 0.15
    num_skipped: int = 3
    vanished_share: float = 0.1
    most_share: float = 0.9
    many_share: float = 0.5
    lost_share: float = 0.5
    fp16_headroom: float = 1.0
    wide_headroom: float = 8.0
    growth: float = 6.0
    least_weight: float = 4.0
    least_activation: float = 32.0
    outlier: int = 10
    router_logit: float = 64.0
    epsilon_doublings: float = 3.0
    apart: float = 8.0


USUAL = Thresholds()
_NORM = re.compile(r"norm|ln_|ln\d|\bln\b", re.IGNORECASE)
_ROUTER = re.compile(r"(^|\.)(router(\.classifier)?|gate)$")
_LEAST_PROCESSES = 3
"""Of two nobody can say which is apart."""
Rule = Callable[[Seen, Thresholds], Iterator[Finding]]


def find_faults(seen: Seen, thresholds: Thresholds = USUAL) -> tuple[Finding, ...]:
    """Return what is wrong, the first cause first; a place has one finding per fault.

    Args:
        seen: Of one process or of many.
        thresholds: From where on something is wrong.
    """
    found: dict[tuple[Fault, str, Kind], Finding] = {}
    for rule in _RULES:
        for finding in rule(seen, thresholds):
            key = (finding.fault, finding.name, finding.kind)
            if key not in found:
                found[key] = finding
            elif not set(finding.ranks) <= set(found[key].ranks):
                ranks = tuple(sorted({*found[key].ranks, *finding.ranks}))
                found[key] = msgspec.structs.replace(found[key], ranks=ranks)
    return tuple(found.values())


def _not_finite(seen: Seen, _limits: Thresholds) -> Iterator[Finding]:
    bad = seen.first_bad
    if bad is None:
        return
    who = [
        other.rank
        for watched in seen.ranks
        for other in watched.bads
        if (other.step, other.micro_batch, other.order) == (bad.step, bad.micro_batch, bad.order)
    ]
    ranks = tuple(sorted({bad.rank, *who}))
    where = "what the model is given" if bad.name == BATCH else f"the {_words(bad.kind)} {bad.name}"
    by = f" by {bad.op}" if bad.op else ""
    given = ""
    if bad.input_low is not None and bad.input_high is not None:
        given = f", which was given {bad.input_low:.4g} to {bad.input_high:.4g}"
    text = (
        f"the first Inf or NaN is in {where}{by}{given}, step {bad.step}, micro-batch "
        f"{bad.micro_batch + 1}{_of_ranks(seen, ranks)}"
    )
    yield _finding("not-finite", bad.name, bad.kind, bad.step, ranks, text)


def _epsilon(seen: Seen, limits: Thresholds) -> Iterator[Finding]:
    """Find second moments that vanish where epsilon is too small to stand in for them."""
    for watched in seen.ranks:
        low = [held for held in watched.moments if _is_divided_by_epsilon(held, limits)]
        if not low:
            continue
        worst = max(low, key=lambda held: held.num_vanished / held.num)
        names = {held.name for held in low}, {held.name for held in watched.moments}
        half = FORMATS_BY_TYPE[worst.held].smallest / 2
        also = f", which is 0 in {worst.held} as well" if worst.epsilon <= half else ""
        text = (
            f"in {len(names[0])} of {len(names[1])} parameters AdamW's second moments are 0 in "
            f"{worst.held} where the first ones are not, most in {worst.name} "
            f"({worst.num_vanished / worst.num:.1%}): updates are divided by epsilon alone, "
            f"{worst.epsilon:g}{also}; an epsilon of {_next_ten(math.sqrt(half)):g} or fp32 "
            f"moments would keep them in bounds"
        )
        yield _finding("epsilon", worst.name, "update", worst.step, (watched.rank,), text)


def _is_divided_by_epsilon(held: Moments, limits: Thresholds) -> bool:
    """Tell whether updates are too large by the quotient of a lost root and epsilon.

    A second moment of at most half its type's smallest number is 0.
    """
    kept = FORMATS_BY_TYPE.get(held.held)
    if kept is None or held.num_vanished <= limits.vanished_share * held.num:
        return False
    root = math.sqrt(kept.smallest / 2)
    return bool(held.epsilon * 2.0**limits.epsilon_doublings < root)


def _next_ten(value: float) -> float:
    return float(10.0 ** round(math.log10(value)))


def _scale_too_high(seen: Seen, limits: Thresholds) -> Iterator[Finding]:
    scales = seen.ranks[0].scales
    skipped = [step for step in scales if step.skipped]
    share = len(skipped) / max(len(scales), 1)
    if len(skipped) < limits.num_skipped or share <= limits.skipped_share:
        return
    if seen.first_bad is not None:  # which no scale would have avoided
        return
    bads = [b for watched in seen.ranks for b in watched.bads if b.kind in GRADIENTS]
    bad = earliest(bads)
    name = LOSS if bad is None else bad.name
    kind: Kind = "gradient" if bad is None else bad.kind
    where = "" if bad is None else f"; the first to overflow is the {_words(kind)} {name}"
    text = (
        f"{len(skipped)} of {len(scales)} steps were skipped at loss scales of "
        f"{_powers(skipped)}{where}"
    )
    ranks = tuple(watched.rank for watched in seen.ranks)
    yield _finding("scale-too-high", name, kind, skipped[0].step, ranks, text)


def _vanished(seen: Seen, limits: Thresholds) -> Iterator[Finding]:
    if seen.compared is None:
        return
    shares = seen.compared.vanished()
    step = seen.ranks[0].steps[0] if seen.ranks[0].steps else 1
    outputs = [(name, x) for (name, kind), x in shares.items() if kind == "activation"]
    is_forward, wide = False, seen.compared.wide
    for name, share in outputs:
        is_norm = bool(_NORM.search(name))
        if share > (limits.vanished_share if is_norm else limits.most_share):
            is_forward = True
            why = ": its variance overflows" if is_norm else ""
            text = f"{share:.1%} of the output of {name} is 0 and is not in {wide}{why}"
            yield _finding("vanished", name, "activation", step, (0,), text)
    if not is_forward:  # or gradients vanish because of it
        yield from _vanished_gradients(seen, seen.compared, step, limits)


def _vanished_gradients(
    seen: Seen, compared: Compared, step: int, limits: Thresholds
) -> Iterator[Finding]:
    shares, wide = compared.vanished(), compared.wide
    gradients = {place: share for place, share in shares.items() if place[1] in GRADIENTS}
    low = {place: x for place, x in gradients.items() if x > limits.vanished_share}
    if gradients and len(low) > limits.many_share * len(gradients):
        worst = max(low, key=lambda place: low[place])
        how = "the loss scale is too low" if seen.is_scaled else "the loss is not scaled"
        text = (
            f"{how}: in {len(low)} of {len(gradients)} gradients more than "
            f"{limits.vanished_share:.0%} of the numbers are 0 that are not in {wide}, most in "
            f"{worst[0]} ({low[worst]:.1%})"
        )
        yield _finding("scale-too-low", worst[0], worst[1], step, (0,), text)
        return
    for (name, kind), share in low.items():
        text = f"{share:.1%} of the {_words(kind)} {name} is 0 and is not in {wide}"
        yield _finding("underflow", name, kind, step, (0,), text)


def _dead_output(seen: Seen, _limits: Thresholds) -> Iterator[Finding]:
    for watched in seen.ranks:
        idle = {r.name for r in watched.of_kind("weight") if r.zero_share == 1}
        for row in watched.of_kind("activation"):
            has_none = any(name.startswith(f"{row.name}.") for name in idle)
            if row.zero_share == 1 and row.spectrum.num > 1 and _NORM.search(row.name):
                if has_none:
                    continue
                text = f"all {row.spectrum.num} numbers of the output of {row.name} are 0"
                yield _of_row("dead-output", row, watched, text)


def _lost_update(seen: Seen, limits: Thresholds) -> Iterator[Finding]:
    for watched in seen.ranks:
        totals: dict[str, list[Lost]] = {}
        for lost in watched.lost:
            totals.setdefault(lost.name, []).append(lost)
        shares = {
            name: sum(x.num_lost for x in of) / max(sum(x.num for x in of), 1)
            for name, of in totals.items()
        }
        for name in sorted(shares, key=lambda name: -shares[name]):
            if shares[name] <= limits.lost_share:
                break
            first = totals[name][0]
            text = (
                f"{shares[name]:.1%} of the updates of {name} leave its {first.held} weights as "
                f"they were; an fp32 master would keep them"
            )
            yield _finding("lost-update", name, "update", first.step, (watched.rank,), text)


def _near_limit(seen: Seen, limits: Thresholds) -> Iterator[Finding]:
    for watched in seen.ranks:
        for row in watched.rows:
            if row.format is None or row.num_bad or row.kind == "input":
                continue
            is_fp16 = row.format.name == "fp16"
            if is_fp16 and row.kind in GRADIENTS:
                continue  # the loss scale's business
            room, least = row.headroom(row.format.name), limits.wide_headroom
            least = limits.fp16_headroom if is_fp16 else least
            if room is not None and room < least:
                text = (
                    f"the {_words(row.kind)} {row.name} reaches {row.largest:.4g}, "
                    f"{room:.2f} doublings below {row.format.name}'s largest"
                )
                yield _of_row("near-limit", row, watched, text)


def _exploding(seen: Seen, limits: Thresholds) -> Iterator[Finding]:
    for watched in seen.ranks:
        first: dict[Place, Row] = {}
        for row in watched.of_kind("weight", "activation"):
            began = first.setdefault((row.name, row.kind), row)
            least = limits.least_weight if row.kind == "weight" else limits.least_activation
            if not (began.largest > 0 and row.largest >= least):
                continue
            growth = math.log2(row.largest / began.largest)
            if growth >= limits.growth:
                text = (
                    f"the {_words(row.kind)} {row.name} grew from {began.largest:.4g} in step "
                    f"{began.step} to {row.largest:.4g} in step {row.step}"
                )
                yield _of_row("exploding", row, watched, text)


def _outlier(seen: Seen, limits: Thresholds) -> Iterator[Finding]:
    for watched in seen.ranks:
        for row in watched.of_kind("weight"):
            middle = row.spectrum.quantile(0.5)
            if middle is None or row.largest < limits.least_weight:
                continue
            if math.log2(row.largest) - middle >= limits.outlier:
                text = (
                    f"the largest weight of {row.name} is {row.largest:.4g}, the middle one about "
                    f"{2.0**middle:.2g}"
                )
                yield _of_row("outlier", row, watched, text)


def _router(seen: Seen, limits: Thresholds) -> Iterator[Finding]:
    for watched in seen.ranks:
        for row in watched.of_kind("activation"):
            if _ROUTER.search(row.name) and row.largest > limits.router_logit:
                text = (
                    f"the router {row.name} gives logits of up to {row.largest:.4g}, of which a "
                    f"softmax is 0 or 1"
                )
                yield _of_row("router", row, watched, text)


def _rank_apart(seen: Seen, limits: Thresholds) -> Iterator[Finding]:
    if len(seen.ranks) < _LEAST_PROCESSES or not seen.are_alike:
        return
    by_place: dict[tuple[int, str, Kind], list[tuple[Row, Watched]]] = {}
    for watched in seen.ranks:
        for row in watched.of_kind("input", "activation", "output-gradient", "gradient"):
            by_place.setdefault((row.step, row.name, row.kind), []).append((row, watched))
    for rows in by_place.values():
        ordered = sorted(rows, key=lambda pair: pair[0].largest)
        (most, watched), middle = ordered[-1], ordered[(len(ordered) - 1) // 2][0]
        if middle.largest > 0 and math.log2(most.largest / middle.largest) > limits.apart:
            text = (
                f"the {_words(most.kind)} {most.name} reaches {most.largest:.4g} on process "
                f"{watched.rank} and {middle.largest:.4g} on others"
            )
            yield _of_row("rank-apart", most, watched, text)


_RULES: tuple[Rule, ...] = (
    _epsilon, _not_finite, _scale_too_high, _rank_apart, _router, _exploding, _outlier, _near_limit,
    _vanished, _dead_output, _lost_update,
)  # fmt: skip
_WORDS: dict[Kind, str] = {
    "input": "input of",
    "weight": "weight",
    "activation": "output of",
    "output-gradient": "gradient of the output of",
    "gradient": "gradient of",
    "update": "update of",
}


def _words(kind: Kind) -> str:
    return _WORDS[kind]


def _finding(  # noqa: PLR0913, PLR0917 - what a finding is
    fault: Fault, name: str, kind: Kind, step: int, ranks: tuple[int, ...], text: str
) -> Finding:
    return Finding(fault=fault, name=name, kind=kind, step=step, ranks=ranks, text=text)


def _of_row(fault: Fault, row: Row, watched: Watched, text: str) -> Finding:
    return _finding(fault, row.name, row.kind, row.step, (watched.rank,), text)


def _of_ranks(seen: Seen, ranks: tuple[int, ...]) -> str:
    if len(seen.ranks) == 1:
        return ""
    if len(ranks) == len(seen.ranks):
        return ", on all processes"
    noun = "processes" if len(ranks) > 1 else "process"
    return f", {noun} {', '.join(map(str, ranks))} of {len(seen.ranks)}"


def _powers(steps: list[ScaleStep]) -> str:
    low, high = min(s.scale for s in steps), max(s.scale for s in steps)
    return f"{low:g} to {high:g}" if low < high else f"{low:g}"
