"""``brimful validate``: the published runs that are carried, predicted again."""

import argparse
import contextlib
from importlib.util import find_spec
from typing import TYPE_CHECKING

from brimful.cli import flags, parsing, resolved
from brimful.cli.output import show, show_json, show_summary
from brimful.errors import BrimfulError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from brimful.published.rows import PublishedRun

HELP = "predict the published runs that are carried, and say how near that comes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    parser.add_argument(
        "--family", metavar="NAME", default="", help="one collection of runs (default: all)"
    )
    parser.add_argument(
        "--file", metavar="PATH", type=parsing.path("--file"), help="runs of your own, one a line"
    )
    parser.add_argument(
        "--trace",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="trace programs whose profile does not ship, once: some seconds each (default: where "
        "torch is installed)",
    )
    parser.add_argument("--runs", action="store_true", help="show every run as well")
    flags.add_verbose(parser, "also print every table: errors by family and program, ranges, order")
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Predict and print."""
    from brimful.published.compare import compare_all
    from brimful.published.rows import published_runs, read_runs
    from brimful.published.scoreboard import scoreboard

    if args.file is not None and args.family:
        raise InputError("give either --family or --file: a file holds runs of any family")
    runs = published_runs(args.family) if args.file is None else read_runs(args.file)
    traces = find_spec("torch") is not None if args.trace is None else args.trace
    if traces:
        _trace(args, runs)
    rows = compare_all(runs)
    scores = scoreboard(rows)
    if args.json:
        show_json({"schema": "brimful.validate/1", "scores": scores, "runs": rows})
        return 0
    from brimful.report.validate import run_tables, score_tables, summary

    show_summary(summary(scores, rows))
    if args.verbose or args.runs:
        show("", *score_tables(scores), *(run_tables(rows) if args.runs else ()))
    return 0


def _trace(args: argparse.Namespace, runs: "Iterable[PublishedRun]") -> None:
    """Trace what runs need that no shipped profile covers; a row tells why one cannot be."""
    from brimful.cli.on_demand import traced_or_untold
    from brimful.cost.needed import needed
    from brimful.published.express import Expressed, in_our_terms

    for run in runs:
        told = in_our_terms(run)
        if isinstance(told, Expressed):
            asked = resolved.Asked(told.job, told.cluster, told.strategy)
            with contextlib.suppress(BrimfulError):
                traced_or_untold(args, asked, needed(told.job, told.strategy))
