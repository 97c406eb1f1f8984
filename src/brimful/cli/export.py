"""``brimful export``: a plan as what something else takes."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.cli import flags, output_paths, parsing, resolved
from brimful.cli.output import DOES_NOT_FIT, FITS, show_json
from brimful.errors import InputError
from brimful.text.terminal import note, say

if TYPE_CHECKING:
    from brimful.export.given import Exported
    from brimful.values.plan import Estimate, Plan

HELP = "write a plan as what something else takes, and say what that cannot express"
_TARGETS = (
    "torchrun", "slurm", "deepspeed", "accelerate", "hf-trainer", "torchtitan", "trl", "axolotl",
    "llama-factory",
)  # fmt: skip
_LIKE = {"unsloth": "trl", "sft": "trl"}
"""Programs on top of transformers and PEFT that are no targets: the target nearest to each."""
_ONCE = "_epochs: 1\n"
"""In a text that has no number of steps."""
_WITHOUT_COMMENTS = "deepspeed"
"""The target whose text has no place for what is predicted and lost."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    parser.add_argument("plan", metavar="PLAN", help="plan.yaml of brimful plan -o")
    parser.add_argument(
        "--to",
        required=True,
        metavar="TARGET",
        type=_target,
        help=" or ".join(_TARGETS),
    )
    parser.add_argument(
        "--data", default="DATA", metavar="PATH", help="what it is trained on; default DATA"
    )
    parser.add_argument(
        "--out", default="runs/first", metavar="DIR", help="the run's folder; default runs/first"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=output_paths.output_file("-o"),
        metavar="FILE",
        help="write here, not to standard output",
    )
    flags.add_json(parser)


def _target(text: str) -> str:
    """Read a target; of a program that is none, name the nearest and what to copy from it."""
    if (near := _LIKE.get(text.lower())) is not None:
        raise InputError(
            f"--to {text} is no target; the nearest is --to {near}: copy its lora_*, load_in_*, "
            f"per_device_train_batch_size, gradient_* and learning-rate keys"
        )
    return parsing.choice("target", _TARGETS)(text)


def run(args: argparse.Namespace) -> int:
    """Read the plan, write the text."""
    from brimful.cli.data_rows import rows_of
    from brimful.export import TARGETS
    from brimful.export.given import Given, about
    from brimful.export.lost import lost_lines
    from brimful.export.rows import is_padded, length_words
    from brimful.export.written import estimate_written, written_words
    from brimful.files.writing import write_text
    from brimful.values.plan import read_plan

    if not resolved.is_plan(args.plan):
        raise InputError(f"{args.plan} is no plan; brimful plan MODEL -o plan.yaml makes one")
    plan = read_plan(Path(args.plan))
    rows = rows_of(args.data) if is_padded(plan) else None
    given = Given(args.plan, args.data, args.out, rows)
    exported = TARGETS[args.to](plan, given)
    written = estimate_written(plan, exported.lost)
    if written is not None:
        given = given._replace(written=written_words(plan, written, args.to))
        exported = TARGETS[args.to](plan, given)
    if args.output is not None:
        write_text(args.output, exported.text)
    if not plan.is_length_given and _ONCE in exported.text:
        note("once through the data: the plan was given no --tokens or --steps")
    if "max_steps" in exported.text or rows is not None:
        note_words = length_words(plan, rows)
        if note_words:
            note(note_words)
    code = _tell_no(args, plan, written)
    if args.json:
        show_json(_json(plan, exported, args.to))
        return code
    if args.to == _WITHOUT_COMMENTS:
        # Standard output may be the JSON, and nothing else may be in it.
        lines = [*about(plan, given, args.to), *lost_lines(exported.lost)]
        say("\n".join(lines), file=sys.stderr)
    if args.output is None:
        say(exported.text, end="")
    else:
        say(f"wrote {args.output}")
    return code


def _tell_no(args: argparse.Namespace, plan: "Plan", written: "Estimate | None") -> int:
    """Say on standard error that what is written does not fit, so that nobody starts it.

    ``written``: predicted of the target; None: it runs the plan as it is, or that is not known.
    Returns the exit code: as of ``plan``, 1 where it does not fit.
    """
    from brimful.show.predicted import meter_of, verdict_of

    runs = written or plan.estimate
    if runs is None or verdict_of(runs) != "NO":
        return FITS
    what, where = (
        (args.plan, "") if written is None else (f"what {args.to} runs", f" --for {args.to}")
    )
    say(
        f"brimful: {what} does not fit: {meter_of(runs).words}; what is written runs out of memory "
        f"there, and brimful plan{where} names what would fit",
        file=sys.stderr,
    )
    return DOES_NOT_FIT


def _json(plan: "Plan", exported: "Exported", to: str) -> dict[str, Any]:
    estimate = plan.estimate
    return {
        "schema": "brimful.export/2",
        "to": to,
        "text": exported.text,
        "predicted_peak_allocated_bytes": (
            estimate.predicted_peak_allocated_bytes if estimate is not None else None
        ),
        "lost": exported.lost,
    }
