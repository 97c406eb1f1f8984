"""What arithmetic says at once of a job whose profile has yet to be traced: a line, or a NO.

Parameters, gradients and optimizer state are counted without torch, spread as evenly as any
strategy spreads them. Where not even these have room, nothing is traced.
"""

import argparse
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from brimful.cli import defaults, resolved
from brimful.cli.output import DOES_NOT_FIT, show_facts, show_summary
from brimful.cli.usual import attention_from
from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.least import (
    Least,
    Spread,
    blocks_away_bytes,
    least_bytes,
    least_flops_per_token,
    least_on_device,
)
from brimful.errors import BrimfulError
from brimful.hardware.cluster import matrix_rate
from brimful.hardware.datasheets import has_one_memory
from brimful.hardware.names import find_gpu, split_counts
from brimful.models.config import exact_count, has_layout, known_count
from brimful.models.mixtures import has_stacks
from brimful.models.traced import find_built
from brimful.show.terminal import is_speed_hidden
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.techniques.offload import away_in
from brimful.text.terminal import say
from brimful.units import format_bytes, format_count, format_days, format_money
from brimful.values.job import QUANTIZED
from brimful.values.strategy import Attention, Strategy, world_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from brimful.cost.own_programs import Need
    from brimful.hardware.cluster import Cluster, Device
    from brimful.show.summary import Fact
    from brimful.values.job import Job

_ADAPTED = ("lora", "qlora")
"""Methods that hold less, most exact first."""
_SHARDS_STATE, _SHARDS_ALL, _MOST = 1, 2, 3
"""Stages of ZeRO."""
_TOKENS = 1e9
"""Of which it is said what they cost at least."""
_LEFT = 0.1
"""Of what states take, that a larger GPU has to leave for the rest."""


def tell_early(args: argparse.Namespace) -> None:
    """Say of a model of the registry that was never traced here how large it is.

    Reading its configuration imports ``transformers``, which takes seconds.
    """
    from brimful.models.config import find_unread

    found = None if args.json or not isinstance(args.model, str) else find_unread(args.model)
    if found is None:
        return
    say(
        f"{found.name} has {format_count(found.num_parameters)} parameters, "
        f"{format_bytes(2 * found.num_parameters)} in 16 bits; blocks of type {found.model_type} "
        f"were never built here, and are read first, by transformers",
        file=sys.stderr,
        flush=True,
    )


def tell_least(asked: resolved.Asked, spread: Spread | None) -> None:
    """Say what a job holds and takes at least, where its parameters are known.

    ``spread``: how evenly its states are spread at best; None: that is not known yet.
    """
    job, cluster, strategy = asked
    least = least_of(job, is_early=strategy.optimizer_in_backward)
    if least is not None and spread is not None:
        limit, is_kept = tensor_limit_bytes(cluster), strategy.offload != NO_OFFLOAD
        if is_kept:
            spread = _with_away(job, least, strategy, spread)
        words = least_words(least, spread, limit, is_kept=is_kept)
        say(words, file=sys.stderr, flush=True)
    if not is_speed_hidden() and (words := fastest_words(asked)):
        say(words, file=sys.stderr, flush=True)


def fastest_words(asked: resolved.Asked) -> str:
    """Say how long a billion tokens take at least, and what they cost; empty: nobody knows."""
    from brimful.cost.money import HOUR_S, shipped_prices

    job, device = asked.job, asked.cluster.device
    count = known_count(job.model)
    flops = None if count is None else least_flops_per_token(job, count)
    rate = matrix_rate(device, job.precision) * asked.cluster.num_devices
    if not flops or not rate:
        return ""
    hours = _TOKENS * flops / rate / HOUR_S
    price = shipped_prices().gpus.get(device.name)
    usd = None if price is None else hours * asked.cluster.num_devices * price.usd_per_gpu_hour
    cost = "" if usd is None else f" and {format_money(usd)}"
    return (
        f"a billion tokens take {format_days(hours / 24)}{cost} at least, by their "
        f"matrix products alone at the data sheet's rate"
    )


def _with_away(job: "Job", least: Least, strategy: Strategy, spread: Spread) -> Spread:
    """Return how states are spread of which a strategy keeps some on the host."""
    away = away_in(job, strategy.offload, updates_early=strategy.optimizer_in_backward)
    return spread._replace(
        is_offloaded=away.optimizer,
        parameters_away=blocks_away_bytes(job, least, strategy.offload),
    )


def least_words(least: Least, spread: Spread, limit_bytes: int, *, is_kept: bool = False) -> str:
    """Say what each GPU holds at least, on the GPU and with as much as may be on the host.

    ``least``: what there is at least, of all devices together. ``spread``: how evenly it is spread,
    and whether some of it may be on the host. ``is_kept``: whether that was asked for.
    """
    where = "on each GPU" if spread.num_devices > 1 else "on the GPU"
    if is_kept:
        here = least_on_device(least, spread)
        return (
            f"{_counted(here)} that are not offloaded take {format_bytes(here.total)} of "
            f"{format_bytes(limit_bytes)} {where} at least; activations come on top"
        )
    each = least_on_device(least, spread._replace(is_offloaded=False)).total
    words = (
        f"{_counted(least)} take {format_bytes(each)} of {format_bytes(limit_bytes)} {where} at "
        f"least"
    )
    left = least_on_device(least, spread).total
    if each > limit_bytes and left < each:
        words += f", {format_bytes(left)} with only the parameters there and the rest on the host"
    return f"{words}; activations come on top"


def _counted(least: Least) -> str:
    """Name what is counted: of adapters neither gradients nor state are known beforehand."""
    named = {
        "parameters": least.parameters,
        "gradients": least.gradients,
        "optimizer state": least.optimizer_state,
    }
    *others, last = [name for name, size in named.items() if size] or ["parameters"]
    return f"{', '.join(others)} and {last}" if others else last


def no_by_states(
    args: argparse.Namespace, asked: resolved.Asked, needs: "Sequence[Need]", spread: Spread | None
) -> int | None:
    """Answer NO where a job has no formula yet, and its states alone have no room.

    ``args``: the flags, by which other methods are looked at. ``asked``: the job, and a strategy
    that stands for all that is asked. ``spread``: how evenly its states can be spread at best;
    None: nobody knows. Returns the exit code; None: they have room, or nobody knows.
    """
    from brimful.cli.expert_words import expert_facts
    from brimful.cost.formula import is_traceable, missing_formula, untraced
    from brimful.show.bound import Bounded, bound_summary, needed_facts

    job, cluster, strategy = asked
    untold = missing_formula(job, strategy, cluster.device)
    is_simulated = untold and not is_traceable(job, strategy, cluster.device)
    if is_simulated and strategy.offload == NO_OFFLOAD:  # which keeps all on the device
        spread = spread or spread_whole(cluster.num_devices)
        spread = spread._replace(is_offloaded=False)
    is_here = (
        spread is not None and strategy.offload == NO_OFFLOAD and not strategy.optimizer_in_backward
    )
    if args.json or args.page is not None or strategy.engine != defaults.ENGINE or not is_here:
        return None
    if not untold and not untraced(job, strategy, cluster.device, needs):
        return None
    least, limit = least_of(job), tensor_limit_bytes(cluster)
    assert spread is not None
    if least is not None and least_on_device(least, spread).total <= limit and _may_know_more(job):
        least = _least_read(args, job, strategy.attention)
    if least is None or least_on_device(least, spread).total <= limit:
        return None
    spread = spread._replace(is_offloaded=False)  # as what it takes is told
    count = exact_count(job.model)
    assert count is not None
    known = Bounded(job, count, cluster.device.description, limit, least, spread, None)
    show_summary(bound_summary(known, ()))
    more = needed_facts(least, limit, 1) if spread.num_devices == 1 else ()
    ways = (
        *state_ways(args, least, limit, spread),
        *roomier(job, least, spread, cluster.device.name),
    )
    show_facts(*expert_facts(job, least, cluster), *more, *_base_away(job, least, cluster), *ways)
    return DOES_NOT_FIT


def _base_away(job: "Job", least: Least, cluster: "Cluster") -> "Iterator[Fact]":
    """Yield that the host has no room for a frozen base either, of which each process has one."""
    from brimful.show.summary import Fact

    every = least.parameters * cluster.devices_per_node
    if job.adapter is not None and 0 < cluster.host_ram_bytes < every:
        room, size = format_bytes(cluster.host_ram_bytes), format_bytes(every)
        copies = (
            f"{cluster.devices_per_node} copies of it" if cluster.devices_per_node > 1 else "it"
        )
        words = f"has no room for the base either (--offload parameters): {copies} {size} of {room}"
        yield Fact("host", words)


def spared_words(args: argparse.Namespace) -> str:
    """Say what updates inside the backward pass would have saved; empty where nobody knows.

    ``args``: the flags of a verb, without them.
    """
    try:
        job, cluster = resolved.job_from(args), resolved.cluster_from(args)
        spread = spread_at_best(args, cluster.num_devices) or spread_whole(cluster.num_devices)
        least = least_of(job)
    except BrimfulError:
        return ""
    if least is None:
        return ""
    each = least_on_device(least, spread._replace(is_offloaded=False)).gradients
    return (
        f"--optimizer-in-backward keeps no gradients, which are {format_bytes(each)} of each GPU "
        f"between backward pass and step: it saves no more than that"
    )


def spread_whole(num_devices: int) -> Spread:
    """Return how states are spread where all that can be sharded is."""
    return _spread(num_devices, _MOST, num_devices, 1)


def with_room(asked: resolved.Asked, needs: "list[Need]") -> "list[Need]":
    """Leave out what has parameters and gradients whole on every GPU, where they have no room.

    ``asked``: the job, and a strategy that stands for all that is asked. ``needs``: of a search
    over all ways to spread it.
    """
    least = None if asked.cluster.num_devices == 1 else least_of(asked.job)
    if least is None or least.parameters + least.gradients <= tensor_limit_bytes(asked.cluster):
        return needs
    return [need for need in needs if need.gathers]


def spread_of(strategy: Strategy) -> Spread:
    """Return how one strategy spreads states, none of which is on the host."""
    shards = strategy.dp_shard
    return _spread(world_size(strategy), strategy.zero, shards, strategy.tp * strategy.pp)


def spread_at_best(args: argparse.Namespace, num_devices: int) -> Spread | None:
    """Return how evenly any strategy spreads states that has what the flags fix.

    Gradients and state may be kept on the host (``search.offloading``), and of one device alone
    parameters too.

    Returns None where all of them may be there, parameters too.
    """
    zero = getattr(args, "zero", None)
    zero = zero if isinstance(zero, int) else None  # of several the best
    shards = num_devices == 1 or zero not in {0, 1}
    may_leave = shards and not _has_one_memory(args) and getattr(args, "offload", None) is None
    if may_leave and num_devices == 1 and args.method in {None, "full"}:
        return None
    is_data_parallel = all(getattr(args, name, 1) == 1 for name in ("tp", "pp", "ep"))
    if not is_data_parallel or not isinstance(zero, int):
        zero = _MOST
    replicas = getattr(args, "dp_replicate", None)
    replicas = replicas if isinstance(replicas, int) else 1
    spread = _spread(num_devices, zero, max(1, num_devices // replicas), 1)
    return spread._replace(is_offloaded=may_leave)


def _has_one_memory(args: argparse.Namespace) -> bool:
    """Whether the GPUs that were asked about have the host's own memory."""
    gpus = getattr(args, "gpus", None)
    return gpus is not None and has_one_memory(find_gpu(split_counts(gpus).gpu))


def _spread(num_devices: int, zero: int, shards: int, cut: int) -> Spread:
    """Spread over shards what a stage of ZeRO shards; the second gathers into copies."""
    return Spread(
        num_devices,
        parameters=cut * (shards if zero >= _SHARDS_ALL else 1),
        gradients=cut * (shards if zero >= _SHARDS_ALL else 1),
        optimizer_state=cut * (shards if zero >= _SHARDS_STATE else 1),
    )


def least_of(job: "Job", *, is_early: bool = False) -> Least | None:
    """Return what a job holds at least; None: nobody has counted its parameters.

    ``is_early``: whether it updates inside the backward pass.
    """
    count = exact_count(job.model)
    return None if count is None else least_bytes(job, count, is_early=is_early)


def _may_know_more(job: "Job") -> bool:
    """Whether a base is packed of which nobody knows how much of it is: experts seldom are."""
    packs = job.adapter is not None and job.adapter.base in QUANTIZED
    return packs and not has_layout(job.model) and find_spec("torch") is not None


def least_as_held(args: argparse.Namespace, job: "Job") -> Least | None:
    """Return what a job holds at least, its experts as its base has them; None: nobody knows.

    A base in 4 bits leaves stacks of experts as they are: how much that is takes reading a model
    that has no layout, and without torch that is not known.
    """
    least = least_of(job)
    is_packed = job.adapter is not None and job.adapter.base in QUANTIZED
    if least is None or not is_packed or has_layout(job.model) or not has_stacks(job.model):
        return least
    if find_built(job.model) is None and find_spec("torch") is None:
        return None
    return _least_read(args, job, attention_from(args, job, resolved.cluster_from(args).device))


def _least_read(args: argparse.Namespace, job: "Job", attention: Attention) -> Least | None:
    """Read off a model that is built, as its tracing would, what of it is packed."""
    from brimful.cli.progress import Progress
    from brimful.process.library_output import quiet_libraries
    from brimful.process.quick_imports import quick_imports

    quiet_libraries()
    with Progress("reading", quiet=args.json), quick_imports():
        from brimful.build.layout import read_built

        read_built(job, attention)
    return least_of(job)


def state_ways(
    args: argparse.Namespace,
    least: Least,
    limit: int,
    spread: Spread,
    devices: "Sequence[Device] | None" = None,
) -> "Iterator[Fact]":
    """Yield what would leave states room on the same GPUs, where these have none.

    ``args``: the flags, by which other methods are looked at. ``least``: what there is at least, of
    all devices together. ``devices``: what may run it, where ``--gpus`` does not say.
    """
    from brimful.show.summary import Fact

    num, words = spread.num_devices, "at least, before activations"
    sharded = spread_whole(num)
    whole = least_on_device(least, sharded).total
    may_leave = not spread.is_offloaded and not _has_one_memory(args)
    can_share = getattr(args, "tp", None) in {None, 1} and getattr(args, "pp", None) in {None, 1}
    if can_share and spread.parameters < num and whole <= limit:
        yield Fact("or with", f"--zero {_MOST} holds {format_bytes(whole)} {words}")
    away = least_on_device(least, sharded._replace(is_offloaded=True)).total
    if can_share and may_leave and whole > limit >= away:
        more = f"and {format_bytes(least.total - least.parameters)} on the host"
        yield Fact("or with", f"--offload optimizer holds {format_bytes(away)} {words}, {more}")
    yield from _ways(args, _changes(args), limit, spread, devices)


def method_ways(args: argparse.Namespace, limit: int, spread: Spread) -> "Iterator[Fact]":
    """Yield the methods that hold less than what was asked, with what they hold at least."""
    methods = (change for change in _changes(args) if "method" in change)
    yield from _ways(args, methods, limit, spread, None)


def roomier(job: "Job", least: Least, spread: Spread, instead_of: str = "") -> "Iterator[Fact]":
    """Yield the smallest GPU of which as many have more room than states take.

    ``least``: what there is at least, of all devices together. ``instead_of``: what they would be
    in place of; empty: nothing yet.
    """
    from brimful.cost.estimate import allocatable_bytes
    from brimful.search.larger_clusters import cards_for
    from brimful.show.summary import Fact

    held, num = least_on_device(least, spread).total, spread.num_devices
    for device in cards_for(job, instead_of):
        left = allocatable_bytes(device) - held
        if left >= _LEFT * held:
            gpus = device.name if num == 1 else f"{num}x{device.name}"
            words = f"--gpus {gpus} leaves {format_bytes(left)} for activations, of which nothing"
            yield Fact("instead", f"{words} is known (the smallest that leaves a tenth)")
            return


def _ways(
    args: argparse.Namespace,
    changes: "Iterable[dict[str, str]]",
    limit: int,
    spread: Spread,
    devices: "Sequence[Device] | None",
) -> "Iterator[Fact]":
    """Yield the recipes, optimizers and methods, of some, whose states have room here."""
    from brimful.show.summary import Fact

    is_told = False
    for change in changes:
        is_method = "method" in change
        if is_told and not is_method:
            continue
        try:
            changed = argparse.Namespace(**{**vars(args), **change})
            job = resolved.job_from(changed, devices)
        except BrimfulError:
            continue
        if (least := least_of(job)) is not None and least_on_device(least, spread).total <= limit:
            least = least_as_held(changed, job)
        each = None if least is None else least_on_device(least, spread).total
        if each is not None and each <= limit:
            engine = getattr(args, "engine", None) or defaults.ENGINE
            flag = "" if engine == defaults.ENGINE else f" --engine {defaults.ENGINE}"
            held = f"holds {format_bytes(each)} at least, before activations"
            typed = " ".join(f"--{name} {value}" for name, value in change.items())
            yield Fact("or allow", f"{typed}{flag} {held}")
            is_told = is_told or not is_method


def _changes(args: argparse.Namespace) -> "Iterator[dict[str, str]]":
    """Yield flags that could be allowed instead, what changes least first.

    Of recipes and optimizers, with which all trains as before, the first that has room is told.
    """
    from brimful.techniques.optimizers import OPTIMIZERS, rounded_of

    is_full = args.method in {None, "full", "qat"}
    is_wide = getattr(args, "precision", None) in {None, "bf16-mixed", "fp16-mixed", "fp32"}
    pure = {"precision": "bf16"} if is_wide else {}
    rule = OPTIMIZERS.get(getattr(args, "optimizer", None) or defaults.OPTIMIZER)
    name = "" if rule is None else rounded_of(rule)
    rounded = {"optimizer": name} if name else {}
    if is_full:
        yield from (change for change in (pure, rounded) if change)
        if pure and rounded:
            yield {**pure, **rounded}
    if args.method in {None, "full", *_ADAPTED[:1]}:
        yield from ({"method": method} for method in _ADAPTED if method != args.method)
