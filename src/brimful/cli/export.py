"""``brimful export``: a plan as what something else takes."""

import argparse
from pathlib import Path

from brimful.cli import flags
from brimful.cli.output import show_json
from brimful.errors import InputError

HELP = "write a plan as what something else takes: a torchrun line, a Slurm script"
_TARGETS = ("torchrun", "slurm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    parser.add_argument("plan", metavar="PLAN", help="plan.yaml of brimful plan -o")
    parser.add_argument(
        "--to",
        required=True,
        metavar="TARGET",
        type=flags.choice("target", _TARGETS),
        help=" or ".join(_TARGETS),
    )
    parser.add_argument(
        "--data", default="DATA", metavar="PATH", help="what it is trained on; default DATA"
    )
    parser.add_argument(
        "--out", default="runs/first", metavar="DIR", help="the run's folder; default runs/first"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write here, not to standard output"
    )
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read the plan, write the text."""
    from brimful.export import TARGETS
    from brimful.export.given import Given
    from brimful.files import write_text
    from brimful.plan import read_plan

    if not flags.is_plan(args.plan):
        raise InputError(f"{args.plan} is no plan; brimful plan MODEL -o plan.yaml makes one")
    text = TARGETS[args.to](read_plan(Path(args.plan)), Given(args.plan, args.data, args.out))
    if args.output is not None:
        write_text(args.output, text)
    if args.json:
        show_json({"schema": "brimful.export/1", "to": args.to, "text": text})
    elif args.output is None:
        print(text, end="")
    else:
        print(f"wrote {args.output}")
    return 0
