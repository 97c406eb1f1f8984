"""``brimful train``: run a plan for real, metered, with the verdict at the end."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import msgspec

from brimful.cli import data_flags, flags
from brimful.cli.output import DOES_NOT_FIT, FITS, INTERRUPTED, show, show_json

if TYPE_CHECKING:
    from brimful.measure.reading import Reading
    from brimful.plan import Plan
    from brimful.train.result import TrainResult
    from brimful.train.settings import RunSettings

HELP = "run a plan, or plan a model and run it: progress, checkpoints, measurement, verdict"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    from brimful.train.settings import NUM_KEPT, SaveMode, Tracker

    flags.add_model(parser)
    add = parser.add_argument
    add("--out", metavar="DIR", type=flags.path("--out"), required=True, help="folder of the run")
    add("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    every = flags.whole("--checkpoint-every")
    add("--checkpoint-every", type=every, metavar="N", help="steps between checkpoints")
    modes = get_args(SaveMode)
    kinds, words = flags.choice("checkpoint", modes), "train while it is written; default sync"
    add("--checkpoint", type=kinds, metavar="NAME", help=f"{' or '.join(modes)}: {words}")
    keep = flags.whole("--keep")
    add("--keep", type=keep, metavar="N", help=f"newest checkpoints kept; default {NUM_KEPT}")
    add("--keep-best", action="store_true", help="keep that of the lowest held-out loss as well")
    every = flags.whole("--eval-every")
    add("--eval-every", type=every, metavar="N", help="steps between held-out losses")
    add("--merge", action="store_true", help="hand adapters over inside the model")
    add("--track", metavar="NAMES", help=f"{' and '.join(get_args(Tracker))}, by comma")
    add("--preview", action="store_true", help="print one sample with its mask, and stop")
    data_flags.add_data(parser)
    flags.add_job(parser)
    flags.add_strategy(parser, searched=True)
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Train, then write measurement and verdict into the run's folder."""
    from brimful.quiet import quiet_libraries

    quiet_libraries()
    settings = _settings(args)
    plan = _plan(args)
    if args.preview:
        return _preview(plan, settings)
    if plan.estimate is not None and not plan.estimate.fits:
        return _refuse(plan)
    from brimful.measure.meter import meter_for
    from brimful.models.config import check_buildable
    from brimful.train.loop import train
    from brimful.train.observers import PlainObserver, make_observer

    check_buildable(plan.job.model)
    meter = meter_for(plan.cluster.device.kernels)
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


def _plan(args: argparse.Namespace) -> "Plan":
    """Return the plan that is run: the file's, the resumed run's own, or the best found now."""
    from brimful.cli.plan import search
    from brimful.plan import read_plan
    from brimful.run_files import PLAN_FILE

    if flags.is_plan(args.model):
        flags.refuse_flags(args)
        return _predicted_anew(read_plan(Path(args.model)), Path(args.model))
    started = args.out / PLAN_FILE
    if args.resume and started.is_file():
        from brimful.train.run_folder import check_same_job

        plan = read_plan(started)
        check_same_job(plan.job, flags.job_from(args))
        return plan
    return search(args).plan


def _refuse(plan: "Plan") -> int:
    from brimful.report.words import fit_sentence

    assert plan.estimate is not None
    peak_bytes = plan.estimate.predicted_peak_allocated_bytes
    sentence = fit_sentence(peak_bytes=peak_bytes, usable_bytes=plan.estimate.usable_bytes)
    print(f"{sentence}; brimful plan with the same flags says what would", file=sys.stderr)
    return DOES_NOT_FIT


def _predicted_anew(plan: "Plan", path: Path) -> "Plan":
    """Replace the prediction of a plan that was edited: a verdict is on what is run."""
    from brimful.cost.estimate import estimate
    from brimful.units import format_bytes

    if plan.estimate is None:
        return plan
    now = estimate(plan.job, plan.cluster, plan.strategy)
    before_bytes = plan.estimate.predicted_peak_allocated_bytes
    if now.predicted_peak_allocated_bytes != before_bytes:
        print(
            f"{path} was changed since it was made: its predicted peak is now "
            f"{format_bytes(now.predicted_peak_allocated_bytes)}, not {format_bytes(before_bytes)}",
            file=sys.stderr,
        )
    return msgspec.structs.replace(plan, estimate=now)


def _preview(plan: "Plan", settings: "RunSettings") -> int:
    """Print the first row of the first step, and what of it is learnt."""
    import shutil

    from brimful.train.data.prepare import prepare
    from brimful.train.data.preview import preview

    prepared = prepare(
        settings.data,
        plan.job,
        micro_batch=plan.strategy.micro_batch,
        cache=settings.cache,
        num_eval_tokens=settings.num_eval_tokens,
    )
    print(preview(prepared, number=1, width=shutil.get_terminal_size().columns))
    return FITS


def _settings(args: argparse.Namespace) -> "RunSettings":
    from brimful.train.run_folder import token_cache
    from brimful.train.settings import plain_settings

    given = {
        "checkpoint_every_steps": args.checkpoint_every,
        "checkpoint": args.checkpoint,
        "num_kept": args.keep,
        "eval_every_steps": args.eval_every,
    }
    return plain_settings(
        out=args.out,
        data=data_flags.source_from(args),
        cache=token_cache(args.out),
        resume=args.resume,
        keep_best=args.keep_best,
        merge=args.merge,
        track=_trackers(args.track),
        **{name: value for name, value in given.items() if value is not None},
    )


def _trackers(text: str | None) -> tuple[str, ...]:
    from brimful.train.settings import Tracker

    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    for name in names:
        flags.choice("tracker", get_args(Tracker))(name)
    return names


def _keep(reading: "Reading", result: "TrainResult", out: Path) -> None:
    from brimful.files import write_bytes
    from brimful.measure.reading import measurement
    from brimful.run_files import MEASUREMENT_FILE

    measured = measurement(reading, process_bytes=result.peak_bytes, step_s=result.median_step_s)
    write_bytes(out / MEASUREMENT_FILE, msgspec.json.encode(measured))


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
