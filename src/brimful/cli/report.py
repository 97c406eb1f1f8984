"""``brimful report``: the one-page report of a run, and its verdict in the terminal."""

import argparse

from brimful.cli import flags
from brimful.cli.output import show, show_json

HELP = "write RUN_DIR/report.html and print the verdict"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        type=flags.path("RUN_DIR"),
        help="the --out folder of brimful train, or the folder of a loop that was watched",
    )
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read the run, judge, write, print."""
    import msgspec

    from brimful.report.html import write_report
    from brimful.report.run_folder import read_run_folder
    from brimful.report.text import verdict_table
    from brimful.report.watched_run import is_watched
    from brimful.verdict import judge

    if is_watched(args.run_dir):
        return _watched(args)
    folder = read_run_folder(args.run_dir)
    verdict = judge(folder.plan, folder.simulation, folder.measurement, takeovers=folder.takeovers)
    path = write_report(args.run_dir)
    if args.json:
        show_json({**msgspec.structs.asdict(verdict), "report": str(path)})
    else:
        show(verdict_table(verdict), *verdict.takeovers)
        print(f"report: {path}")
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
        print(f"report: {path}")
    return 0
