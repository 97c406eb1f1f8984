"""What would make a strategy fit that does not: other settings on the same GPUs, or what else."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from brimful.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brimful.cli import resolved
    from brimful.hardware.cluster import Cluster
    from brimful.search.beside import Beside, Fix
    from brimful.search.lean import Looked
    from brimful.search.ways_out import WayOut
    from brimful.show.summary import Fact
    from brimful.values.job import Job
    from brimful.values.plan import Plan


class Fixes(NamedTuple):
    """What would make a strategy fit.

    Attributes:
        facts: In words.
        found: Of other settings on the same GPUs; None: nothing.
    """

    facts: "tuple[Fact, ...]"
    found: "Fix | None"

    def others(self, others: "tuple[Beside, ...]") -> "tuple[Beside, ...]":
        """Leave out of what is laid beside the strategy what was told as the fix."""
        if self.found is None:
            return others
        told = msgspec.structs.replace(self.found.strategy, allocator="")
        return tuple(
            each for each in others if msgspec.structs.replace(each.strategy, allocator="") != told
        )


NO_FIXES = Fixes((), None)


def fixes_of(asked: "resolved.Asked", others: "tuple[Beside, ...]") -> Fixes:
    """Name what holds by its replay: other settings on the same GPUs first, then another kind.

    ``asked``: what does not fit; it has a formula.
    """
    from brimful.cli.on_demand import untraced_leaner
    from brimful.search.beside import fix
    from brimful.search.fewest import fewest_changes, on_the_host, spread_anew
    from brimful.search.lean import lean_fix
    from brimful.show.beside import fix_facts

    job, cluster, strategy = asked
    found = fix(job, cluster, others) or fewest_changes(job, cluster, strategy)
    if found is not None:
        return Fixes(fix_facts(job, strategy, found, ()), found)
    try:
        looked = lean_fix(job, cluster, strategy)
    except UnsupportedError:
        looked = None
    if (looked is None or looked.fix is None) and untraced_leaner(asked):
        return Fixes((_not_tried(job),), None)
    if looked is None:
        return NO_FIXES
    found = looked.fix or spread_anew(job, cluster, strategy) or _by_other_kernels(asked)
    ways = () if found else tuple(_ways(asked, looked))
    found = found or on_the_host(job, cluster, strategy)
    facts = fix_facts(job, strategy, found, ways)
    if found is None and cluster.memory_limit_bytes:
        facts = (*_limit(asked, looked), *facts)
        return Fixes(facts, None)
    if found is None and not any(way.is_exact for way in ways):
        facts = (*_needed(job, cluster), *facts)
    if found is None and _has_untried_kernels(asked):
        facts = (_not_tried(job), *facts)
    return Fixes(facts, found)


def _by_other_kernels(asked: "resolved.Asked") -> "Fix | None":
    """Return what holds by an attention kernel that keeps no scores, where the usual one does."""
    from brimful.search.fewest import fewest_changes

    found = (fewest_changes(*other) for other in _other_kernels(asked))
    return next((fix for fix in found if fix is not None), None)


def _has_untried_kernels(asked: "resolved.Asked") -> bool:
    """Whether some were not traced yet, and can be here, and states leave them room at best."""
    from brimful.cli.on_demand import untraced_leaner
    from brimful.search.ways_out import has_room

    if find_spec("torch") is None or not has_room(asked.job, asked.cluster):
        return False
    return any(map(untraced_leaner, _other_kernels(asked)))


def _other_kernels(asked: "resolved.Asked") -> "Iterator[resolved.Asked]":
    from brimful.search.attending import beside_usual

    job, cluster, strategy = asked
    for attention in beside_usual(job, strategy.attention, cluster.device):
        other = msgspec.structs.replace(strategy, attention=attention)
        yield asked._replace(strategy=other)


def _not_tried(job: "Job") -> "Fact":
    """Say that settings which may fit have no profile yet, so that nothing else is advised."""
    from brimful.show.summary import Fact

    words = (
        f"settings of {job.model.name} that take less were not all traced here yet; brimful plan "
        f"with the same flags does, and finds the fastest that fits"
    )
    return Fact("not tried", words)


def simulated_fixes(plan: "Plan") -> "tuple[Fact, ...]":
    """Name one way that holds when it is simulated, for a plan without a formula.

    ``plan``: what does not hold.
    """
    from brimful.show.beside import simulated_fix_facts
    from brimful.simulate.fixes import simulated_fix

    found = simulated_fix(plan.job, plan.cluster, plan.strategy)
    if found is None:
        return _needed(plan.job, plan.cluster)
    return simulated_fix_facts(plan.job, plan.strategy, found)


def _needed(job: "Job", cluster: "Cluster") -> "tuple[Fact, ...]":
    """Say how many of these GPUs have room for a run's states alone, where there are fewer."""
    from brimful.cost.estimate import tensor_limit_bytes
    from brimful.cost.least import least_bytes
    from brimful.models.config import known_count
    from brimful.show.bound import needed_facts

    count = known_count(job.model)
    if count is None:
        return ()
    return needed_facts(least_bytes(job, count), tensor_limit_bytes(cluster), cluster.num_devices)


def _limit(asked: "resolved.Asked", looked: "Looked") -> "tuple[Fact, ...]":
    """Name the least limit under which the leanest settings hold."""
    from brimful.search.lean import least_limit
    from brimful.show.beside import limit_facts

    limit = least_limit(asked.job, asked.cluster, looked.leanest)
    return () if limit is None else limit_facts(asked.job, asked.strategy, looked.leanest, limit)


def _ways(asked: "resolved.Asked", looked: "Looked") -> "Iterator[WayOut]":
    """Yield what the owner could allow on these GPUs, then the first way that changes nothing.

    Of what could be allowed the first that trains all as before, and the first with adapters.
    """
    from brimful.search.lean import lean
    from brimful.search.offers import plainest
    from brimful.search.ways_out import ways_out
    from brimful.values.plan import PLAN_SCHEMA, Plan

    job, cluster, strategy = asked
    plan = Plan(
        schema=PLAN_SCHEMA, job=job, cluster=cluster, strategy=looked.leanest, estimate=looked.made
    )
    every = [
        way for way in ways_out(plan, lean(strategy), lambda tried: tried) if way.short_bytes <= 0
    ]
    allowed = {way.flags: way for way in every if way.is_allowed}
    kinds = set[bool]()
    for flags in plainest(allowed):
        if (adapts := flags.startswith("--method")) not in kinds:
            kinds.add(adapts)
            yield allowed[flags]
    if not cluster.memory_limit_bytes:
        yield from [way for way in every if way.is_exact][:1]
