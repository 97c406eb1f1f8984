"""What is said of a run that can neither be predicted nor simulated: the least that it needs."""

import argparse
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from brimful.cli import defaults, flags, resolved
from brimful.cli.limits import in_dollars
from brimful.cli.output import show_facts, show_summary
from brimful.errors import BrimfulError
from brimful.units import Share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from brimful.cost.money import Prices
    from brimful.hardware.cluster import Device, MatrixRates
    from brimful.hardware.datasheets import DatasheetRates
    from brimful.models.spec import ModelSpec
    from brimful.show.bound import Bounded
    from brimful.show.summary import Fact, Meter
    from brimful.values.job import Job


Found = TypeVar("Found")
MAX_CHANGES = 4
"""Refusals in a row that something alike is looked for behind."""


def tell_bound(args: argparse.Namespace, nearest: "Mapping[str, object]") -> bool:
    """Print what a run needs at least; whether anything is known of it.

    ``nearest``: flags with which something like it has a formula.
    """
    from brimful.cli.least import state_ways
    from brimful.show.bound import bound_summary

    if args.model is None:
        return False  # a command of another program
    if hasattr(args, "kinds"):
        return _tell_shop_bound(args)
    args = with_all_flags(args)
    known = _behind_refusals(_bounded, args)
    if known is None:
        return False
    alike, fixes = _beside(args, known, nearest or _by_cuda(args, known))
    summary = bound_summary(known, alike)
    show_summary(summary)
    ways = state_ways(args, known.least, known.usable_bytes, known.spread, ())
    show_facts(*fixes, *(ways if summary.verdict == "NO" else ()), *_assumed(args, known))
    return True


def _by_cuda(args: argparse.Namespace, known: "Bounded") -> "Mapping[str, object]":
    """Return the flags of as much memory on GPUs of NVIDIA's, where others were asked about."""
    from brimful.hardware.devices import cards, gpus
    from brimful.hardware.names import find_gpu, split_counts

    nodes, each, name = split_counts(args.gpus or defaults.GPUS)
    gpu = find_gpu(name)
    if not gpu or gpu in gpus():
        return {}

    def difference(device: "Device") -> int:
        return abs(device.usable_bytes - known.usable_bytes)

    nearest = min(cards(), key=difference).name
    counted = nearest if nodes * each == 1 else f"{nodes}x{each}x{nearest}"
    return {"gpus": counted, "card_memory": known.usable_bytes}


def with_all_flags(args: argparse.Namespace) -> argparse.Namespace:
    """Return the flags of a verb, and those of a strategy that it has not, as if not given."""
    parser = argparse.ArgumentParser()
    flags.add_strategy(parser, searched=False)
    return parser.parse_args([], argparse.Namespace(**vars(args)))


def _tell_shop_bound(args: argparse.Namespace) -> bool:
    """Print what GPUs cost at least."""
    from brimful.cli import goods, shop
    from brimful.cli.assumed import prices_from
    from brimful.hardware.gpus import gpus
    from brimful.units import shown_in

    try:
        in_dollars(args)
        model, num_parameters = _counted_model(args)
        prices = prices_from(args)
        kinds = goods.kinds_from(args.kinds, prices)
        job = shop.job_from(args, [gpus()[name] for name in kinds], model)
    except BrimfulError:
        return False
    if num_parameters is None:
        return False  # a bound would be of nothing
    with shown_in(args.currency):
        _show_shop_bound(args, job, num_parameters, kinds, prices)
    return True


def _show_shop_bound(
    args: argparse.Namespace,
    job: "Job",
    num_parameters: int,
    kinds: "Sequence[str]",
    prices: "Prices",
) -> None:
    """Print by how many GPUs of each kind a job may be held, and what they cost."""
    from brimful.cli import shop
    from brimful.cli.assumed import assumed_facts
    from brimful.cli.shop_least import offered
    from brimful.cost.least import least_bytes
    from brimful.search.shop.values import Limits
    from brimful.show.left_out import left_out_facts
    from brimful.show.shop_bound import shop_bound_summary, shop_room_summary
    from brimful.show.summary import Fact

    limits = Limits(args.deadline, args.money_budget)
    offers, rooms = offered(args, job, num_parameters, kinds, prices)
    if offers is None:
        least = least_bytes(job, num_parameters)
        show_summary(shop_room_summary(job, num_parameters, least, rooms, limits))
    else:
        show_summary(shop_bound_summary(job, num_parameters, offers, limits))
    show_facts(shop.prices_fact(args), *left_out_facts(job), *assumed_facts(args, job))
    for best in (offers or ())[:1]:
        gpu = f"{best.num_gpus}x{best.kind}" if best.num_gpus > 1 else best.kind
        words = f"brimful plan {args.model} --gpus {gpu} with the same job simulates it"
        show_facts(Fact("next", words))


def _assumed(args: argparse.Namespace, known: "Bounded") -> "tuple[Fact, ...]":
    from brimful.cli.assumed import assumed_facts
    from brimful.show.left_out import left_out_facts

    return (*left_out_facts(known.job), *assumed_facts(args, known.job))


def _bounded(args: argparse.Namespace) -> "Bounded | None":
    model, num_parameters = _counted_model(args)
    return None if num_parameters is None else bounded_of(args, model, num_parameters)


def bounded_of(
    args: argparse.Namespace, model: "ModelSpec", num_parameters: int
) -> "Bounded | None":
    """Count what a run needs at least; None: the card is not known."""
    from brimful.cost.least import (
        blocks_away_bytes,
        least_bytes,
        least_flops_per_token,
        spread_of,
    )
    from brimful.hardware.names import split_counts
    from brimful.show.bound import Bounded

    nodes, each, name = split_counts(args.gpus or defaults.GPUS)
    card = _card_of(name)
    if card is None:
        return None
    job, num = resolved.job_from(args, (), model), nodes * each
    flops = least_flops_per_token(job, num_parameters)
    is_early = bool(getattr(args, "optimizer_in_backward", None))
    least = least_bytes(job, num_parameters, is_early=is_early)
    offload = args.offload if isinstance(args.offload, str) else ""
    replicas, cut = _one(args.dp_replicate) or 1, (_one(args.pp) or 1) * (_one(args.tp) or 1)
    spread = spread_of(num, _one(args.zero), replicas=replicas, offload=offload, cut=cut)
    away = blocks_away_bytes(job, least, offload)
    rate = getattr(card.rates, job.precision.partition("-")[0], None) or 0.0
    # What the run may use of a card.
    limit, usable = args.memory_limit, resolved.card_bytes(args) or card.usable_bytes
    return Bounded(
        job=job,
        num_parameters=num_parameters,
        gpu=card.description,
        usable_bytes=limit.of(usable) if isinstance(limit, Share) else limit or usable,
        least=least,
        spread=spread._replace(parameters_away=away),
        tokens_per_s=rate * num / flops if flops and rate else None,
    )


class _Card(NamedTuple):
    """What is known of a GPU or a slice: what programs have of it, and its rates at most."""

    description: str
    usable_bytes: int
    rates: "DatasheetRates | MatrixRates"


def _card_of(name: str) -> _Card | None:
    """Return what a program can allocate, CUDA's context left out where that is known."""
    from brimful.cost.estimate import allocatable_bytes
    from brimful.hardware.datasheets import datasheets
    from brimful.hardware.devices import gpus
    from brimful.hardware.names import find_gpu
    from brimful.hardware.slices import find_slice, slice_device
    from brimful.hardware.usable import usable_memory

    if key := find_slice(name):
        device = slice_device(key)
        return _Card(device.description, allocatable_bytes(device), device.matrix_flops_per_s)
    gpu = find_gpu(name)
    sheet = datasheets().get(gpu)
    if sheet is None:
        return None
    usable = allocatable_bytes(gpus()[gpu]) if gpu in gpus() else usable_memory(sheet).num_bytes
    return _Card(sheet.description, usable, sheet.matrix_flops_per_s)


def _one(value: object) -> int | None:
    """Return what a flag fixes; nothing where it leaves a choice."""
    return value if isinstance(value, int) else None


def _counted_model(args: argparse.Namespace) -> "tuple[ModelSpec, int | None]":
    """Return a model, and how many parameters it has where that is known."""
    from brimful.models.config import known_count

    model = resolved.model_from(args)
    return model, known_count(model)


def _beside(
    args: argparse.Namespace, known: "Bounded", nearest: "Mapping[str, object]"
) -> "tuple[tuple[Fact, ...], tuple[Fact, ...]]":
    """Say what the nearest thing takes that can be predicted, or simulated, and what would fit."""
    if not nearest:
        return (), ()
    from brimful.show.settings import settings_words
    from brimful.show.summary import Fact

    changes = {"engine": None, "offload": None, "seq_len": known.job.seq_len, **nearest}
    found = _behind_refusals(_alike, argparse.Namespace(**{**vars(args), **changes}))
    if found is None:
        return (), ()
    asked, meter = found
    name, settings = asked.job.model.name, ", ".join(settings_words(asked.job, asked.strategy))
    if "gpus" in nearest:
        name += ", by CUDA's kernels on as much memory,"
    away = ", nothing offloaded" if args.offload not in {None, "none"} else ""
    alike = Fact("alike", f"{name} takes {meter.words}, with {settings}{away}")
    return (alike,), _fixes_alike(asked, meter)


def _fixes_alike(asked: "resolved.Asked", meter: "Meter") -> "tuple[Fact, ...]":
    """Say what would make fit what is alike, where it has a formula and does not fit."""
    from brimful.cli.fixes import fixes_of
    from brimful.cost.formula import missing_formula
    from brimful.search.beside import beside

    fits = meter.used_bytes <= meter.usable_bytes
    if fits or missing_formula(asked.job, asked.strategy, asked.cluster.device):
        return ()
    return fixes_of(asked, beside(*asked)).facts


def _alike(args: argparse.Namespace) -> "tuple[resolved.Asked, Meter] | None":
    asked = _best(args)
    meter = None if asked is None else _meter_of(asked)
    return None if asked is None or meter is None else (asked, meter)


def _meter_of(asked: "resolved.Asked") -> "Meter | None":
    """Predict what a strategy takes, or simulate it where no formula does."""
    from importlib.util import find_spec

    from msgspec.structs import replace

    from brimful.cost.estimate import estimate
    from brimful.cost.formula import missing_formula
    from brimful.cost.reserved import predicted_reserved
    from brimful.show.predicted import meter_of, replayed_meter

    if not missing_formula(asked.job, asked.strategy, asked.cluster.device):
        made = replace(estimate(*asked), predicted_reserved=predicted_reserved(*asked))
        return meter_of(made)
    if find_spec("torch") is None:
        return None
    from brimful.process.library_output import quiet_libraries

    quiet_libraries()
    from brimful.simulate.run import simulate

    reserved = simulate(*asked).reserved
    return None if reserved is None else replayed_meter(reserved)


def _behind_refusals(
    find: "Callable[[argparse.Namespace], Found | None]", args: argparse.Namespace
) -> "Found | None":
    """Find something with what each refusal on the way names instead; None: it is not found."""
    for _ in range(MAX_CHANGES):
        try:
            return find(args)
        except BrimfulError as error:
            if not error.nearest:
                return None
            args = argparse.Namespace(**{**vars(args), **error.nearest})
    return None


def _best(args: argparse.Namespace) -> "resolved.Asked | None":
    """Return what flags say, or the best of what a search with them finds."""
    if not hasattr(args, "objective"):
        return resolved.asked(args)
    from brimful.cli.searching import search, why_untold
    from brimful.search.budget import Budget

    if why_untold(args):
        return None  # a search by simulating takes too long for what is said beside
    plan = search(args, Budget(args.budget)).plan
    return resolved.Asked(plan.job, plan.cluster, plan.strategy)
