"""What comes of a job on a cluster: bounded, searched, evaluated, and settled by its replay."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from brimful.cost.estimate import estimate_or_none, tensor_limit_bytes
from brimful.cost.states import held_bytes
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.attending import beside_usual
from brimful.search.gains import Search
from brimful.search.holding import held_at, hold_firmly
from brimful.search.offloading import for_known_host
from brimful.search.pins import Pins
from brimful.search.rows import CLOSE
from brimful.search.solve import Solution, solve
from brimful.techniques.offload import NONE
from brimful.units import format_bytes
from brimful.values.job import Job
from brimful.values.plan import Estimate, Plan, Word
from brimful.values.strategy import Attention, Strategy


class Tried(NamedTuple):
    """The best of a job on a cluster.

    Attributes:
        short_bytes: By how many bytes it does not fit; 0 or less where it does.
        step_s: Its predicted seconds per step; None: unknown.
        solution: What was searched; None: the plan's own strategy was evaluated.
        settings: Flags with which it is so, where a command means other settings without them.
        made: What is predicted of it; None: nothing is.
        is_bound: Whether it is short by that at least, as nothing was searched.
    """

    short_bytes: int
    step_s: float | None
    solution: Solution | None
    settings: str = ""
    made: Estimate | None = None
    is_bound: bool = False

    def peak_words(self) -> str:
        """Say its peak of what there is for it, as a plan's answer does; empty: unknown."""
        if self.made is None:
            return ""
        used, most = self.made.told_peak
        return f"{format_bytes(used)} of {format_bytes(most)}"


Find = Callable[[Job, Cluster], Tried]
"""Returns the best of a job on a cluster. Raises UnsupportedError where it cannot tell, InputError
where the job cannot run there."""
Settle = Callable[[Tried], Tried]
"""Decides whether what was found holds."""
Shortfall = Callable[[Job, Cluster, Strategy], int]
"""Returns by how many bytes a strategy does not fit; 0 or less where it does."""


def searched_anew(search: Search, settings: str = "") -> Find:
    """Search every way as the plan was searched for, by live bytes; ``held`` decides.

    What has no room for states, however evenly they are shared, is not searched.

    ``settings``: what is typed otherwise; empty: nothing is.
    """

    def find(job: Job, cluster: Cluster) -> Tried:
        if (short := _least_short_bytes(search, job, cluster)) > 0:
            return Tried(short, None, None, settings, is_bound=True)
        found, refused = list[Tried](), list[Exception]()
        for attention in _attentions(search, job, cluster):
            try:
                found.append(_searched(search, job, cluster, attention))
            except UnsupportedError as error:
                refused.append(error)
        if not found:
            raise refused[0]
        return min(found, key=_shortness)._replace(settings=settings)

    return find


def _attentions(search: Search, job: Job, cluster: Cluster) -> tuple[Attention, ...]:
    """List how a job may attend on a cluster: as the user said, or in the usual ways there."""
    if search.usual is None:
        return (search.attention,)
    return (search.usual, *beside_usual(job, search.usual, cluster.device))


def _least_short_bytes(search: Search, job: Job, cluster: Cluster) -> int:
    """Return what states lack that all devices share evenly, at least; 0: nobody can say.

    Nobody can where they may leave the device: for the host, or before all gradients are there.
    """
    every = (search.pins, *search.also)
    leaves = any(each.optimizer_in_backward or each.offload not in {None, NONE} for each in every)
    if leaves or cluster.host_ram_bytes:
        return 0
    try:
        whole = held_bytes(job, cluster.device.kernels)
    except UnsupportedError:
        return 0
    return max(0, -(-whole // cluster.num_devices) - tensor_limit_bytes(cluster))


def _searched(search: Search, job: Job, cluster: Cluster, attention: Attention) -> Tried:
    """Search what keeps least first; all of it where that may fit."""
    every = (search.pins, *search.also)
    every = (*every, *for_known_host(job, cluster, every, attention))
    least = _least(job, cluster, attention, every)
    if least is not None:
        return least
    pins, *also = every
    return _tried(
        solve(job, cluster, pins, attention=attention, objective=search.objective, also=also)
    )


def _least(job: Job, cluster: Cluster, attention: Attention, every: Sequence[Pins]) -> Tried | None:
    """Return what keeps least where that is clearly too much; None: something may fit.

    That is one sequence at a time with all blocks recomputed, within ``CLOSE``; how fast anything
    is, or what a whole search would find, is not asked of what does not fit.
    """
    pins, *also = (
        each._replace(
            micro_batch=each.micro_batch or 1,
            activation_checkpointing=each.activation_checkpointing or "full",
        )
        for each in every
    )
    try:
        found = solve(job, cluster, pins, attention=attention, objective="memory", also=also)
    except (InputError, UnsupportedError):
        return None
    made = found.plan.estimate
    beyond = CLOSE * tensor_limit_bytes(cluster)
    is_short = made is not None and made.predicted_peak_allocated_bytes > beyond
    return _tried(found) if is_short else None


def _shortness(tried: Tried) -> tuple[float, float]:
    """Order what was tried: what fits, and of that the fastest, before what lacks least."""
    return max(0, tried.short_bytes), math.inf if tried.step_s is None else tried.step_s


def held(tried: Tried) -> Tried:
    """Replay what fits by live bytes, and the next best while it does not hold."""
    if tried.solution is None or tried.short_bytes > 0:
        return tried
    found = hold_firmly(tried.solution)
    if found is None:  # of the fastest it is said how much is lacking
        assert tried.solution.space is not None, "what was replayed was searched"
        found = held_at(tried.solution.space, tried.solution.row)
    return _tried(found.solution)._replace(settings=tried.settings)


def _tried(found: Solution) -> Tried:
    made = found.plan.estimate
    assert made is not None, "what is solved has a formula"
    return Tried(short_bytes_of(made), made.predicted_step_s, found, made=made)


def short_bytes_of(made: Estimate) -> int:
    """Return by how many bytes a prediction lacks a sure fit, on a GPU or its host; 0: it fits."""
    short = 0 if made.fits else made.predicted_peak_allocated_bytes - made.usable_bytes
    short = max(short, host_short_bytes(made))
    reserved = made.predicted_reserved
    if reserved is not None and reserved.word != "fits":
        short = max(short, reserved.excess_bytes)
    return short


def host_short_bytes(made: Estimate) -> int:
    """Return how many bytes a node's host lacks at least; 0: it may suffice."""
    host = made.host
    if host is None or host.fits is not False:
        return 0
    return max(1, host.predicted_training_bytes - host.usable_bytes)


def reserved_word(made: Estimate) -> Word:
    """Return what the replay of a prediction says; ``fits`` where there is none."""
    return "fits" if made.predicted_reserved is None else made.predicted_reserved.word


def same_strategy(plan: Plan, shortfall: Shortfall) -> Find:
    """Evaluate the plan's own strategy on every way, which takes a simulation each."""

    def find(job: Job, cluster: Cluster) -> Tried:
        if cluster.num_devices != plan.cluster.num_devices:
            raise UnsupportedError("the plan's strategy is for as many devices as it has")
        if job.method != plan.job.method or job.optimizer != plan.job.optimizer:
            raise UnsupportedError("a simulation for each would take too long")
        made = estimate_or_none(job, cluster, plan.strategy)
        step_s = None if made is None else made.predicted_step_s
        return Tried(shortfall(job, cluster, plan.strategy), step_s, None, made=made)

    return find


def either(first: Find, second: Find) -> Find:
    """Find by one way, and where it cannot tell by another."""

    def find(job: Job, cluster: Cluster) -> Tried:
        try:
            return first(job, cluster)
        except UnsupportedError:
            return second(job, cluster)

    return find
