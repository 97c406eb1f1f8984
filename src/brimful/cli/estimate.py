"""``brimful estimate``: what arithmetic says of one strategy."""

import argparse
from typing import TYPE_CHECKING

from brimful.cli import flags, inference
from brimful.cli.output import (
    DOES_NOT_FIT,
    FITS,
    estimate_json,
    host_may_fit,
    show,
    show_host,
    show_json,
)
from brimful.cli.proof import show_replayed
from brimful.terminal import say

if TYPE_CHECKING:
    from brimful.cost.money import Cost
    from brimful.plan import Estimate

HELP = "predict peak memory and step time of one strategy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    flags.add_model(parser)
    flags.add_job(parser)
    flags.add_strategy(parser, searched=False)
    inference.add_arguments(parser)
    parser.add_argument(
        "--prices",
        metavar="FILE",
        type=flags.path("--prices"),
        help="YAML or JSON of your own prices, GPU: dollars per GPU-hour; shows the run's cost, as "
        "--tokens does",
    )
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Estimate and print."""
    if inference.is_asked(args):
        return inference.run_estimate(args)
    from msgspec.structs import replace

    from brimful.cost.estimate import estimate
    from brimful.cost.reserved import predicted_reserved

    asked = flags.asked(args)
    predicted = replace(estimate(*asked), predicted_reserved=predicted_reserved(*asked))
    cost = _cost(args, asked, predicted)
    if args.json:
        usable_bytes, fits = predicted.usable_bytes, predicted.fits
        content = estimate_json(asked, predicted, usable_bytes=usable_bytes, fits=fits)
        show_json(content if cost is None else {**content, "cost": cost})
    else:
        from brimful.report.text import estimate_tables

        show(estimate_tables(*asked, predicted, cost=cost))
        show_replayed(predicted)
        if not predicted.fits:
            say("  brimful plan with the same job looks for a strategy that fits")
        show_host(predicted.host)
    return FITS if predicted.fits and host_may_fit(predicted.host) else DOES_NOT_FIT


def _cost(args: argparse.Namespace, asked: flags.Asked, predicted: "Estimate") -> "Cost | None":
    """Predict what the whole run costs, where the user said how long it is or at what price."""
    if args.tokens is None and args.prices is None:
        return None
    from brimful.cost.money import cost_of, read_prices, shipped_prices

    prices = shipped_prices() if args.prices is None else read_prices(args.prices)
    return cost_of(asked.job, asked.cluster, predicted.predicted_step_s, prices)
