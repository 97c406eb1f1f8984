"""Other settings beside those that were asked about, each with its figure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from brimful.cost.reserved import predicted_reserved
from brimful.hardware.cluster import Cluster
from brimful.hardware.datasheets import datasheets
from brimful.search.against import Against, against
from brimful.search.beside import Beside, Fix, used_bytes
from brimful.search.typed import fix_words
from brimful.search.ways_out import WayOut
from brimful.show.predicted import meter_of
from brimful.show.run import rate_words
from brimful.show.settings import differing_words
from brimful.show.summary import Fact
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.units import GIB, format_bytes
from brimful.values.job import FP8, QAT, Job
from brimful.values.plan import Estimate
from brimful.values.strategy import Strategy

if TYPE_CHECKING:
    from brimful.simulate.fixes import SimulatedFix

WOULD_FIT = "would fit"
"""Before other settings on the same GPUs that hold by their replay."""
NUM_TOLD = 3
SPREADS = frozenset({"pp", "zero=0", "zero=1", "zero=2", "zero=3"})
_SAME_BATCH = frozenset({"loss_chunks", "checkpointing"})
"""Settings that change neither the batch nor how a run is spread."""
MUCH = 0.1
"""Of a peak, from which what such a setting saves is told of what fits."""
LEAST_PERCENT = 2
"""Of the speed: what is faster or slower by less is as fast."""
LEAST_SHARE = 0.02
"""Of the peak: what changes less is not named."""


def spread_facts(
    job: Job, cluster: Cluster, strategy: Strategy, estimate: Estimate, others: Sequence[Beside]
) -> tuple[Fact, ...]:
    """Say what a run would take with the neighbouring stages of ZeRO, or without its pipeline.

    And with what saves most of what changes neither its batch nor how it is spread.

    Of one that does not fit they are among the others, in the order of what they save.
    """
    if not estimate.fits:
        return ()
    spread = sorted(
        (each for each in others if each.setting in SPREADS), key=lambda each: _peak(each.made)
    )
    words = [f"{_spread_words(each)} {_figure(job, cluster, each, estimate)}" for each in spread]
    if words:
        words += [
            f"{', '.join(differing_words(job, strategy, each.strategy))} "
            f"{_figure(job, cluster, each, estimate)}"
            for each in _leanest(estimate, others)
        ]
    return (Fact("or with", ", ".join(words)),) if words else ()


def _leanest(estimate: Estimate, others: Sequence[Beside]) -> list[Beside]:
    """Return what saves most of a peak beside how a run is spread, where that is much of it."""
    same = [each for each in others if each.setting in _SAME_BATCH]
    least = min(same, key=lambda each: _peak(each.made), default=None)
    is_much = least is not None and _peak(least.made) < (1 - MUCH) * _peak(estimate)
    return [least] if least is not None and is_much else []


def _spread_words(other: Beside) -> str:
    zero = f"ZeRO-{other.strategy.zero}" if other.strategy.zero else "DDP"
    return f"no pipeline but {zero}" if other.setting == "pp" else zero


def beside_facts(
    job: Job, cluster: Cluster, strategy: Strategy, estimate: Estimate, others: Sequence[Beside]
) -> tuple[Fact, ...]:
    """Say what a run would take with one setting changed: of each setting the leanest value.

    Of one that does not fit: what saves anything, the most first.

    ``others``: the same with one setting changed; how it is spread is not said here of what fits.
    """
    peak_bytes, fits = _peak(estimate), estimate.fits
    least: dict[str, Beside] = {}
    for each in others:
        at_least = least.get(each.setting)
        if at_least is None or _peak(each.made) < _peak(at_least.made):
            least[each.setting] = each
    most = LEAST_SHARE * peak_bytes
    if fits:
        near = [each for each in least.values() if each.setting not in SPREADS]
        differing = [each for each in near if abs(_peak(each.made) - peak_bytes) > most]
    else:
        differing = [each for each in least.values() if peak_bytes - _peak(each.made) > most]
    differing.sort(key=lambda each: _peak(each.made))
    words = [
        f"{', '.join(differing_words(job, strategy, each.strategy))}: "
        f"{_figure(job, cluster, each, estimate)}"
        for each in differing[:NUM_TOLD]
    ]
    return (Fact("or with", "; ".join(words)),) if words else ()


class Known(NamedTuple):
    """What is known of a run, whatever found it.

    Attributes:
        peak_bytes: Of live tensors.
        step_s: Of a step, predicted; None: unknown.
        fits: Whether it fits.
        used_bytes: Of all that its allocator holds, as it is told; None: live tensors are.
    """

    peak_bytes: int
    step_s: float | None
    fits: bool
    used_bytes: int | None = None


def against_facts(
    job: Job, cluster: Cluster, strategy: Strategy, known: Known, *, same_method: bool = False
) -> tuple[Fact, ...]:
    """Say what the same run takes as it is usually done, and how fast it is then.

    Of one that does not fit only what takes less is said.

    ``same_method``: whether nothing is said of other methods, for which other settings would do; of
    training that rounds its weights the same without that is.
    """
    every = against(job, cluster, strategy)
    told = [
        each
        for each in every
        if (known.fits or _peak(each.made) < known.peak_bytes)
        and (each.job.method == job.method or not same_method or job.method == QAT)
    ]
    words = [
        f"{each.words}: {_differs_words(cluster, strategy, known, each)}"
        f"{_faster_words(job, known, each, cluster)}{_cast_words(job, strategy, known, each)}"
        for each in told[:NUM_TOLD]
    ]
    return (Fact("against", "; ".join(words)),) if words else ()


def _differs_words(cluster: Cluster, strategy: Strategy, known: Known, other: Against) -> str:
    """Say what another run takes more with the same settings, and where that is too much.

    Of the same memory as is told of what is known.
    """
    ours, fits = known.used_bytes, other.made.fits
    reserved = None if ours is None else predicted_reserved(other.job, cluster, strategy)
    if ours is None or reserved is None:
        more = _peak(other.made) - known.peak_bytes
    else:
        fits = fits and reserved.word != "no"
        more = reserved.told_bytes - ours
    return f"{_more_words(more)}{', too much with these settings' * (known.fits and not fits)}"


def _more_words(more_bytes: int) -> str:
    if not more_bytes:
        return "as much memory"
    return f"{format_bytes(abs(more_bytes))} {'more' if more_bytes > 0 else 'less'}"


def _faster_words(job: Job, known: Known, other: Against, cluster: Cluster) -> str:
    """Say by how much another run is faster or slower; nothing where that is as good as none."""
    if not other.made.predicted_step_s:
        return ""
    if not known.step_s:
        rate = rate_words(other.job, other.made.predicted_step_s)
        return f", {rate}{_at_most(job, other, cluster)}"
    percent = round(100 * (known.step_s / other.made.predicted_step_s - 1))
    if abs(percent) < LEAST_PERCENT:
        return ""
    return f", {abs(percent)}% {'faster' if percent > 0 else 'slower'}"


def _cast_words(job: Job, strategy: Strategy, known: Known, other: Against) -> str:
    """Say why products in fp8 are slower than others, where they are."""
    step_s = other.made.predicted_step_s
    if job.precision != FP8 or strategy.compile != "none" or not known.step_s or not step_s:
        return ""
    slow = other.job.precision != FP8 and known.step_s > step_s
    return " (casts to fp8 are kernels of their own without --compile blocks)" * slow


def _at_most(job: Job, other: Against, cluster: Cluster) -> str:
    """Say of a recipe whose time is unknown how fast its step is at most.

    That is another recipe's step with all matrix products as much faster as the data sheet says.
    """
    sheet, time = datasheets().get(cluster.device.name), other.made.predicted_step_time
    if sheet is None or time is None or job.precision == other.job.precision:
        return ""
    fast, slow = (
        getattr(sheet.matrix_flops_per_s, each.precision.partition("-")[0], None)
        for each in (job, other.job)
    )
    if not fast or not slow:
        return ""
    gained_s = time.matrix_s * (1 - slow / fast)
    return (
        f"; {job.precision}'s speed is not known: at most "
        f"{rate_words(other.job, time.total_s - gained_s)}, were all matrix products "
        f"{fast / slow:.2g} x as fast, as by the data sheet, and nothing else"
    )


def _figure(job: Job, cluster: Cluster, other: Beside, estimate: Estimate) -> str:
    """Say a peak beside one that does not fit, else by how much it differs.

    That is of what a device holds, as the answer above says it, or of tensors where that does.
    """
    if not estimate.fits:
        return format_bytes(_peak(other.made))
    ours = None if estimate.predicted_reserved is None else meter_of(estimate).used_bytes
    its = None if ours is None else used_bytes(job, cluster, other.strategy)
    if ours is None or its is None:
        return _more_words(_peak(other.made) - _peak(estimate))
    return _more_words(its - ours)


def fix_facts(
    job: Job, strategy: Strategy, found: Fix | None, ways: Sequence[WayOut]
) -> tuple[Fact, ...]:
    """Say what would make it fit, as it is typed.

    ``strategy``: what does not fit. ``found``: what of other settings does; None: nothing.
    """
    facts = []
    if found is not None:
        typed = fix_words(job, strategy, found.strategy)
        used = format_bytes(held_bytes(found.made))
        host = on_host(found.made, found.strategy)
        both = f"{used} of {format_bytes(found.made.usable_bytes)}{host}"
        facts.append(Fact(WOULD_FIT, f"{typed}: {both}{_rate(job, found.made)}"))
    for label, exact in (("or allow", False), ("instead", True)):
        these = [way for way in ways if way.is_exact == exact]
        facts += [
            Fact("" if number else label, way.words, way.short) for number, way in enumerate(these)
        ]
    return tuple(facts)


def simulated_fix_facts(job: Job, strategy: Strategy, found: "SimulatedFix") -> tuple[Fact, ...]:
    """Say what holds when it is simulated.

    ``strategy``: what does not hold.
    """
    words = [f"--gpus {found.gpus}"] if found.gpus else []
    if found.strategy != strategy:
        words += differing_words(job, strategy, found.strategy)
    used = format_bytes(found.reserved.simulated_peak_reserved_bytes)
    both = f"{used} of {format_bytes(found.reserved.capacity_bytes)}, simulated"
    return (Fact(WOULD_FIT, f"{', '.join(words)}: {both}"),)


def limit_facts(job: Job, strategy: Strategy, lean: Strategy, limit_bytes: int) -> tuple[Fact, ...]:
    """Say under which limit a job would fit.

    ``strategy``: what does not fit.
    """
    differing = ", ".join(differing_words(job, strategy, lean))
    limit = f"--memory-limit {limit_bytes / GIB:g}GiB"
    return (Fact("instead", f"{limit} would fit, with {differing}"),)


def held_bytes(made: Estimate) -> int:
    """Return what the allocator holds where that was replayed, else the peak of tensors."""
    reserved = made.predicted_reserved
    return _peak(made) if reserved is None else reserved.predicted_peak_reserved_bytes


def _peak(made: Estimate) -> int:
    return made.predicted_peak_allocated_bytes


def on_host(made: Estimate, strategy: Strategy) -> str:
    """Say what training takes of a node's host where something is kept there; else nothing.

    By which it is told whether that has room: what saving takes more, other programs do not.
    """
    host = made.host
    if host is None or strategy.offload == NO_OFFLOAD:
        return ""
    has = f" of {format_bytes(host.usable_bytes)}" if host.usable_bytes else ""
    return f", {format_bytes(host.predicted_training_bytes)}{has} on the host"


def _rate(job: Job, made: Estimate) -> str:
    return "" if made.predicted_step_s is None else f", {rate_words(job, made.predicted_step_s)}"
