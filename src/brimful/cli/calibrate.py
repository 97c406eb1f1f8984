"""``brimful calibrate``: measure this machine's rates."""

import argparse

import msgspec

from brimful.cli import flags
from brimful.cli.output import show, show_json

HELP = "measure this machine's matrix rates, bandwidth and launch time, and remember them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Calibrate, store, print."""
    from brimful.cli.progress import Progress
    from brimful.hardware.probe import probe_local
    from brimful.process.library_output import quiet_libraries

    quiet_libraries()
    from brimful.measure.calibrate import calibrate

    with Progress("calibrating", quiet=args.json) as progress:
        device = calibrate(probe_local(), on_progress=progress.update)
    if args.json:
        show_json({"schema": "brimful.calibrate/1", "device": msgspec.structs.asdict(device)})
    else:
        from brimful.report.text import device_table

        show(device_table(device))
    return 0
