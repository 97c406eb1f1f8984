"""``brimful report``: the one-page report of a run, and its verdict in the terminal."""

import argparse

from brimful.cli import flags, parsing
from brimful.cli.output import show, show_json
from brimful.errors import InputError
from brimful.text.terminal import say

HELP = "write RUN_DIR/report.html and print the verdict"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        type=parsing.path("RUN_DIR"),
        help="the --out folder of brimful train, or the folder of a loop that was watched",
    )
    parser.add_argument(
        "--against",
        metavar="RUN_DIR",
        type=parsing.path("RUN_DIR"),
        help="another run's folder: write one page that holds both side by side",
    )
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read the run, judge, write, print."""
    import msgspec

    from brimful.measure.verdict import judge
    from brimful.report.html import write_report
    from brimful.report.run_folder import read_run_folder
    from brimful.report.text import verdict_table
    from brimful.report.watched_run import is_watched
    from brimful.values.run_words import describe_event

    if args.against is not None:
        return _against(args)
    if is_watched(args.run_dir):
        return _watched(args)
    folder = read_run_folder(args.run_dir)
    verdict = judge(folder.plan, folder.simulation, folder.measurement, takeovers=folder.takeovers)
    path = write_report(args.run_dir)
    if args.json:
        events = [describe_event(row) for row in folder.events]
        show_json({**msgspec.structs.asdict(verdict), "events": events, "report": str(path)})
    else:
        show(verdict_table(verdict), *map(describe_event, folder.events))
        say(f"report: {path}")
    return 0


def _against(args: argparse.Namespace) -> int:
    """Write the page of two runs, and print their figures."""
    from brimful.report.against import differences, figure_rows, names_of, write_against
    from brimful.report.run_folder import read_run_folder
    from brimful.report.tables import filled_table

    if args.run_dir.resolve() == args.against.resolve():
        raise InputError(f"{args.run_dir} cannot be held against itself; give another run's folder")
    folder, other = read_run_folder(args.run_dir), read_run_folder(args.against)
    names = names_of(folder, other)
    path = args.run_dir / f"against-{args.against.resolve().name}.html"
    write_against(folder, other, path)
    rows, differ = figure_rows(folder, other), differences(folder, other)
    if args.json:
        keys = ("name", "run", "against", "difference")
        figures = [dict(zip(keys, row, strict=True)) for row in rows]
        inputs = [dict(zip(keys, row, strict=False)) for row in differ]
        told = {"schema": "brimful.against/1", "figures": figures, "inputs": inputs}
        show_json({**told, "report": str(path)})
    else:
        show(filled_table("Figures", ("figure", *names, "difference"), rows))
        show(filled_table("Inputs that differ", ("input", *names), differ))
        say(f"report: {path}")
    return 0


def _watched(args: argparse.Namespace) -> int:
    """Do the same for a loop that was watched."""
    import msgspec

    from brimful.report.watched import watched_lines, write_watched_report
    from brimful.report.watched_run import read_watched

    run = read_watched(args.run_dir)
    path = write_watched_report(run, args.run_dir)
    if args.json:
        show_json({**msgspec.structs.asdict(run.verdict), "report": str(path)})
    else:
        show(watched_lines(run))
        say(f"report: {path}")
    return 0
