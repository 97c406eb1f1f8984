"""The answer to ``simulate``: what a plan's own code takes on the pretend GPU."""

from collections.abc import Sequence

from brimful.cost.estimate import limit_bytes
from brimful.show.beside import Known, against_facts
from brimful.show.estimate import largest_facts
from brimful.show.managed import paged_facts
from brimful.show.predicted import TENSORS_ALONE, replayed_meter, subject_words, tight_facts
from brimful.show.settings import settings_words
from brimful.show.summary import LOWER_BOUND, VERDICTS, Fact, Meter, Summary, at_least, on_each
from brimful.units import format_bytes, format_signed_percent
from brimful.values.plan import PhasePeak, Plan, Word
from brimful.values.results import EVAL, RESUME, SAVE, Reserved, Simulation
from brimful.values.unknown_memory import unknown_words


def simulate_summary(
    plan: Plan,
    simulation: Simulation,
    word: Word,
    beside: tuple[Fact, ...] = (),
    *,
    is_alike: bool = True,
) -> Summary:
    """Say what a simulation says.

    ``plan``: what was simulated, with its prediction where there is one. ``beside``: what would
    make it fit, and what it takes with other settings. ``is_alike``: whether what is predicted is
    of the same routing.
    """
    reserved = simulation.reserved
    num, kernels = plan.cluster.num_devices, plan.cluster.device.kernels
    meter = on_each(_meter(plan, simulation), num, kernels)
    is_bound = bool(simulation.unknown_ops) and word != "no"
    bound = f"{LOWER_BOUND} " if is_bound else ""
    return Summary(
        VERDICTS[word],
        f"{bound}{subject_words(plan.job, plan.cluster)}",
        at_least(meter) if is_bound else meter,
        (
            *failed_facts(reserved),
            *tight_facts(reserved),
            *(unknown_facts(simulation.unknown_ops, meter) if is_bound else ()),
            *_phase_facts(simulation.phases),
            Fact("settings", ", ".join(settings_words(plan.job, plan.strategy))),
            *paged_facts(plan.job, plan.cluster, plan.strategy, _meter(plan, simulation)),
            *beside,
            *largest_facts(
                simulation.items,
                None if reserved is None else reserved.simulated_peak_reserved_bytes,
            ),
            *_against(plan, simulation, word),
            *(_tensors(plan, simulation) if is_alike else ()),
        ),
    )


def _tensors(plan: Plan, simulation: Simulation) -> tuple[Fact, ...]:
    made = plan.estimate
    predicted = None if made is None else made.predicted_peak_allocated_bytes
    return beside_facts(simulation.simulated_peak_allocated_bytes, predicted)


def _phase_facts(phases: Sequence[PhasePeak]) -> tuple[Fact, ...]:
    """Say which phase has the most tensors, where more than steps were simulated."""
    if not {each.phase for each in phases} & {EVAL, SAVE, RESUME}:
        return ()
    words = ", ".join(f"{each.phase} {format_bytes(each.num_bytes)}" for each in phases)
    return (Fact("phases", f"tensors in {words}"),)


def _against(plan: Plan, simulation: Simulation, word: Word) -> tuple[Fact, ...]:
    """Say of a run without a formula what the usual one takes, where that has one."""
    if plan.estimate is not None:
        return ()
    known = Known(simulation.simulated_peak_allocated_bytes, None, word != "no")
    return tuple(
        Fact(fact.label, f"{fact.text} (predicted)")
        for fact in against_facts(plan.job, plan.cluster, plan.strategy, known)
    )


def _meter(plan: Plan, simulation: Simulation) -> Meter:
    reserved = simulation.reserved
    if reserved is None:
        peak = simulation.simulated_peak_allocated_bytes
        return Meter(peak, limit_bytes(plan), f"simulated{TENSORS_ALONE}")
    return replayed_meter(reserved)


def failed_facts(reserved: Reserved | None) -> tuple[Fact, ...]:
    """Say which request fails; nothing where none does."""
    if reserved is None or not reserved.where:
        return ()
    short = format_bytes(reserved.short_bytes)
    return (
        Fact("fails", f"in {reserved.where}, short by {short} at that request{_made(reserved)}"),
    )


def _made(reserved: Reserved) -> str:
    """Say where a first forward pass fails that there is state already."""
    is_first = reserved.where.startswith("step 1 forward")
    return "; optimizer state is made before step 1" if is_first else ""


def unknown_facts(ops: Sequence[str], meter: Meter) -> tuple[Fact, ...]:
    """Say of which kernels nothing is known, and how much is left for them."""
    left = meter.usable_bytes - meter.used_bytes
    return (Fact("unknown", unknown_words(ops, left), unknown_words(ops, left, most=1)),)


def beside_facts(simulated_bytes: int, predicted_bytes: int | None) -> tuple[Fact, ...]:
    """Lay the peak of live tensors beside the predicted one."""
    words = f"simulated {format_bytes(simulated_bytes)}"
    if predicted_bytes is None:
        return (Fact("tensors", f"peak {words}; not predicted: this job has no formula"),)
    error = format_signed_percent(simulated_bytes, predicted_bytes)
    return (Fact("tensors", f"peak {words}, predicted {format_bytes(predicted_bytes)} ({error})"),)
