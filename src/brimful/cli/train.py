"""``brimful train``: run a plan for real, metered, with the verdict at the end."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from brimful.cli import flags
from brimful.cli.output import FITS, INTERRUPTED, show, show_json
from brimful.errors import InputError

if TYPE_CHECKING:
    from brimful.measure.reading import Reading
    from brimful.plan import Plan
    from brimful.train.loop import RunSettings, TrainResult

HELP = "run a plan for real: progress, checkpoints, measurement, verdict"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    add = parser.add_argument
    add("plan", metavar="PLAN", type=flags.path("PLAN"), help="a plan.yaml from brimful plan -o")
    add(
        "--data",
        metavar="PATH",
        type=flags.path("--data"),
        help="text file or folder; stdlib: Python's sources",
    )
    add("--out", metavar="DIR", type=flags.path("--out"), required=True, help="folder of the run")
    add("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    add(
        "--checkpoint-every",
        type=flags.whole("--checkpoint-every"),
        metavar="N",
        help="steps between checkpoints",
    )
    add(
        "--eval-every",
        type=flags.whole("--eval-every"),
        metavar="N",
        help="steps between held-out losses",
    )
    flags.add_json(parser)


STDLIB = "stdlib"


def run(args: argparse.Namespace) -> int:
    """Train, then write measurement and verdict into the run's folder."""
    from brimful.plan import read_plan
    from brimful.quiet import quiet_libraries

    if args.data is None:
        raise InputError("--data is missing; give a text file or folder, or --data stdlib")
    if not flags.is_plan(str(args.plan)):
        raise InputError(
            f"{args.plan} is not a plan (.yaml); make one with brimful plan {args.plan} "
            f"--gpus local -o plan.yaml"
        )
    if str(args.data) != STDLIB and not args.data.exists():
        raise InputError(f"--data {args.data} does not exist; give a text file or a folder of them")
    plan = _predicted_anew(read_plan(args.plan), args.plan)
    quiet_libraries()
    from brimful.measure.meter import meter_for
    from brimful.models.config import check_buildable
    from brimful.train.loop import train
    from brimful.train.observers import PlainObserver, make_observer

    check_buildable(plan.job.model)
    meter = meter_for(plan.cluster.device.kernels)
    settings = _settings(args)
    # With --json standard output is one object, for a program.
    observer = PlainObserver(sys.stderr) if args.json else make_observer()
    result = train(plan, settings, observer=observer, meter=meter)
    if meter.reading is not None:
        _keep(meter.reading, result, args.out)
    if args.json:
        model = None if result.model is None else str(result.model)
        told = {**msgspec.structs.asdict(result), "model": model}
        show_json({"schema": "brimful.train/1", **told})
    else:
        _show(plan, result, args.out)
    return INTERRUPTED if result.interrupted else FITS


def _predicted_anew(plan: "Plan", path: Path) -> "Plan":
    """Replace the prediction of a plan that was edited: a verdict is on what is run."""
    from brimful.cost.estimate import estimate
    from brimful.units import format_bytes

    now = estimate(plan.job, plan.cluster, plan.strategy)
    before_bytes = plan.estimate.predicted_peak_allocated_bytes
    if now.predicted_peak_allocated_bytes != before_bytes:
        print(
            f"{path} was changed since it was made: its predicted peak is now "
            f"{format_bytes(now.predicted_peak_allocated_bytes)}, not {format_bytes(before_bytes)}",
            file=sys.stderr,
        )
    return msgspec.structs.replace(plan, estimate=now)


def _settings(args: argparse.Namespace) -> "RunSettings":
    from brimful.train import loop
    from brimful.train.run_folder import token_cache

    return loop.RunSettings(
        out=args.out,
        data=None if str(args.data) == STDLIB else args.data,
        cache=token_cache(args.out),
        resume=args.resume,
        checkpoint_every_steps=_positive(args.checkpoint_every, loop.CHECKPOINT_EVERY_STEPS),
        eval_every_steps=_positive(args.eval_every, loop.EVAL_EVERY_STEPS),
        num_eval_tokens=loop.NUM_EVAL_TOKENS,
    )


def _positive(value: int | None, default: int) -> int:
    if value is not None and value < 1:
        raise InputError(f"an interval of {value} steps never comes; give 1 or more")
    return default if value is None else value


def _keep(reading: "Reading", result: "TrainResult", out: Path) -> None:
    from brimful.files import write_bytes
    from brimful.measure.reading import measurement

    measured = measurement(reading, process_bytes=result.peak_bytes, step_s=result.median_step_s)
    write_bytes(out / "measurement.json", msgspec.json.encode(measured))


def _show(plan: "Plan", result: "TrainResult", out: Path) -> None:
    from brimful.report.run_folder import read_run_folder
    from brimful.report.text import verdict_table
    from brimful.verdict import judge

    if result.heldout_loss is not None:
        print(
            f"held-out loss {result.heldout_loss:.3f} nats per token after {result.num_steps} "
            f"steps; unigram entropy of the text {result.unigram_entropy:.3f}"
        )
    folder = read_run_folder(out)
    if folder.measurement is not None:
        show("", verdict_table(judge(plan, folder.simulation, folder.measurement)))
    print(f"run in {out}; next: brimful report {out}")
