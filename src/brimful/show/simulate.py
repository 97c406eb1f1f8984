"""The answer to ``simulate``: what a plan's own code takes on the pretend GPU."""

from brimful.cost.estimate import limit_bytes
from brimful.plan import Plan, Word
from brimful.rungs import Reserved, Simulation
from brimful.show.estimate import largest_facts
from brimful.show.predicted import TENSORS_ALONE, replayed_meter, subject_words, tight_facts
from brimful.show.settings import settings_words
from brimful.show.summary import LOWER_BOUND, VERDICTS, Fact, Meter, Summary
from brimful.units import format_bytes, format_signed_percent
from brimful.unknown_memory import named_statement


def simulate_summary(
    plan: Plan, simulation: Simulation, word: Word, beside: tuple[Fact, ...] = ()
) -> Summary:
    """Say what a simulation says.

    Args:
        plan: What was simulated, with its prediction where there is one.
        simulation: What came of it.
        word: Whether it holds.
        beside: What would make it fit, and what it takes with other settings.
    """
    reserved = simulation.reserved
    bound = f"{LOWER_BOUND} " if simulation.unknown_ops else ""
    return Summary(
        VERDICTS[word],
        f"{bound}{subject_words(plan.job, plan.cluster)}",
        _meter(plan, simulation),
        (
            *failed_facts(reserved),
            *tight_facts(reserved),
            *_unknown(simulation),
            Fact("settings", ", ".join(settings_words(plan.job, plan.strategy))),
            *beside,
            *largest_facts(
                simulation.items,
                None if reserved is None else reserved.simulated_peak_reserved_bytes,
            ),
            *beside_facts(
                simulation.simulated_peak_allocated_bytes,
                plan.estimate.predicted_peak_allocated_bytes if plan.estimate else None,
            ),
        ),
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


def _unknown(simulation: Simulation) -> tuple[Fact, ...]:
    """Say that the peak is a bound where the memory of kernels is not known."""
    if not simulation.unknown_ops:
        return ()
    peak = simulation.simulated_peak_allocated_bytes
    return (Fact("at least", named_statement(peak, simulation.unknown_ops)),)


def beside_facts(simulated_bytes: int, predicted_bytes: int | None) -> tuple[Fact, ...]:
    """Lay the peak of live tensors beside the predicted one."""
    words = f"simulated {format_bytes(simulated_bytes)}"
    if predicted_bytes is None:
        return (Fact("live peak", f"{words}; not predicted: this job has no formula"),)
    error = format_signed_percent(simulated_bytes, predicted_bytes)
    return (Fact("live peak", f"{words}, predicted {format_bytes(predicted_bytes)} ({error})"),)
