"""How fast a run goes, how long it takes, and what it costs, each in a line."""

from typing import NamedTuple

from brimful.cost.assumptions import around
from brimful.cost.efficiency import efficiency_of, matrix_type
from brimful.cost.money import Cost
from brimful.hardware.cluster import Cluster, matrix_rate
from brimful.show.predicted import offloaded_bytes
from brimful.show.summary import Fact
from brimful.show.terminal import LABEL_WIDTH, WIDTH
from brimful.units import format_count, format_days, format_money, format_range, format_seconds
from brimful.values.job import Job
from brimful.values.plan import Estimate, StepTime
from brimful.values.task_words import is_per_sample, noun

DAY_H = 24.0
LEAST_WAITING = 0.1
"""Of a step, from which waiting for the host is told."""
LEAST_SHARE = 0.005
"""Below which a share rounds to nothing."""
_BILLION, _MILLION = 1e9, 1e6


class RunFacts(NamedTuple):
    """What is said of the speed, the time and the money of a run.

    Attributes:
        fitting: Where it fits.
        would_be: Where it has no room.
    """

    fitting: tuple[Fact, ...] = ()
    would_be: tuple[Fact, ...] = ()


def speed_facts(  # noqa: PLR0913 - a speed, and what is said beside it
    job: Job,
    estimate: Estimate | None,
    step_s: float | None,
    *,
    cluster: Cluster,
    network_share: float | None = None,
    is_staged: bool = False,
    scores_s: float = 0.0,
) -> tuple[Fact, ...]:
    """Say how fast a step is, with the range of a prediction.

    ``estimate``: what was predicted; None: only the time of a step is known. ``step_s``: seconds
    per optimizer step; None: unknown. ``cluster``: on which it runs; by its rates a step is
    predicted, whoever counted its work, and of several devices it is said what passes on each,
    where there is room. ``network_share``: of a step, that waits for the network
    between nodes; None: there is none, or nobody knows. ``is_staged``: whether it is a pipeline
    that was simulated, which has no time (``simulate.attempt.is_timed``). ``scores_s``: of
    a step, in which eager attention reads and writes its scores; 0: unknown or none.
    """
    device, num_devices = cluster.device, cluster.num_devices
    if step_s is None:
        kind = matrix_type(device, job.precision)
        share = efficiency_of(device).matrix_shares.get(kind)
        is_rated = num_devices > 1 and share and matrix_rate(device, job.precision)
        if is_staged and is_rated:
            return (Fact("speed", "unknown: of a simulated pipeline one device is recorded"),)
        whose = "what links these GPUs" if is_rated else "this GPU in this precision"
        return (Fact("speed", f"unknown: no rates are known of {whose}"),)
    band = around(step_s, device)
    spread = f", {format_range(band.low, band.high)}"
    mfu = None if estimate is None else estimate.mfu
    used = "" if mfu is None else f"; MFU {mfu:.0%}"
    rate, took = rate_words(job, step_s), f" ({format_seconds(step_s)} a step{spread}){used}"
    each = _each_words(job, step_s, num_devices)
    room = WIDTH - LABEL_WIDTH
    has_room = len(f"{rate}{each}{took}") <= room
    words, waits = f"{rate}{each if has_room else ''}{took}", ""
    quick = f"{rate} ({format_seconds(step_s)} a step)"
    short = f"{rate}{took}" if len(f"{rate}{took}") <= room else f"{quick}{used}"
    if network_share is not None:
        network = f"; {_share_words(network_share)} of it waits for the network"
        words += network
        if len(f"{quick}{used}{network}") <= room:
            short = f"{quick}{used}{network}"
        elif network_share >= LEAST_WAITING:
            short = f"{quick}{network}"
    parts = None if estimate is None else estimate.predicted_step_time
    if parts is not None and parts.exposed_s:
        share, is_away = parts.exposed_s / parts.total_s, offloaded_bytes(estimate)
        if share > LEAST_WAITING if is_away else network_share is None:
            whom = "the host" if is_away else "other GPUs"
            waits = f"; {_share_words(share)} of it waits for {whom}"
            short += waits if is_away else ""
    limit = ""
    if parts is not None and (limit := _limit_words(parts)):
        short = f"{quick}{used}{limit}"
        limit += ", mostly eager attention's scores" * (scores_s > parts.memory_s / 2)
    return (Fact("speed", f"{words}{waits}{limit}", short),)


def _limit_words(parts: StepTime) -> str:
    """Say what most of a step goes to where that is neither matrix products nor waiting."""
    share, what = max(
        (parts.memory_s / parts.total_s, "memory traffic"),
        (parts.launch_s / parts.total_s, "launching kernels (a larger micro-batch: less)"),
    )
    if parts.matrix_s >= parts.total_s / 2 or share * parts.total_s <= parts.exposed_s:
        return ""
    return f"; {_share_words(share)} of it is {what}"


def bound_facts(job: Job, cost: Cost, eager_s: float, *, is_length_given: bool) -> tuple[Fact, ...]:
    """Say of what is compiled, whose step has no time here, what it takes without.

    ``cost``: of the run without. ``eager_s``: seconds of an optimizer step without.
    """
    words = f"{rate_words(job, eager_s)} or more: {format_seconds(eager_s)} a step uncompiled"
    speed = Fact("speed", f"{words}, by formula; compiled it has no time here", words)
    run = run_facts(job, cost, is_length_given=is_length_given)
    return (speed, *(Fact(each.label, f"{each.text}, at most") for each in run))


def _share_words(share: float) -> str:
    """Say a share; one that rounds to nothing is there."""
    return "under 1%" if share < LEAST_SHARE else f"{share:.0%}"


def would_be_facts(
    job: Job, cost: Cost, step_s: float | None, *, num_devices: int, is_length_given: bool
) -> tuple[Fact, ...]:
    """Say of what has no room how fast it would be, and how long it would take.

    ``cost``: of the run. ``step_s``: seconds per optimizer step; None: unknown.
    """
    took = took_words(job, cost, is_length_given=is_length_given)
    if step_s is None or not took:
        return ()
    each = _each_words(job, step_s, num_devices)
    return (Fact("would be", f"{rate_words(job, step_s)}{each}; {took}"),)


def _each_words(job: Job, step_s: float, num_devices: int) -> str:
    """Say what passes on each of several devices, behind what does on all."""
    if num_devices == 1:
        return ""
    return f", {rate_words(job, step_s * num_devices).partition(' ')[0]} a GPU"


def rate_words(job: Job, step_s: float) -> str:
    """Say what passes in a second: tokens, or samples where a sample has one label."""
    if is_per_sample(job.task):
        return f"{_three_digits(job.global_batch / step_s)} {noun(job.task)}/s"
    both = " read and as many written" if job.task == "seq2seq" else ""
    return f"{_three_digits(job.tokens_per_step / step_s)} tokens/s{both}"


def _three_digits(value: float) -> str:
    """Print three digits, thousands apart: 1,530; 0.42."""
    if value >= 100:  # noqa: PLR2004 - three digits before the point
        digits = len(f"{value:.0f}") - 3
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"


def run_facts(job: Job, cost: Cost, *, is_length_given: bool) -> tuple[Fact, ...]:
    """Say how long a run takes and what it costs; of no given length, what a billion tokens take.

    ``is_length_given``: whether somebody said how long the run is.
    """
    took = took_words(job, cost, is_length_given=is_length_given)
    if not took:
        return ()
    _, times = _told_length(job, cost, is_length_given=is_length_given)
    usd = None if cost.usd is None else cost.usd * times
    paid = paid_words(usd, cost.usd_per_gpu_hour, cost.whose)
    return (Fact("run", f"{took}{paid}", f"{took}{paid.partition(', give')[0]}"),)


def took_words(job: Job, cost: Cost, *, is_length_given: bool) -> str:
    """Say how long a run takes; empty: that is unknown."""
    if cost.hours is None:
        return ""
    what, times = _told_length(job, cost, is_length_given=is_length_given)
    return f"{what}: {format_days(cost.hours * times / DAY_H)}"


def _told_length(job: Job, cost: Cost, *, is_length_given: bool) -> tuple[str, float]:
    """Return of how much it is told how long that takes, and how many times the run that is."""
    in_tokens, num_samples = not is_per_sample(job.task), cost.num_steps * job.global_batch
    if is_length_given:
        samples = f"{num_samples:,} {noun(job.task)}"
        seen = f"{format_count(cost.num_tokens)} tokens" if in_tokens else samples
        return f"{cost.num_steps:,} steps ({seen})", 1.0
    if in_tokens:
        return "a billion tokens", _BILLION / cost.num_tokens
    return f"a million {noun(job.task)}", _MILLION / num_samples


def paid_words(usd: float | None, usd_per_gpu_hour: float | None, whose: str) -> str:
    """Say what a run costs, behind how long it takes.

    ``usd``: all of it, in US dollars; None: unknown. ``usd_per_gpu_hour``: by which price; None:
    unknown. ``whose``: that is; empty: the user's own.
    """
    if usd is None or usd_per_gpu_hour is None:
        return "; cost unknown, give the price of a GPU-hour by --prices"
    hour = format_money(usd_per_gpu_hour).rpartition(" ")[0]
    return f", {format_money(usd)} ({hour} a GPU-hour{f', {whose}' if whose else ''})"
