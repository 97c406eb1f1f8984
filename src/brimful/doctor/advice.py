"""What to do about the numbers of a run: one line per question, each with what it rests on.

No torch. Advice is given on healthy runs as well; what is wrong is ``findings``' to say.
"""

import math
import re
import statistics
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from brimful.doctor.formats import FORMATS, SIXTEEN_BITS, FormatName
from brimful.doctor.records import BATCH, LOSS, Kind, Row
from brimful.doctor.seen import Seen
from brimful.doctor.spectrum import Spectrum, added
from brimful.values.job import LossScale

Topic = Literal[
    "initial scale", "scale rule", "keep fp32", "clip", "16-bit format", "masters", "fp8"
]


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One recommendation.

    Attributes:
        topic: What it is about.
        text: What to do, and the numbers that say so.
        names: Modules that it is about; empty: the run.
        value: What to set, where it is a number.
    """

    topic: Topic
    text: str
    names: tuple[str, ...] = ()
    value: float | None = None


BAD_SHARE = 0.15
"""Steps of a trial that may overflow; growth and backoff keep a scale at the edge anyway."""
MOST_SKIPPED = 0.02
"""Steps that a scale at the edge may cost: one in every growth interval."""
SAFE_DOUBLINGS = 3.0
"""An activation that is nearer to fp16's largest number is one bad batch away from it."""
VANISHED = 0.01
"""Share of an fp8 tensor that may become 0."""
_RAGGED = 4.0
"""Largest gradient norm over the middle one, from where on a clip acts on rare steps only."""
_NOT_LINEAR = re.compile(r"embed|norm|ln_|lm_head|wte|wpe|score|classifier|router", re.IGNORECASE)
_LOGITS = re.compile(r"(lm_head|score|classifier|router|gate)$")
_SHOWN = 3
_NO_MODULES = frozenset({BATCH, LOSS})


def advise(
    seen: Seen,
    *,
    loss_scale: LossScale | None,
    num_steps: int,
    clip: float,
    bad_share: float = BAD_SHARE,
) -> tuple[Advice, ...]:
    """Answer every question that the numbers have an answer to.

    ``clip``: of the job; 0: none.
    """
    found: list[Advice] = []
    if loss_scale is not None:
        found += _initial_scale(seen, loss_scale, bad_share)
        found += _scale_rule(seen, loss_scale, num_steps)
    found += _keep_fp32(seen)
    found += _clip(seen, clip)
    found += _sixteen_bits(seen)
    found += _masters(seen)
    found += _fp8(seen)
    return tuple(found)


def _initial_scale(seen: Seen, now: LossScale, bad_share: float) -> Iterator[Advice]:
    if not seen.trials:
        return
    tried = ", ".join(f"{_power(t.scale)}: {t.num_bad} of {t.num}" for t in seen.trials)
    borne = [t.scale for t in seen.trials if t.bad_share <= bad_share]
    if not borne:
        text = f"none from 2^8 to 2^24 is borne (steps that overflow: {tried}); use a bf16 recipe"
        yield Advice(topic="initial scale", text=text)
        return
    best = max(borne)
    text = (
        f"{best:g} = {_power(best)}, now {now.initial_scale:g}: the largest at which at most "
        f"{bad_share:.0%} of the steps overflow (steps that overflow: {tried})"
    )
    yield Advice(topic="initial scale", text=text, value=best)


def _scale_rule(seen: Seen, now: LossScale, num_steps: int) -> Iterator[Advice]:
    scales = seen.ranks[0].scales
    skipped = sum(step.skipped for step in scales)
    interval = max(math.ceil(1 / MOST_SKIPPED), min(now.growth_interval, num_steps // 10))
    text = (
        f"growth_factor {now.growth_factor:g}, backoff_factor {now.backoff_factor:g}: {skipped} of "
        f"{len(scales)} steps were skipped; growth_interval {interval}, now {now.growth_interval}: "
        f"a scale at the edge costs one step in {interval}"
    )
    if now.growth_interval >= num_steps:
        text += f", and in {num_steps} steps it would never grow back"
    yield Advice(topic="scale rule", text=text, value=float(interval))


def _keep_fp32(seen: Seen) -> Iterator[Advice]:
    norms = _largest(seen, "input", lambda row: row.largest**2 > FORMATS["fp16"].largest)
    if norms:
        name, row = next(iter(norms.items()))
        text = (
            f"the variance of {_names(norms)}: {name} is given {row.largest:.4g}, whose square "
            f"{row.largest**2:.4g} is more than fp16's 65504{_flag(norms)}"
        )
        yield Advice(topic="keep fp32", text=text, names=tuple(norms))
    logits = _largest(seen, "activation", lambda row: bool(_LOGITS.search(row.name)))
    if logits:
        name, row = next(iter(logits.items()))
        text = (
            f"softmax and loss over {_names(logits)}: logits of {row.largest:.4g} are "
            f"{_resolution('bf16', row.largest):.2g} apart in bf16 and "
            f"{_resolution('fp16', row.largest):.2g} in fp16{_flag(logits)}"
        )
        yield Advice(topic="keep fp32", text=text, names=tuple(logits))
    narrow = _largest(seen, "activation", lambda row: _room(row) < SAFE_DOUBLINGS)
    if narrow:
        name, row = next(iter(narrow.items()))
        text = (
            f"{_names(narrow)}: {name} returns {row.largest:.4g}, {_room(row):.1f} doublings below "
            f"65504{_flag(narrow)}"
        )
        yield Advice(topic="keep fp32", text=text, names=tuple(narrow))


def _clip(seen: Seen, clip: float) -> Iterator[Advice]:
    if not seen.grad_norms:
        return
    middle, most = statistics.median(seen.grad_norms), max(seen.grad_norms)
    numbers = f"the gradient norm was {middle:.3g} in the middle and {most:.3g} at most"
    acts = sum(norm > clip for norm in seen.grad_norms) if clip else 0
    now = f"{clip:g} acts on {acts} of {len(seen.grad_norms)} steps" if clip else "there is none"
    if middle > 0 and most > _RAGGED * middle:
        value = float(f"{2 * middle:.2g}")
        text = f"{value:g}, twice the middle, leaves all but rare steps alone: {numbers}; {now}"
        yield Advice(topic="clip", text=text, value=value)
        return
    yield Advice(topic="clip", text=f"as it is: {numbers}; {now}", value=clip)


def _sixteen_bits(seen: Seen) -> Iterator[Advice]:
    rows = [r for w in seen.ranks for r in w.of_kind("activation") if r.largest > 0]
    if not rows:
        return
    row = max(rows, key=lambda r: r.largest)
    room = _room(row)
    lost = seen.compared.vanished() if seen.compared is not None else {}
    worst = max(lost, key=lambda place: lost[place], default=None)
    evidence = f"the largest activation is {row.largest:.4g} in {row.name}, {room:.1f} doublings"
    evidence += " below fp16's 65504"
    if worst is not None:
        evidence += f"; at most {lost[worst]:.1%} of a tensor vanishes ({worst[0]})"
    scales = seen.ranks[0].scales
    skipped = sum(s.skipped for s in scales) / max(len(scales), 1)
    if seen.is_scaled:
        evidence += f"; {skipped:.0%} of {len(scales)} steps were skipped"
    safe = room >= SAFE_DOUBLINGS and skipped <= BAD_SHARE
    told = "fp16 and bf16 both hold the range" if safe else "bf16 would be safer than fp16"
    yield Advice(topic="16-bit format", text=f"{told}: {evidence}")


def _masters(seen: Seen) -> Iterator[Advice]:
    lost = [x for watched in seen.ranks for x in watched.lost]
    moved = sum(x.num_moved for x in lost)
    if not moved:
        return
    own = sum(x.num_lost for x in lost) / max(sum(x.num for x in lost), 1)
    shares = {n: sum(x.num_lost_in[n] for x in lost) / moved for n in SIXTEEN_BITS}
    held = lost[0].held
    # Of what is held in one of them only what arrives there is known, and none of that is lost.
    others = [f"{shares[n]:.1%} in {n}" for n in shares if FORMATS[n].torch_name != held]
    text = f"updates go to {held} and {own:.1%} of them are lost; of those that arrive there would "
    text += f"be lost, without fp32 underneath, {' and '.join(others)}"
    yield Advice(topic="masters", text=text, value=shares["bf16"])


def _fp8(seen: Seen) -> Iterator[Advice]:
    """Ask whether weights and outputs fit e4m3 and gradients e5m2, each with its own scale."""
    shares = _fp8_shares(seen)
    if not shares:
        return
    good = [name for name, share in shares.items() if share <= VANISHED]
    worst = max(shares, key=lambda name: shares[name])
    text = (
        f"plausible for {len(good)} of {len(shares)} linear layers: with a scale per tensor at "
        f"most {VANISHED:.0%} of weights and outputs vanish in e4m3 and of gradients in e5m2; the "
        f"worst is {worst} with {shares[worst]:.1%}{_fp8_flags(shares)}"
    )
    yield Advice(topic="fp8", text=text, names=tuple(good), value=len(good) / len(shares))


def _fp8_flags(shares: dict[str, float]) -> str:
    """Say what to type: the recipe where most layers bear it, without those that do not."""
    bad = dict.fromkeys(_kind(name) for name, share in shares.items() if share > VANISHED)
    if 2 * sum(share > VANISHED for share in shares.values()) >= len(shares):
        return ""
    return f"; --precision fp8 --keep-fp32 {','.join(bad)}" if bad else "; --precision fp8"


def _fp8_shares(seen: Seen) -> dict[str, float]:
    """Return the largest share that vanishes, of the weight, output and gradient of each layer."""
    kinds: tuple[tuple[Kind, str, FormatName], ...] = (
        ("weight", ".weight", "e4m3"), ("activation", "", "e4m3"), ("output-gradient", "", "e5m2"),
    )  # fmt: skip
    by_layer: dict[str, dict[Kind, float]] = {}
    for kind, suffix, name in kinds:
        totals: dict[str, Spectrum] = {}
        for row in (r for watched in seen.ranks for r in watched.of_kind(kind)):
            if row.name.endswith(suffix) and not _NOT_LINEAR.search(row.name):
                layer = row.name.removesuffix(suffix) if suffix else row.name
                totals[layer] = added(totals.get(layer, Spectrum()), row.spectrum)
        for layer, spectrum in totals.items():
            by_layer.setdefault(layer, {})[kind] = _fp8_share(spectrum, name)
    return {name: max(of.values()) for name, of in by_layer.items() if len(of) == len(kinds)}


def _fp8_share(spectrum: Spectrum, name: FormatName) -> float:
    """Return what vanishes once the largest number is scaled to the format's largest."""
    exponents = spectrum.exponents()
    if not exponents:
        return 0.0
    shift = math.frexp(FORMATS[name].largest)[1] - 1 - max(exponents)
    return spectrum.vanishing(FORMATS[name], shift=shift) / max(spectrum.num_nonzero, 1)


def _largest(seen: Seen, kind: Kind, holds: Callable[[Row], bool]) -> dict[str, Row]:
    """Return the row of the largest number of each module for which something holds."""
    found: dict[str, Row] = {}
    for row in (r for watched in seen.ranks for r in watched.of_kind(kind)):
        if holds(row) and (row.name not in found or row.largest > found[row.name].largest):
            found[row.name] = row
    return dict(sorted(found.items(), key=lambda pair: -pair[1].largest))


def _room(row: Row) -> float:
    room = row.headroom("fp16")
    return math.inf if room is None else room


def _resolution(name: FormatName, value: float) -> float:
    """Return how far apart two neighbours of a format are at a magnitude."""
    exponent = math.frexp(value)[1] - 1 if value > 0 else FORMATS[name].least_exponent
    return float(2.0 ** (max(exponent, FORMATS[name].least_exponent) - FORMATS[name].mantissa_bits))


def _names(rows: dict[str, Row]) -> str:
    names = list(rows)
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _flag(rows: dict[str, Row]) -> str:
    """Say what to type, by the kinds of modules: what a block has, every block has."""
    kinds = dict.fromkeys(_kind(name) for name in rows if name not in _NO_MODULES)
    return f"; --keep-fp32 {','.join(kinds)}" if kinds else ""


def _kind(name: str) -> str:
    """Return the last part of a path, with what is before it where that is a number."""
    parts = name.split(".")
    return ".".join(parts[-2:]) if parts[-1].isdigit() else parts[-1]


def _power(scale: float) -> str:
    return f"2^{math.log2(scale):g}"
