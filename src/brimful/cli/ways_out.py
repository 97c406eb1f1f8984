"""What would make a plan fit that does not, as it is told: each way as soon as it is proven."""

import argparse
import math
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from brimful.cli import for_program
from brimful.cli.output import show_facts
from brimful.cli.proof import proof_of, proof_words
from brimful.errors import InputError, OutOfTimeError, UnsupportedError
from brimful.search.budget import Budget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brimful.hardware.cluster import Cluster
    from brimful.search.gains import Search
    from brimful.search.pins import Pins
    from brimful.search.solve import Solution
    from brimful.search.tries import Find, Tried
    from brimful.search.ways_out import WayOut
    from brimful.show.summary import Fact
    from brimful.simulate.proof import ProofWord
    from brimful.values.job import Job

MAX_WAYS, MAX_WAYS_TIGHT = 2, 1
"""Ways that are told, a line or two each; fewer beside a plan that may fit."""
_SAME_BATCH = ("--optimizer", "--precision", "--method")
MAX_ALLOWED, MAX_ALLOWED_TIGHT = 5, 1
"""Of those that change what is learnt, which are told together."""


def tell_ways_out(
    args: argparse.Namespace,
    searched: "Solution",
    search: "Search",
    budget: Budget,
    word: "ProofWord | None",
) -> tuple[str, ...]:
    """Name what would make it fit, the first ones: of what was searched, plans that hold.

    Those on the same GPUs come first: settings, then what its owner would have to allow, which
    holds when it is replayed. Each that learns the same is proven, and printed as soon as it is.

    ``budget``: of time, where each way is simulated.
    """
    record = searched.record
    if record.rows[0].fits and word not in {"tight", "no"}:
        return ()
    if record.untried:
        return _tell_counted(args, searched)
    if args.no_proof:  # nothing is simulated, ways out neither
        budget = Budget(0)
    is_tight = word == "tight"
    told = _Told(args, budget, MAX_WAYS_TIGHT if is_tight else MAX_WAYS)
    for way in () if _learns_the_same(args) else _here(args, searched, search, budget, word):
        told.tell(way)
    told.tell_all(_in_time(searched, search, budget), is_tight=is_tight)
    if is_tight or (told.said and (told.has_allowed or searched.plan.estimate is not None)):
        return told.said
    return told.said + _tell_counted(args, searched)


def _here(
    args: argparse.Namespace,
    searched: "Solution",
    search: "Search",
    budget: Budget,
    word: "ProofWord | None",
) -> "Iterator[WayOut]":
    """Yield what fits on the same GPUs and learns the same; of what is tight, what is not."""
    from brimful.search.tries import reserved_word

    for way in _freed(args, searched, search, for_program.fixed_fields(args)):
        made = None if way.solution is None else way.solution.plan.estimate
        if word != "tight" or (made is not None and reserved_word(made) == "fits"):
            yield way
    if word != "tight":
        yield from _without_program(args, searched, search)
        yield from _unrounded(searched, search)
        yield from _leaving(args, searched, search, budget)
        yield from _sending(args, searched, budget)


def _learns_the_same(args: argparse.Namespace) -> bool:
    """Whether a file's keys were told with which the same fits here."""
    return any(not each.price for each in getattr(args, "file_changes", ()))


class _Told:
    """What was told: what keeps the GPUs first, then what changes what is learnt, then others."""

    def __init__(self, args: argparse.Namespace, budget: Budget, most: int) -> None:
        """Begin with nothing; ``most``: ways that are told one by one."""
        self.said, self.has_allowed = tuple[str, ...](), False
        self._args, self._budget, self._left = args, budget, most
        self._is_first = True

    def tell(self, way: "WayOut") -> None:
        """Prove a way and print it; one whose proof says no is not told."""
        from brimful.show.summary import Fact

        words = _proven_words(self._args, way, self._budget) if self._left else ""
        if not words:
            return
        if not self._args.json:
            show_facts(Fact("instead" if self._is_first else "", words))
        self._is_first = False
        self.said += (words,)
        self._left -= 1

    def tell_all(self, ways: "Iterator[WayOut]", *, is_tight: bool) -> None:
        """Tell what the owner could allow here, then other GPUs, as soon as it is known of all.

        ``ways``: what was tried, what fits first. ``is_tight``: whether it may fit as it is, so
        that little else is said.
        """
        allowed, others = list["WayOut"](), list["WayOut"]()
        if getattr(self._args, "file_changes", ()):  # short as the file has it, which can change
            ways = (way for way in ways if way.short_bytes <= 0)
        for way in ways:
            (allowed if way.is_allowed else others).append(way)
            if len(others) >= self._left and len(allowed) >= MAX_ALLOWED:
                break
        if not is_tight:
            self._allow(_plain(allowed))
        for way in chain(others, ways):
            if not self._left:
                break
            if not way.is_allowed:
                self.tell(way)
        if is_tight:
            self._allow(_kept(allowed))

    def _allow(self, allowed: "list[WayOut]") -> None:
        from brimful.show.plan import allowed_facts

        if getattr(self._args, "file_changes", ()):
            return
        if allowed and not self._args.json:
            show_facts(*allowed_facts(allowed))
            self._is_first = True
        self.said += tuple(way.words for way in allowed)
        self.has_allowed = self.has_allowed or bool(allowed)


def _plain(allowed: "list[WayOut]") -> "list[WayOut]":
    """Put first what changes least, and leave out two changes where one of them is enough."""
    from brimful.search.offers import plainest

    by_flags = {way.flags: way for way in allowed}
    return [by_flags[flags] for flags in plainest(by_flags)][:MAX_ALLOWED]


def _kept(allowed: "list[WayOut]") -> "list[WayOut]":
    """Keep of ways those with the same samples on the same GPUs, what changes least first."""
    by_flag = [way for flag in _SAME_BATCH for way in allowed if way.flags.startswith(flag)]
    return by_flag[:MAX_ALLOWED_TIGHT]


def _tell_counted(args: argparse.Namespace, searched: "Solution") -> tuple[str, ...]:
    """Name what leaves states room that have none here, and methods that hold less."""
    counted = tuple(_counted(args, searched))
    if not args.json:
        show_facts(*counted)
    return tuple(fact.text for fact in counted)


def _counted(args: argparse.Namespace, searched: "Solution") -> "Iterator[Fact]":
    from brimful.cli.least import least_of, method_ways, roomier, spread_whole, state_ways
    from brimful.cost.estimate import limit_bytes
    from brimful.cost.least import least_on_device

    plan = searched.plan
    is_early = plan.strategy.optimizer_in_backward
    least, spread = least_of(plan.job, is_early=is_early), spread_whole(plan.cluster.num_devices)
    if least is None:
        return
    if least_on_device(least, spread).total <= limit_bytes(plan):
        yield from method_ways(args, limit_bytes(plan), spread)
        return
    yield from state_ways(args, least, limit_bytes(plan), spread)
    yield from roomier(plan.job, least, spread, plan.cluster.device.name)


def _without_program(
    args: argparse.Namespace, searched: "Solution", search: "Search"
) -> "Iterator[WayOut]":
    """Yield what fits here by this program's own loop, which keeps on the host what others do not.

    ``searched``: what was found within what another program can be told.
    """
    from brimful.search.ways_out import WayOut

    pins, plan = search.pins, searched.plan
    why = for_program.why_not_offloaded(args)
    if not why or plan.estimate is None:
        return
    free = pins._replace(**dict.fromkeys(set(for_program.fixed_fields(args)) & {*pins._fields}))
    found = _fitting(plan.job, search, free)
    if found is None:
        return
    name = for_program.whose(args)
    words = (
        f"--for brimful --offload {found.plan.strategy.offload} {_how_fast(found)}, by Brimful's "
        f"own loop ({name}: {why})"
    )
    yield WayOut(words, 0, math.inf, is_exact=True)


def _unrounded(searched: "Solution", search: "Search") -> "Iterator[WayOut]":
    """Yield that states are held whole on the host, where those that are rounded stay on the GPU.

    No host updates by optimizers of few bits; by the rule that they round it does.
    """
    from brimful.search.ways_out import WayOut
    from brimful.techniques.optimizers import OPTIMIZERS, whole_of

    plan = searched.plan
    whole = whole_of(OPTIMIZERS[plan.job.optimizer])
    if plan.estimate is None or not whole or search.also:
        return
    found = _fitting(msgspec.structs.replace(plan.job, optimizer=whole), search, search.pins)
    if found is not None:
        words = f"--optimizer {whole} --offload {found.plan.strategy.offload}"
        yield WayOut(f"{words} {_how_fast(found)}", 0, math.inf, is_exact=True, solution=found)


def _fitting(job: "Job", search: "Search", pins: "Pins") -> "Solution | None":
    """Return what a search finds under other pins, if it fits."""
    from brimful.search.offloading import solve_offloading
    from brimful.search.tries import reserved_word

    try:
        found = solve_offloading(
            job, search.cluster, pins, attention=search.attention, objective=search.objective
        )
    except (InputError, UnsupportedError):
        return None
    made = found.plan.estimate
    return found if made is not None and made.fits and reserved_word(made) != "no" else None


def _how_fast(found: "Solution") -> str:
    """Say that something would fit here, or be tight, its rate and its host where it has them."""
    from brimful.search.tries import reserved_word
    from brimful.show.beside import on_host
    from brimful.show.run import rate_words
    from brimful.units import format_bytes

    plan, made = found.plan, found.plan.estimate
    assert made is not None
    how = "would be tight" if reserved_word(made) == "tight" else "would fit"
    used, most = map(format_bytes, made.told_peak)
    step_s = made.predicted_step_s
    rate = f", {rate_words(plan.job, step_s)}" if step_s else ""
    return f"{how} here, {used} of {most}{rate}{on_host(made, plan.strategy)}"


def _freed(
    args: argparse.Namespace, searched: "Solution", search: "Search", told: tuple[str, ...] = ()
) -> "Iterator[WayOut]":
    """Yield what fits on the same devices if what was fixed is free, and the same is learnt.

    ``told``: fields that stay fixed, as another program is told nothing else of them.
    """
    from brimful.search.pins import Pins
    from brimful.search.ways_out import WayOut
    from brimful.techniques.offload import NONE

    plan, pins = searched.plan, search.pins
    stays = pins.offload if pins.offload == NONE else None  # who refuses it knows why
    free = Pins(
        reference=pins.reference, allocator=pins.allocator, compile=pins.compile,
        fsdp=pins.fsdp, offload=stays,
    )  # fmt: skip
    fixed = {*told} & {*pins._fields}
    free = free._replace(**{field: getattr(pins, field) for field in fixed})
    if plan.estimate is None or search.also or pins == free:
        return
    found = _fitting(plan.job, search, free)
    if found is None:
        return
    strategy = found.plan.strategy
    others = [
        f"--{name.replace('_', '-')} {getattr(strategy, name)}"
        for name, fixed in pins._asdict().items()
        if fixed is not None and getattr(free, name) is None and getattr(strategy, name) != fixed
    ]
    if not others:
        return
    if args.global_batch is None:  # which was that of one micro-batch
        others.append(f"--global-batch {plan.job.global_batch}")
    words = f"{' '.join(others)} {_how_fast(found)}"
    yield WayOut(words, 0, math.inf, is_exact=True, solution=found)


def _sending(args: argparse.Namespace, searched: "Solution", budget: Budget) -> "Iterator[WayOut]":
    """Yield that blocks send to the host what they keep, if it would fit so.

    That is simulated, and only where what they keep is as much as is lacking.
    """
    from brimful.hardware.datasheets import has_one_memory
    from brimful.search.tries import short_bytes_of
    from brimful.techniques.offload import ACTIVATIONS, NONE, OPTIMIZER
    from brimful.values.results import SAVED_ACTIVATIONS

    made, strategy = searched.plan.estimate, searched.plan.strategy
    is_one = has_one_memory(searched.plan.cluster.device.name)
    beside = {NONE: "", OPTIMIZER: f"{OPTIMIZER},"}.get(strategy.offload)
    if made is None or beside is None or strategy.pp > 1 or is_one:
        return
    kept = sum(item.num_bytes for item in made.items if item.name == SAVED_ACTIVATIONS)
    if kept >= short_bytes_of(made):
        yield from _offloading(args, searched, f"{beside}{ACTIVATIONS}", budget)


def _leaving(
    args: argparse.Namespace, searched: "Solution", search: "Search", budget: Budget
) -> "Iterator[WayOut]":
    """Yield that states are kept on the host, of one GPU and a job without a formula.

    With a formula that was searched (``search.offloading``).
    """
    from brimful.cost.estimate import limit_bytes
    from brimful.cost.least import least_bytes
    from brimful.hardware.datasheets import has_one_memory
    from brimful.models.config import exact_count
    from brimful.techniques.offload import NONE, OPTIMIZER, PARAMETERS

    plan, pins = searched.plan, search.pins
    count = exact_count(plan.job.model)
    device = plan.cluster.device
    has_host = device.kernels == "cuda" and not has_one_memory(device.name)
    is_alone = plan.cluster.num_devices == 1 and has_host
    is_free = plan.strategy.offload == NONE and pins.offload is None
    if plan.estimate is not None or count is None or not (is_alone and is_free):
        return
    least = least_bytes(plan.job, count)
    short = searched.record.rows[0].peak_bytes - limit_bytes(plan)
    suffices = least.gradients + least.optimizer_state >= short
    yield from _offloading(args, searched, OPTIMIZER if suffices else PARAMETERS, budget)


def _offloading(
    args: argparse.Namespace, searched: "Solution", what: str, budget: Budget
) -> "Iterator[WayOut]":
    """Yield that a plan's strategy fits with something on the host, where it does so simulated."""
    from brimful.cli.progress import Progress
    from brimful.process.library_output import quiet_libraries
    from brimful.search.ways_out import WayOut
    from brimful.show.run import rate_words
    from brimful.techniques.runnable import check_strategy
    from brimful.units import format_bytes

    job, strategy = searched.plan.job, searched.plan.strategy
    if budget.left_s <= 0:
        return
    away = msgspec.structs.replace(
        strategy,
        offload=what,
        optimizer_in_backward=False,
        allocator=getattr(args, "allocator", None) or "",
    )
    quiet_libraries()
    try:
        check_strategy(job, away)
        with Progress(f"trying --offload {what}", quiet=args.json):
            from brimful.simulate.attempt import attempt

            tried = attempt(job, searched.plan.cluster, away, on_op=budget.check, may_grow=True)
    except (InputError, UnsupportedError) as error:
        _tell_outcome(args, what, f"is not run: {error}")
        return
    except OutOfTimeError:
        _tell_outcome(args, what, f"was not tried to its end in {budget.seconds:.0f} s (--budget)")
        return
    if not tried.holds:
        short = f", short by {format_bytes(tried.short_bytes)}" if tried.short_bytes else ""
        _tell_outcome(args, what, f"does not surely fit either{short}, simulated")
        return
    rate = f", {rate_words(job, tried.step_s)}" if tried.step_s else ""
    host = f"{format_bytes(tried.host_bytes)} on the host"
    early = " without --optimizer-in-backward" if strategy.optimizer_in_backward else ""
    allocator = tried.strategy.allocator
    how = f"--offload {what}{f' --allocator {allocator}' if allocator else ''}{early}"
    words = f"{how} would fit{rate}, with {host}; simulated"
    yield WayOut(words, 0, math.inf, is_exact=True)


def _tell_outcome(args: argparse.Namespace, what: str, words: str) -> None:
    """Say what became of offloading that was tried and is no way out."""
    from brimful.show.summary import Fact

    if not args.json:
        show_facts(Fact("offload", f"--offload {what} {words}"))


def _in_time(searched: "Solution", search: "Search", budget: Budget) -> "Iterator[WayOut]":
    """Yield ways out, simulated while there is time, and by formulas."""
    from brimful.search.tries import either, held, same_strategy, searched_anew
    from brimful.search.ways_out import ways_out

    find, simulated_bytes = searched_anew(search), 0
    if searched.plan.estimate is None:
        from brimful.simulate.search import simulated_shortfall

        simulated_bytes = searched.record.rows[0].peak_bytes
        same = same_strategy(searched.plan, simulated_shortfall(budget))
        find = either(find, _within(budget, same))
        if search.pins.optimizer_in_backward:  # of which no search has a formula
            later = search.pins._replace(optimizer_in_backward=False)
            words = "without --optimizer-in-backward"
            find = either(find, searched_anew(search._replace(pins=later), words))
    yield from ways_out(searched.plan, find, held, simulated_bytes=simulated_bytes)


def _within(budget: Budget, find: "Find") -> "Find":
    """Let what simulates tell nothing once the time is over: formulas still do."""

    def found(job: "Job", cluster: "Cluster") -> "Tried":
        if budget.left_s <= 0:
            raise UnsupportedError("the time is over in which ways out are simulated")
        try:
            return find(job, cluster)
        except OutOfTimeError as error:
            raise UnsupportedError(str(error)) from error

    return found


def _proven_words(args: argparse.Namespace, way: "WayOut", budget: Budget) -> str:
    """Say a way out, and whether it was proven; nothing where its proof says no."""
    plan_of_it = way.solution if way.short_bytes <= 0 else None
    proof = None if plan_of_it is None else proof_of(args, plan_of_it, budget)[1]
    return "" if proof is not None and proof.word == "no" else way.words + proof_words(proof)
