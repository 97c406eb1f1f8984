"""``brimful estimate``: what arithmetic says of one strategy."""

import argparse

from brimful.cli import flags
from brimful.cli.output import DOES_NOT_FIT, FITS, estimate_json, show, show_json

HELP = "predict peak memory and step time of one strategy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    flags.add_model(parser)
    flags.add_job(parser)
    flags.add_strategy(parser, searched=False)
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Estimate and print."""
    from brimful.cost.estimate import estimate

    asked = flags.asked(args)
    predicted = estimate(*asked)
    if args.json:
        usable_bytes, fits = predicted.usable_bytes, predicted.fits
        show_json(estimate_json(asked, predicted, usable_bytes=usable_bytes, fits=fits))
    else:
        from brimful.report.text import estimate_tables

        show(estimate_tables(*asked, predicted))
        if not predicted.fits:
            print("  brimful plan with the same job looks for a strategy that fits")
    return FITS if predicted.fits else DOES_NOT_FIT
