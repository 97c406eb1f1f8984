"""The question of a search, as flags say it, and its answer: by formulas, or by simulating."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from brimful.cli import defaults, resolved, stages, usual
from brimful.errors import InputError, UnknownMemoryError, UnsupportedError
from brimful.text.terminal import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brimful.cost.own_programs import Need
    from brimful.hardware.cluster import Cluster
    from brimful.search.budget import Budget
    from brimful.search.pins import Pins
    from brimful.search.solve import Solution
    from brimful.simulate.search import SearchState
    from brimful.values.job import Job
    from brimful.values.strategy import Attention

Chosen = Callable[[list["Need"]], list["Need"]]
"""Chooses what is traced."""


class Question(NamedTuple):
    """What is searched, resolved and checked.

    Attributes:
        job: What is trained.
        cluster: On what.
        pins: What the user fixed.
        also: More that may be fixed instead: what the user fixed are lists of values.
        attention: How the model attends.
        untold: Why no formula covers it, so that it is simulated; empty where one does.
    """

    job: "Job"
    cluster: "Cluster"
    pins: "Pins"
    also: "list[Pins]"
    attention: "Attention"
    untold: str


def asked(args: argparse.Namespace, *, traces: "Chosen | None" = None) -> Question:
    """Resolve the flags of a search, and refuse what cannot run before anything is loaded.

    ``traces``: chooses what is traced of what the job needs and does not ship; None: nothing.
    Raises InputError: something given cannot be used.
    """
    from brimful.search.space import plainest_strategy

    job, cluster = resolved.job_from(args), resolved.cluster_from(args)
    if args.engine not in {None, defaults.ENGINE}:
        raise UnknownMemoryError(
            f"--engine {args.engine} is not searched by this version; brimful estimate with it "
            f"predicts the strategy that the flags say, and brimful train runs it",
            nearest={"engine": defaults.ENGINE},
        )
    (pins, *also), attention = pins_from(args), usual.attention_from(args, job, cluster.device)
    told = (getattr(args, name, None) for name in ("program", "files_engine_settings"))
    is_theirs = any(each is not None for each in told)
    if args.engine_settings and not is_theirs:
        raise UnsupportedError(
            "--engine-settings are of --engine deepspeed, which is not searched; leave them out, "
            "or give both to brimful estimate",
            nearest={"engine_settings": None},
        )
    if why_untold(args):  # what cannot run is refused before it is traced
        plainest_strategy(job, pins, attention, cluster.num_devices)
    untold = _traced(args, [pins, *also], traces) if traces else why_untold(args)
    if untold and also:
        raise UnsupportedError(
            f"lists of values are searched by formulas, and {job.model.name} has none for this "
            f"job; give one value of each"
        )
    return Question(job, cluster, pins, also, attention, untold)


def search(args: argparse.Namespace, budget: "Budget") -> "Solution":
    """Resolve the flags and search, by the usual attention and by what may be better than that."""
    from brimful.search.ways_out import has_room

    found = _fused_or_not(args, budget)
    plan = found.plan
    if plan.estimate is None or not (plan.estimate.fits or has_room(plan.job, plan.cluster)):
        return found
    fits = found.record.rows[0].fits
    others = [_by_attention(args, each, budget, is_spare=fits) for each in _attentions_beside(args)]
    every = [found, *(each for each in others if each is not None)]
    return min(every, key=partial(_badness, objective=args.objective))


def _attentions_beside(args: argparse.Namespace) -> "tuple[Attention, ...]":
    """List what else attends exactly, where the usual writes scores out and nobody chose."""
    from brimful.cli import for_program
    from brimful.search.attending import beside_usual

    if args.attention is not None or for_program.is_other(args):
        return ()
    job, cluster = resolved.job_from(args), resolved.cluster_from(args)
    return beside_usual(job, usual.attention_from(args, job, cluster.device), cluster.device)


def _by_attention(
    args: argparse.Namespace, attention: "Attention", budget: "Budget", *, is_spare: bool
) -> "Solution | None":
    """Search by one kernel what formulas tell, traced where they are not there yet; None: none.

    What is spare, as something fits already, is not traced: who waits half a minute has asked.
    """
    said = argparse.Namespace(**{**vars(args), "attention": attention})
    try:
        if asked(said, traces=_none if is_spare else _first(said)).untold:
            if is_spare:
                args.untraced_attention = attention
            return None
        return _fused_or_not(said, budget)
    except UnsupportedError:
        return None


def _fused_or_not(args: argparse.Namespace, budget: "Budget") -> "Solution":
    """Search; where fused kernels may run, with them and without.

    What is chosen is fixed in the flags, so that whoever asks on asks of the same.
    """
    fused = argparse.Namespace(**{**vars(args), "fused_kernels": "liger"})
    if args.fused_kernels is not None or not _may_fuse(args) or not _is_predicted(fused):
        return _searched(args, budget)
    plain = _searched(args, budget)
    if stages.is_held(plain) and not _are_here():
        return plain
    found = min(plain, _searched(fused, budget), key=partial(_badness, objective=args.objective))
    args.fused_kernels = found.plan.strategy.fused_kernels
    return found


def _are_here() -> bool:
    """Whether Liger's kernels are installed: a plan promises that it runs."""
    from brimful.techniques.fused_kernels import PACKAGES

    return all(map(find_spec, PACKAGES))


def _may_fuse(args: argparse.Namespace) -> bool:
    """Whether Liger's kernels run what is asked, here or in a program that brings them along.

    Where they are not here they are looked at as a way to make it fit.
    """
    from brimful.cli.for_program import OWN
    from brimful.search.space import plainest_strategy
    from brimful.techniques.kernel_support import why_not_fused

    is_own = getattr(args, "program", None) in {None, OWN} and not getattr(args, "fuses", False)
    if is_own and not _are_here():
        return False
    job, cluster, _ = _plainest(args)
    pins, *also = pins_from(args)
    attention = usual.attention_from(args, job, cluster.device)
    if (also and is_own) or why_not_fused(usual.place_of(cluster.device)):
        return False
    try:
        fused = pins._replace(fused_kernels="liger")
        plainest_strategy(job, fused, attention, cluster.num_devices)
    except (InputError, UnsupportedError):
        return False
    return True


def _is_predicted(args: argparse.Namespace) -> bool:
    """Whether what the flags ask for can be traced; else a search would simulate it all twice."""
    from brimful.cost.formula import is_traceable

    job, cluster, strategy = _plainest(args)
    return is_traceable(job, strategy, cluster.device)


def _badness(found: "Solution", objective: str) -> tuple[bool, bool, float]:
    """Order plans: those that hold first, then those that may, then what is to be least."""
    best, fails = found.record.rows[0], not stages.is_held(found)
    if not best.fits or objective == "memory" or best.step_s is None:
        return not best.fits, fails, best.peak_bytes
    return (
        False,
        fails,
        best.step_s * (found.plan.cluster.num_devices if objective == "cost" else 1),
    )


def _searched(args: argparse.Namespace, budget: "Budget") -> "Solution":
    """Search: by formulas, or by simulating where there are none.

    Where not all was traced yet, what a first answer needs is traced first, which is told, and then
    more while that may gain something and there is time (``cli.stages``).
    """
    is_new = any(need.body == "plain" for need in _missing(args, pins_from(args)))
    question = asked(args, traces=_first(args))
    if question.untold:
        return _simulated(args, question, budget)
    job, cluster, pins, also, attention, _ = question
    if is_new and not args.json and (words := stages.first_look(job, cluster, pins, attention)):
        say(words, file=sys.stderr, flush=True)
    every, told = [pins, *also], ""
    found = _by_formulas(args, question)
    while missing := _missing(args, every):
        if why := stages.why_no_more(args, found, budget, missing):
            return _without(found, why)
        if not args.json and (words := stages.so_far(found)) != told:
            say(words, file=sys.stderr, flush=True)
            told = words
        is_over = partial(stages.is_late, budget) if stages.is_held(found) else None
        untold = _traced(args, every, partial(stages.next_of, missing, found), is_over)
        if _missing(args, every) == missing:
            if found.record.rows[0].fits:
                return _without(found, stages.not_traced(missing, ", as it cannot be"))
            return _simulated(args, question._replace(untold=untold), budget)
        found = _by_formulas(args, question)
    return found


def _first(args: argparse.Namespace) -> "Chosen":
    """Return what chooses what is traced first."""
    job, _, plainest = _plainest(args)
    return partial(stages.first_of, args, job, plainest)


def _without(found: "Solution", left_out: str) -> "Solution":
    record = msgspec.structs.replace(found.record, left_out=(left_out,))
    return found._replace(record=record)


def _by_formulas(args: argparse.Namespace, question: Question) -> "Solution":
    from brimful.search.cheapest import solve_cheapest
    from brimful.search.offloading import solve_offloading

    job, cluster, pins, also, attention, _ = question
    if args.objective == "cost":
        return solve_cheapest(job, cluster, pins, attention=attention, also=also)
    return solve_offloading(
        job, cluster, pins, attention=attention, objective=args.objective, also=also
    )


def _none(needs: "list[Need]") -> "list[Need]":
    """Choose nothing to trace."""
    del needs
    return []


def _simulated(args: argparse.Namespace, question: Question, budget: "Budget") -> "Solution":
    """Search by simulating, strategy by strategy."""
    from brimful.cli.least import spread_whole, tell_least
    from brimful.cli.progress import Progress
    from brimful.cost.formula import told_short
    from brimful.process.library_output import quiet_libraries
    from brimful.process.quick_imports import quick_imports

    job, cluster, pins, _, attention, untold = question
    quiet_libraries()
    if not args.json:
        say(
            f"{told_short(untold)}: settings are simulated, for at most "
            f"{budget.seconds:.0f} s (--budget)",
            file=sys.stderr,
            flush=True,
        )
        tell_least(_plainest(args), spread_whole(cluster.num_devices))
    with Progress("simulating", quiet=args.json) as progress:
        with quick_imports():
            from brimful.simulate.search import solve_by_simulation

        is_told = False

        def watch(state: "SearchState") -> None:
            nonlocal is_told
            share = max(1 - state.left_s / budget.seconds, state.num_done / state.num_most)
            is_first, is_told = state.best is not None and not is_told, state.best is not None
            tell = progress.note_stage if is_first else progress.report  # the first one at once
            tell(_state_words(state, job), share)

        return solve_by_simulation(
            job,
            cluster,
            pins,
            attention=attention,
            objective=args.objective,
            budget=budget,
            watch=watch,
        )


def _state_words(state: "SearchState", job: "Job") -> str:
    """Say how far a search is: how many, the best so far, and the time left."""
    from brimful.search.spelling import spell
    from brimful.units import format_bytes

    best = state.best
    words = "nothing is known yet"
    if best is not None and best.short_bytes:
        words = f"none fits yet, the nearest is short by {format_bytes(best.short_bytes)}"
    elif best is not None:
        pace = stages.pace_words(job, best.step_s)
        words = f"best {spell(best.strategy)}: {format_bytes(best.peak_bytes)}{pace}"
    done = f"{state.num_done} simulated" if state.num_done else "the first one"
    return f"{done}, {state.left_s:.0f} s left; {words}"


def why_untold(args: argparse.Namespace) -> str:
    """Say why no formula covers what the flags ask for: it is simulated then; empty: one does."""
    from brimful.cost.formula import missing_formula

    job, cluster, strategy = asked = _plainest(args)
    return _unsearched(asked) or missing_formula(job, strategy, cluster.device)


def _unsearched(asked: resolved.Asked) -> str:
    """Say why a search goes by simulation though each strategy may have a formula; empty: not so.

    Which blocks send what they keep, or are brought in a trace, is a program of its own with every
    number of checkpoints.
    """
    from brimful.cost.formula import is_away_traced

    job, _, strategy = asked
    if not is_away_traced(job, strategy):
        return ""
    return (
        f"offload={strategy.offload} has no formula for every number of checkpointed layers; "
        f"brimful plan simulates strategies instead, and brimful estimate predicts each"
    )


def _traced(
    args: argparse.Namespace,
    every: "Sequence[Pins]",
    chosen: "Chosen",
    is_over: Callable[[float], bool] | None = None,
) -> str:
    """Trace what the search needs, and say why no formula covers it still; empty where one does.

    ``is_over``: whether nothing more is to be traced; None: all that was chosen is.
    """
    from brimful.cli.least import spread_at_best, tell_least
    from brimful.cli.on_demand import traced_or_untold

    asked = _plainest(args)
    if unsearched := _unsearched(asked):
        return unsearched
    wanted = chosen(_needs(asked, every))
    spread = spread_at_best(args, asked.cluster.num_devices)
    return traced_or_untold(args, asked, wanted, partial(tell_least, asked, spread), is_over)


def is_untraced(args: argparse.Namespace) -> bool:
    """Whether a search needs what was not traced yet, or simulates."""
    return bool(why_untold(args) or _missing(args, pins_from(args)))


def _missing(args: argparse.Namespace, every: "Sequence[Pins]") -> "list[Need]":
    """List what a search needs that was not traced yet."""
    from brimful.cost.formula import untraced

    job, cluster, strategy = asked = _plainest(args)
    if _unsearched(asked):
        return []
    return untraced(job, strategy, cluster.device, _needs(asked, every))


def _needs(asked: resolved.Asked, every: "Sequence[Pins]") -> "list[Need]":
    """List what a search needs, but for copies on every GPU that have no room."""
    from brimful.cli.least import with_room
    from brimful.search.space import needs

    return with_room(asked, needs(asked.job, every, asked.strategy.attention, asked.cluster))


def no_at_once(args: argparse.Namespace) -> int | None:
    """Answer NO before anything is traced, where the states alone have no room."""
    from brimful.cli.least import no_by_states, spread_at_best
    from brimful.search.space import needs

    if args.engine not in {None, defaults.ENGINE}:
        return None
    asked = _plainest(args)
    num = asked.cluster.num_devices
    every = needs(asked.job, pins_from(args), asked.strategy.attention, asked.cluster)
    return no_by_states(args, asked, every, spread_at_best(args, num))


def _plainest(args: argparse.Namespace) -> resolved.Asked:
    """Return the plainest strategy that has what the flags fix."""
    from brimful.search.pins import pinned_strategy

    job, cluster = resolved.job_from(args), resolved.cluster_from(args)
    pins, attention = pins_from(args)[0], usual.attention_from(args, job, cluster.device)
    return resolved.Asked(job, cluster, pinned_strategy(pins, attention, cluster.num_devices))


def pins_from(args: argparse.Namespace) -> "list[Pins]":
    """Return what is fixed: one value of each flag, or every combination of lists.

    What shards most is the first, which has room where others may have none.
    """
    from brimful.search.pins import Pins
    from brimful.search.space import possible
    from brimful.values.strategy import default_reference

    job = resolved.job_from(args)
    values = {name: getattr(args, name) for name in Pins._fields}
    values["reference"] = values["reference"] or default_reference(job)
    values["fused_kernels"] = usual.fused_from(args, job, resolved.cluster_from(args))
    given = list(values.values())
    lists = [each if isinstance(each, list) else [each] for each in given]
    choices = [Pins(*values) for values in product(*lists)]
    if len(choices) == 1:
        return choices
    every = possible(job, choices, resolved.cluster_from(args).num_devices)
    return sorted(every, key=lambda each: -(each.zero or 0))
