"""What a run goes on with when its memory runs out: the next exact plan.

The planner's, where the job has a formula; else the first of a ladder of switches whose simulated
peak is low enough. Simulated in another process: what is measured in this one never saw the tape.
"""

from collections.abc import Sequence

import msgspec

from brimful.cost.estimate import estimate_or_none, tensor_limit_bytes
from brimful.errors import InputError, UnsupportedError
from brimful.process.child import run_in_child
from brimful.search.ladder import next_strategy, rungs, target_bytes
from brimful.simulate.run import simulate
from brimful.values.plan import Plan
from brimful.values.strategy import Strategy

MOST = 12
"""Strategies that are simulated at most."""


def next_plan(plan: Plan, failed: tuple[Strategy, ...]) -> Plan | None:
    """Return the plan that takes over.

    ``failed``: every strategy that did so far, the last one last. Returns the same job on the same
    cluster by a strategy that needs less, within the limit where anything is; None where nothing
    needs less.
    """
    chosen = next_strategy(plan.job, plan.cluster, failed)
    if chosen is None:
        chosen = run_in_child(_below, (plan, failed))
    if chosen is None or chosen in failed:
        return None
    estimate = estimate_or_none(plan.job, plan.cluster, chosen)
    return msgspec.structs.replace(plan, strategy=chosen, estimate=estimate)


def _below(tried: tuple[Plan, tuple[Strategy, ...]]) -> Strategy | None:
    return simulated_next(*tried)


def simulated_next(plan: Plan, failed: Sequence[Strategy]) -> Strategy | None:
    """Climb down from the strategy that failed last; see ``next_plan``."""
    below = [each for each in rungs(plan.job, failed[-1]) if each not in failed]
    peaks = [_peak_bytes(plan, each) for each in failed]
    highest = min((peak for peak in peaks if peak is not None), default=None)
    if highest is None:
        return None
    target = target_bytes(highest, tensor_limit_bytes(plan.cluster))
    least: tuple[int, Strategy] | None = None
    for strategy in below[:MOST]:
        peak = _peak_bytes(plan, strategy)
        if peak is None or peak >= highest:
            continue
        if peak <= target:
            return strategy
        least = (peak, strategy) if least is None or peak < least[0] else least
    return None if least is None else least[1]


def _peak_bytes(plan: Plan, strategy: Strategy) -> int | None:
    """Simulate a strategy; None where it cannot run the job."""
    try:
        found = simulate(plan.job, plan.cluster, strategy)
    except (InputError, UnsupportedError):
        return None
    return found.simulated_peak_allocated_bytes
