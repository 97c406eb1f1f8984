"""What a plan is compared with behind its answer, where its question asks for that."""

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import msgspec

from brimful.cli.output import host_may_fit
from brimful.errors import InputError, OutOfTimeError, UnsupportedError
from brimful.search.budget import Budget
from brimful.show.summary import Fact
from brimful.text.terminal import silenced

if TYPE_CHECKING:
    from brimful.search.solve import Solution
    from brimful.simulate.proof import Proof

_SLOW, _FASTER = 0.6, 0.8
"""Of a plan's seconds: with less some settings that do not fit take is what fits a slow way, and
with less what offloads is told."""
Search = Callable[[argparse.Namespace, Budget], "Solution"]


def compared_facts(
    args: argparse.Namespace, found: "Solution", search: Search, proof: "Proof | None"
) -> tuple[Fact, ...]:
    """Lay a plan beside what its flags ask about: a network, what is offloaded.

    ``proof``: of the plan; without one its answer is being printed, and nothing is told meanwhile.
    """
    with silenced() if proof is None else nullcontext():
        return (
            *_by_count(args, found), *(_networks(args, found) if _holds(found, proof) else ()),
            *_offloaded(found), *_away(args, found, search), *_alone(args, found, search),
        )  # fmt: skip


def _holds(found: "Solution", proof: "Proof | None") -> bool:
    """Whether nothing that is known speaks against a plan: of none that fails its speed is told."""
    made = found.plan.estimate
    fits = found.record.rows[0].fits and host_may_fit(None if made is None else made.host)
    return fits and (proof is None or proof.word != "no")


def _by_count(args: argparse.Namespace, found: "Solution") -> tuple[Fact, ...]:
    """Lay a plan on some of the devices, or all, beside what is best on other numbers of them."""
    if not found.counts:
        return ()
    from brimful.cli.assumed import prices_from
    from brimful.show.compared import counts_fact

    return (counts_fact(found.counts, prices_from(args)),)


def _networks(args: argparse.Namespace, found: "Solution") -> tuple[Fact, ...]:
    """Lay the network beside a faster one, and one that was assumed beside a slower."""
    plan, step_s = found.plan, found.record.rows[0].step_s
    if plan.cluster.num_nodes == 1 or plan.estimate is None or not step_s:
        return ()
    from brimful.cli.assumed import is_network_assumed
    from brimful.cost.network import times_by, yardstick
    from brimful.show.compared import network_fact

    asked = (plan.job, plan.cluster, plan.strategy)
    slower, faster = (
        (name, times_by(*asked, step_s, name) if name else None) for name in yardstick(plan.cluster)
    )
    is_assumed = is_network_assumed(args)
    told = network_fact(plan.cluster.network, slower, faster, is_assumed=is_assumed)
    return () if told is None else (told,)


def _offloaded(found: "Solution") -> tuple[Fact, ...]:
    """Lay a plan that offloads beside the same without that; nothing of one that does not.

    By formulas where there are some, else by simulating both.

    Nor of one whose tensors do not fit: where they do and the plan does not, it is the host's turn.
    """
    from brimful.cost.estimate import limit_bytes
    from brimful.techniques.offload import NONE

    plan = found.plan
    if plan.strategy.offload == NONE or found.record.rows[0].peak_bytes > limit_bytes(plan):
        return ()
    from brimful.cost.estimate import estimate_or_none
    from brimful.cost.reserved import predicted_reserved
    from brimful.search.holding import as_it_fits
    from brimful.show.compared import offload_facts
    from brimful.show.predicted import offloaded_bytes

    here = msgspec.structs.replace(plan.strategy, offload=NONE)
    made = estimate_or_none(plan.job, plan.cluster, here)
    if plan.estimate is not None and made is not None:
        fits = made.fits and as_it_fits(plan.job, plan.cluster, here) is not None
        without = predicted_reserved(plan.job, plan.cluster, here) if made.fits else None
        peaks = [each.predicted_peak_allocated_bytes for each in (plan.estimate, made)]
        away = offloaded_bytes(plan.estimate)
        return offload_facts(plan.cluster, peaks, away, without, fits=fits)
    from brimful.process.library_output import quiet_libraries

    quiet_libraries()
    from brimful.simulate.run import simulate

    try:
        both = [simulate(plan.job, plan.cluster, each) for each in (plan.strategy, here)]
    except UnsupportedError:
        return ()
    peaks = [each.simulated_peak_allocated_bytes for each in both]
    held = both[0].simulated_host_block_bytes or both[0].simulated_peak_host_bytes
    held *= plan.cluster.devices_per_node
    reserved = both[1].reserved
    fits = reserved is not None and reserved.word == "fits"
    return offload_facts(plan.cluster, peaks, held, reserved, fits=fits)


def _away(args: argparse.Namespace, found: "Solution", search: Search) -> tuple[Fact, ...]:
    """Say that an optimizer on the host is much faster, where nobody said what the host has.

    It is not searched beside what fits without then. Looked for where what fits is a slow way.
    """
    from brimful.hardware.datasheets import has_one_memory
    from brimful.show.compared import away_fact
    from brimful.techniques.offload import NONE, OPTIMIZER

    plan, best = found.plan, found.record.rows[0]
    device, is_free = plan.cluster.device, getattr(args, "offload", None) is None
    is_open = plan.strategy.offload == NONE and is_free and not plan.cluster.host_ram_bytes
    if plan.estimate is None or not is_open or not best.fits or not best.step_s:
        return ()
    if device.kernels != "cuda" or has_one_memory(device.name) or args.source is not None:
        return ()
    fastest = min((row.step_s for row in found.record.rows if row.step_s), default=best.step_s)
    if fastest > _SLOW * best.step_s or not _has_room(found, _FASTER * best.step_s):
        return ()
    try:
        away = search(argparse.Namespace(**{**vars(args), "offload": OPTIMIZER}), Budget(1))
    except (InputError, OutOfTimeError, UnsupportedError):
        return ()
    other = away.record.rows[0]
    is_worth = other.fits and other.step_s and other.step_s <= _FASTER * best.step_s
    return (away_fact(away),) if is_worth and away.plan.estimate is not None else ()


def _has_room(found: "Solution", slowest_s: float) -> bool:
    """Whether what is as fast may fit once all is away that an optimizer can take along."""
    from brimful.cost.estimate import estimate_or_none, limit_bytes
    from brimful.show.predicted import offloaded_bytes
    from brimful.techniques.offload import OPTIMIZER

    plan, rows = found.plan, found.record.rows
    there = msgspec.structs.replace(plan.strategy, offload=OPTIMIZER)
    if (made := estimate_or_none(plan.job, plan.cluster, there)) is None:
        return True
    most = limit_bytes(plan) + offloaded_bytes(made)
    return any(row.peak_bytes <= most for row in rows if row.step_s and row.step_s <= slowest_s)


def _alone(args: argparse.Namespace, found: "Solution", search: Search) -> tuple[Fact, ...]:
    """Lay one node beside all where somebody asks about the network between them."""
    from brimful.show.compared import NOT_ALONE, alone_fact

    cluster = found.plan.cluster
    if args.network is None or cluster.num_nodes == 1 or found.space is None:
        return ()
    one = {"gpus": f"{cluster.devices_per_node}x{cluster.device.name}", "network": None}
    asked = argparse.Namespace(**{**vars(args), **one})
    if _is_too_small(asked, found):
        return (NOT_ALONE,)
    try:
        alone = search(asked, Budget(args.budget))
    except (InputError, OutOfTimeError, UnsupportedError):
        return ()
    return (alone_fact(found, alone),)


def _is_too_small(args: argparse.Namespace, found: "Solution") -> bool:
    """Whether nothing that flags may ask for can hold, however it is searched."""
    from brimful.cli import resolved
    from brimful.cli.searching import pins_from
    from brimful.search.offloading import is_hopeless
    from brimful.search.pins import Pins

    cluster, (pins, *also) = resolved.cluster_from(args), pins_from(args)
    job, strategy = found.plan.job, found.plan.strategy
    is_free = not also and pins == Pins(
        reference=pins.reference, fused_kernels=pins.fused_kernels, allocator=pins.allocator
    )
    is_shared = job.global_batch % cluster.num_devices == 0
    return is_free and is_shared and is_hopeless(job, cluster, strategy.attention)
