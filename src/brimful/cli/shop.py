"""``brimful shop``: which GPU and how many, under a deadline or a budget; own or rent."""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from brimful.cli import defaults, flags, goods, output_paths, parsing, resolved, usual
from brimful.cli.assumed import assumed_facts, prices_from
from brimful.cli.limits import add_limits, in_dollars
from brimful.cli.output import DOES_NOT_FIT, FITS, show, show_answer, show_json
from brimful.cli.run_length import is_length_said
from brimful.errors import InputError, UnknownMemoryError
from brimful.hardware.links import network_names
from brimful.text.terminal import say
from brimful.units import DOLLARS, parse_electricity, parse_money

if TYPE_CHECKING:
    from brimful.cost.money import Prices
    from brimful.hardware.cluster import Cluster, Device
    from brimful.models.spec import ModelSpec
    from brimful.report.shop import Shopped
    from brimful.search.shop.values import Market, Option, Recipe, Request
    from brimful.show.summary import Fact
    from brimful.values.job import Job

HELP = "which GPU, how many, for how much: cost against days, under a deadline or a budget"
OUTPUT_SUFFIXES = (".html", ".svg")
WHAT = "comparing GPUs"
QUICK_S = 2.0
"""Before which nothing is told of what was found: the answer is as near."""
_MARKETS = {
    "secure": "of data centres",
    "community": "of single owners",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a name (brimful models), folder or config.json")
    flags.add_job(parser)
    flags.add_field(add, "attention")
    add_limits(parser)
    _add_goods(parser.add_argument_group("what is compared").add_argument)
    _add_owning(parser.add_argument_group("own or rent").add_argument)
    add(
        "-o",
        "--output",
        metavar="FILE",
        type=output_paths.output_file("-o", suffixes=OUTPUT_SUFFIXES),
        help="write the plot here, with everything else (.html) or alone (.svg)",
    )
    flags.add_prices(parser, market=defaults.MARKET)
    flags.add_verbose(parser)
    flags.add_json(parser)


def _add_goods(add: Callable[..., Any]) -> None:
    add(
        "--gpus",
        "--kinds",
        dest="kinds",
        metavar="A,B",
        help="these GPUs only (brimful gpus), or these machines: 8xa100-80gb,2x8xh100; default: "
        "all that have a price",
    )
    add(
        "--max-gpus",
        metavar="N",
        type=parsing.whole("--max-gpus"),
        help=f"no more than these; default {defaults.MAX_GPUS} in {defaults.MAX_NODES} nodes, and "
        f"{defaults.MOST_GPUS} where a deadline is not met with these",
    )
    add(
        "--network",
        metavar="NAME",
        type=parsing.choice("network", network_names()),
        help=f"between nodes of 8: {', '.join(network_names())}; default: of the maker's own "
        "systems, unknown of others",
    )
    add(
        "--every",
        action="store_true",
        help="plan what cannot win too, for the plot: minutes instead of seconds",
    )


def _add_owning(add: Callable[..., Any]) -> None:
    add("--own", metavar="A,B", help="GPUs that you have, or would buy: rtx-4090,2xrtx-3090")
    add("--electricity", metavar="PRICE", type=parse_electricity, help="e.g. 0.30usd/kWh")
    add("--buy", metavar="USD", type=parse_money, help="what one of --own costs, e.g. 1600usd")
    add("--years", metavar="N", type=_positive("--years"), help="that a bought GPU serves")
    add(
        "--hours-per-month",
        metavar="N",
        type=_positive("--hours-per-month"),
        help="that it is used, to spread its price over",
    )


def _positive(what: str) -> Callable[[str], float]:
    read = parsing.number(what)

    def parse(text: str) -> float:
        value = read(text)
        if not 0 < value < float("inf"):
            raise InputError(f"{what} {text} is not over 0; give more")
        return value

    return parse


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    if resolved.is_plan(args.model):
        raise InputError(f"{args.model} already is a plan; give a model to shop for")
    if args.task == flags.INFERENCE:
        raise InputError(
            "--task inference trains nothing; brimful estimate and brimful simulate take it, as in "
            "brimful estimate MODEL --task inference --gpus 8xh100"
        )
    in_dollars(args)
    shopped = shop(args)
    if args.output is not None:
        _write(shopped, args.output)
    if args.json:
        show_json(shop_json(shopped))
    else:
        _show(args, shopped)
    return FITS if shopped.choice is not None and shopped.choice.meets else DOES_NOT_FIT


def _show(args: argparse.Namespace, shopped: "Shopped") -> None:
    """Print the answer, and the tables where they were asked for."""
    from brimful.search.shop.own import cheapest_of
    from brimful.show.left_out import left_out_facts
    from brimful.show.shop import shop_summary, unpriced_facts
    from brimful.show.shop_owned import leading
    from brimful.show.summary import Fact
    from brimful.units import shown_in

    asked = (shopped.job, shopped.found, shopped.limits, shopped.choice)
    with shown_in(args.currency):
        summary = shop_summary(*asked, shopped.owned)
    taken = None if shopped.choice is None else shopped.choice.best
    if taken is not None:
        cheapest = cheapest_of(shopped.found.owned, shopped.owned, shopped.limits, taken)
        taken = leading(shopped.found.owned, cheapest) or taken
    there = argparse.Namespace(**{**vars(args), "gpus": taken.gpus if taken else None})
    with shown_in(args.currency):
        is_own = taken is not None and is_own_price(shopped.prices, taken.kind)
        below = [prices_fact(args, None if is_own else taken)]
    if args.kinds:
        below = [*unpriced_facts(shopped.found, shopped.limits, shopped.unpriced), *below]
    precision = shopped.job.precision if taken is None else taken.precision
    job = msgspec.structs.replace(shopped.job, precision=precision)
    below += [*left_out_facts(job), *assumed_facts(there, job), *money_facts(args, taken)]
    if taken is not None:
        words = f"brimful plan {args.model} --gpus {taken.gpus} with the same job"
        below.append(Fact("next", words))
    show_answer(summary, below)
    if args.output is not None:
        say(f"written to {args.output}")
    if args.verbose:
        from brimful.report.shop import shop_tables

        show("", *shop_tables(shopped))


def money_facts(args: argparse.Namespace, taken: "Option | None" = None) -> "list[Fact]":
    """Say at which rate amounts are in the user's own currency, and what is taken in dollars."""
    from brimful.show.summary import Fact

    if args.currency is None or args.currency.currency == DOLLARS:
        return []
    name, rate = args.currency.currency.upper(), args.currency.amount
    if taken is None or taken.predicted_usd is None:
        return [Fact("money", f"1 {name} is {rate:g} USD, in which prices are")]
    hour = taken.usd_per_gpu_hour
    each = "" if hour is None else f", {hour:,.2f} a GPU-hour"
    words = f"1 {name} is {rate:g} USD: {taken.gpus} for {taken.predicted_usd:,.2f} USD{each}"
    return [Fact("money", words)]


def is_own_price(prices: "Prices", kind: str) -> bool:
    """Whether the user said what an hour of a kind costs, so that no market's price is told."""
    price = prices.gpus.get(kind)
    return price is not None and not price.whose


def prices_fact(args: argparse.Namespace, taken: "Option | None" = None) -> "Fact":
    """Say whose prices are compared, and what the other market asks for what is taken."""
    from brimful.cost.money import HOUR_S, shipped_prices
    from brimful.search.shop.values import DAY_S
    from brimful.show.summary import Fact
    from brimful.units import format_money

    own = f"{args.prices}, else " if args.prices else ""
    date = shipped_prices(args.market).date
    other = "community" if args.market == "secure" else "secure"
    price, there = shipped_prices(other).gpus.get(taken.kind if taken else ""), ""
    if price is not None and taken is not None:
        hours = taken.num_gpus * taken.predicted_days * DAY_S / HOUR_S
        each, whole = price.usd_per_gpu_hour, price.usd_per_gpu_hour * hours
        there = (
            f"; {taken.gpus} by --market {other}: {format_money(whole)} at {format_money(each)} a "
            f"GPU-hour"
        )
    return Fact("prices", f"{own}{_MARKETS[args.market]}, up to {date}{there}")


def shop(args: argparse.Namespace) -> "Shopped":
    """Resolve the flags, compare, choose."""
    from brimful.cli.shop_traced import traced_for_shop
    from brimful.hardware.gpus import gpus
    from brimful.report.shop import Shopped
    from brimful.search.shop.choose import choose
    from brimful.search.shop.values import Limits

    prices = goods.prices_of(args.kinds, prices_from(args))
    kinds = goods.kinds_from(args.kinds, prices)
    job = job_from(args, [gpus()[name] for name in kinds])
    limits = Limits(args.deadline, args.money_budget)
    request = _request(args, job, kinds, prices)
    untold = traced_for_shop(args, request)
    try:
        found = _market(args, request)
    except UnknownMemoryError as error:
        if not untold:
            raise
        raise UnknownMemoryError(f"{error}, and none can be traced here") from error
    choice = choose(found, limits)
    is_open = args.max_gpus is None and not request.machines
    if is_open and (choice is None or choice.over_days):
        found = _market(args, request._replace(max_gpus=defaults.MOST_GPUS, max_nodes=None))
        choice = choose(found, limits)
    unpriced = tuple(name for name in (kinds if args.kinds else gpus()) if name not in prices.gpus)
    from brimful.search.shop.own import Terms, ownership

    terms = Terms(args.electricity, args.buy, args.years, args.hours_per_month)
    owned = tuple(ownership(each, prices, terms) for each in found.owned)
    return Shopped(job, found, limits, choice, owned, prices, unpriced)


def job_from(
    args: argparse.Namespace, devices: "Sequence[Device]", model: "ModelSpec | None" = None
) -> "Job":
    """Return the job; how many GPUs share its batch is not known yet.

    A run of which nobody says how long it is has as many tokens as ``plan`` tells the price of.
    ``model``: what is trained, where its name was resolved already.
    """
    args.gpus = args.micro_batch = None
    if not is_length_said(args):
        args.tokens, args.is_length_assumed = defaults.SHOP_TOKENS, True
    batch = args.global_batch
    args.global_batch = goods.batch_for(args) if batch is None else batch
    job = resolved.job_from(args, devices, model)
    args.global_batch = batch
    return job


def recipes_from(
    args: argparse.Namespace, of_all: "Recipe", devices: "Sequence[Device]"
) -> "dict[str, Recipe]":
    """Return what kinds run that cannot run a job as the others do: what ``plan`` takes there.

    ``of_all``: what the others run.
    """
    job = of_all.job
    jobs, found = {job.precision: job}, {}
    for device in devices:
        precision = job.precision if args.precision else usual.usual_precision([device])[0]
        if precision not in jobs:
            other = argparse.Namespace(**{**vars(args), "precision": precision})
            jobs[precision] = job_from(other, [device], job.model)
        attention = usual.attention_of_kind(args, jobs[precision], device)
        recipe = of_all._replace(job=jobs[precision], attention=attention)
        if recipe != of_all:
            found[device.name] = recipe
    return found


def _request(
    args: argparse.Namespace, job: "Job", kinds: tuple[str, ...], prices: "Prices"
) -> "Request":
    """Say what is compared: what is usual, unless somebody said how many."""
    from brimful.hardware.gpus import gpus
    from brimful.search.shop.values import Limits, Recipe, Request
    from brimful.show.shop import NUM_NAMED

    is_whole = bool(args.verbose or args.json or args.output or args.every)
    limits, owned = Limits(args.deadline, args.money_budget), _owned(args)
    devices = [*(gpus()[name] for name in kinds), *(cluster.device for cluster in owned)]
    machines = goods.machines_from(args)
    num_named = max(len(kinds), len(machines))
    is_told = args.kinds is not None and num_named <= NUM_NAMED
    of_all = Recipe(job, usual.attention_from(args, job, None))
    return Request(
        job=job,
        attention=of_all.attention,
        kinds=kinds,
        prices=prices,
        max_gpus=args.max_gpus or defaults.MAX_GPUS,
        max_nodes=None if args.max_gpus else defaults.MAX_NODES,
        network=args.network or "",
        usd_per_kwh=args.electricity,
        owned=owned,
        others=args.kinds is not None and args.attention is None,
        every=args.every,
        limits=None if is_whole else limits,
        fewest=is_whole or (is_told and limits.are_none and not machines),
        each=is_told and num_named > 1,
        recipes=recipes_from(args, of_all, devices),
        machines=machines,
    )


def _market(args: argparse.Namespace, request: "Request") -> "Market":
    """Compare, and tell what is found meanwhile."""
    from brimful.cli.progress import Progress
    from brimful.search.shop.market import market
    from brimful.search.shop.values import Option
    from brimful.show.shop import found_words
    from brimful.units import shown_in

    with Progress(WHAT, quiet=args.json) as progress:
        began_s = time.monotonic()
        waiting: list[Option] = []

        def tell() -> None:
            if time.monotonic() - began_s < QUICK_S:
                return  # the answer may be as near
            with shown_in(args.currency):
                for each in waiting:
                    is_own = each.usd_per_gpu_hour is None and args.own is not None
                    progress.note(f"{WHAT}: {'yours' if is_own else 'found'} {found_words(each)}")
            waiting.clear()

        def on_look(what: str, share: float) -> None:
            tell()
            progress.update(what, share)

        def on_found(option: Option) -> None:
            waiting.append(option)
            tell()

        return market(request, on_look, on_found)


def _owned(args: argparse.Namespace) -> "tuple[Cluster, ...]":
    if args.own is None:
        if args.buy is not None:
            raise InputError(f"--buy {args.buy:g} is what one of --own costs; give --own too")
        return ()
    names = [part for part in args.own.split(",") if part.strip()]
    for name in names:
        if name.strip().lower().endswith("local"):
            raise InputError(f"--own {name}: name the GPU itself, as brimful gpus does")
    return goods.clusters_of(names, args.network)


def shop_json(shopped: "Shopped") -> dict[str, Any]:
    """Return a market as one JSON object."""
    from brimful.search.shop.advice import advice
    from brimful.search.shop.values import SHOP_SCHEMA

    return {
        "schema": SHOP_SCHEMA,
        "job": shopped.job,
        "limits": shopped.limits._asdict(),
        "choice": shopped.choice,
        "market": shopped.found,
        "owned": shopped.owned,
        "advice": advice(shopped.found),
        "unpriced": shopped.unpriced,
    }


def _write(shopped: "Shopped", output: Path) -> None:
    from brimful.files.writing import write_text
    from brimful.report.shop_page import shop_page
    from brimful.report.shop_plot import shop_plot

    make = shop_plot if output.suffix == ".svg" else shop_page
    write_text(output, make(shopped))
