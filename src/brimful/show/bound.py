"""The answer where a run can neither be predicted nor simulated: what it needs at least."""

from typing import NamedTuple

from brimful.cost.least import Least, Spread, least_on_device
from brimful.show.predicted import job_words, short_gpu
from brimful.show.summary import Fact, Meter, Summary, Verdict, on_each
from brimful.units import format_bytes, format_count, format_seconds
from brimful.values.job import Job


class Bounded(NamedTuple):
    """What is known of a run without a formula.

    Attributes:
        job: What is trained.
        num_parameters: Of its model.
        gpu: What its maker calls the GPU.
        usable_bytes: What a program can allocate on one.
        least: What there is at least, of all together.
        spread: How evenly.
        tokens_per_s: That pass at most, if nothing but matrix products took time; None: unknown.
    """

    job: Job
    num_parameters: int
    gpu: str
    usable_bytes: int
    least: Least
    spread: Spread
    tokens_per_s: float | None


def bound_summary(known: Bounded, beside: tuple[Fact, ...]) -> Summary:
    """Say what a run needs at least, and whether that alone excludes it."""
    each = least_on_device(known.least, known.spread)
    verdict: Verdict = "NO" if each.total > known.usable_bytes else "UNKNOWN"
    num = known.spread.num_devices
    return Summary(
        verdict,
        f"{job_words(known.job)} on {num} x {short_gpu(known.gpu)}",
        on_each(Meter(each.total, known.usable_bytes, "at least"), num),
        (
            Fact("at least", _parts(known, each)),
            Fact("left out", "activations and buffers, of which nothing is known: this is no FITS"),
            *_needed(known, each),
            *_host(known),
            *beside,
            *_speed(known),
        ),
    )


def _parts(known: Bounded, each: Least) -> str:
    named = {
        "parameters": each.parameters,
        "gradients": each.gradients,
        "optimizer state": each.optimizer_state,
    }
    words = ", ".join(f"{name} {format_bytes(size)}" for name, size in named.items() if size)
    each_takes = f"{known.least.total / known.num_parameters:.3g} bytes each"
    number = format_count(known.num_parameters)
    return f"{words}, of {number} parameters, {each_takes}{_shared(known.spread)}"


def _shared(spread: Spread) -> str:
    if spread.num_devices == 1:
        return ""
    states = (spread.parameters, spread.gradients, spread.optimizer_state)
    stage = sum(each > spread.cut for each in states)  # each stage of ZeRO shards one more
    cut = f", cut over {spread.cut} GPUs" if spread.cut > 1 else ""
    if stage:
        return f"{cut}, sharded as by ZeRO-{stage}"
    return cut or ", whole on each"


def _needed(known: Bounded, each: Least) -> tuple[Fact, ...]:
    """Say how many of these GPUs there have to be, where there are too few."""
    if each.total <= known.usable_bytes or known.spread.parameters == known.spread.cut:
        return ()
    return needed_facts(known.least, known.usable_bytes, known.spread.num_devices)


def needed_facts(least: Least, usable_bytes: int, num_devices: int) -> tuple[Fact, ...]:
    """Say how many GPUs have room for a run's states; nothing where there are as many."""
    number = -(-least.total // max(1, usable_bytes))
    if number <= num_devices:
        return ()
    states = f"parameters, gradients and optimizer state are {format_bytes(least.total)} together"
    return (Fact("needs", f"{number:,} of these GPUs or more: {states}"),)


def _host(known: Bounded) -> tuple[Fact, ...]:
    if not known.spread.is_offloaded:
        return ()
    away = known.least.gradients + known.least.optimizer_state + known.spread.parameters_away
    return (
        Fact("host", f"{format_bytes(away)} or more in the CPUs' memory, of all GPUs together"),
    )


def _speed(known: Bounded) -> tuple[Fact, ...]:
    if known.tokens_per_s is None:
        return ()
    rate = f"{known.tokens_per_s:,.0f} tokens/s"
    step = format_seconds(known.job.tokens_per_step / known.tokens_per_s)
    why = "matrix products alone, at the data sheet's rate"
    return (Fact("speed", f"at most {rate}, {step} or more a step: {why}"),)
