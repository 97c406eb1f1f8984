"""How long a run is: steps, tokens, or rows of data that are seen some times over."""

import argparse
import math

from brimful.cli import defaults
from brimful.cli.other_flags import EPOCHS_NEED
from brimful.cli.parsing import note_once
from brimful.errors import InputError
from brimful.models.spec import ModelSpec
from brimful.units import format_count
from brimful.values.job import MAX_COUNT, Task
from brimful.values.task_words import is_per_sample

_LENGTHS = ("steps", "tokens", "rows")
_OF_ALL = "--tokens says all of them"


def is_length_said(args: argparse.Namespace) -> bool:
    """Whether a flag says how long a run is."""
    return any(getattr(args, flag) is not None for flag in _LENGTHS)


def batch_from(args: argparse.Namespace, num_devices: int) -> int:
    """Return the global batch of a job that names none: a micro-batch on each device.

    Where a search chooses the micro-batch it is enough rows to choose among.
    """
    if args.micro_batch is None and getattr(args, "is_searched", False):
        return num_devices * defaults.rows_each(num_devices)
    each = defaults.MICRO_BATCH if args.micro_batch is None else args.micro_batch
    return num_devices * int(max(each) if isinstance(each, list) else each)


def num_steps_from(
    args: argparse.Namespace, model: ModelSpec, task: Task, global_batch: int, tokens_per_row: int
) -> int:
    """Return the steps of a run: as many as are said, or as its tokens or its rows take.

    ``global_batch``: rows of a step; no step is parted between two epochs, as the trainers of the
    field have it.
    """
    said = [(flag, getattr(args, flag)) for flag in _LENGTHS]
    given = [f"--{flag} {value}" for flag, value in said if value is not None]
    if len(given) > 1:
        which = "both" if len(given) == 2 else "all"  # noqa: PLR2004 - a pair
        raise InputError(f"{' and '.join(given)} {which} say how long; give one")
    if args.rows is not None:
        if not is_per_sample(task):
            note_once(
                f"each of {args.rows:,} rows counts {tokens_per_row:,} tokens; where shorter ones "
                f"are packed, say --tokens"
            )
        epochs = defaults.NUM_EPOCHS if args.epochs is None else args.epochs
        return math.ceil(-(-int(args.rows) // max(1, global_batch)) * epochs)
    if args.epochs is not None:
        why = f"{EPOCHS_NEED}, or --rows how many rows it has" if args.tokens is None else _OF_ALL
        note_once(f"--epochs {args.epochs:g} is left out: {why}")
    if args.tokens is None:
        return int(defaults.NUM_STEPS if args.steps is None else args.steps)
    if global_batch * tokens_per_row < 1:
        raise InputError(
            f"--seq-len x --global-batch is {global_batch * tokens_per_row} for {model.name}; give "
            f"1 or more"
        )
    num_steps = -(-int(args.tokens) // (global_batch * tokens_per_row))
    if num_steps > MAX_COUNT:
        raise InputError(
            f"--tokens is {format_count(args.tokens)} tokens, {format_count(num_steps)} steps of "
            f"{global_batch * tokens_per_row:,}, and at most {format_count(MAX_COUNT)} are run; "
            f"K, M, B and T multiply what stands before them: 2B are two billion"
        )
    return num_steps
