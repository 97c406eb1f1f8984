"""``brimful train``: run a plan for real, metered, with the verdict at the end."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import msgspec

from brimful.cli import data_flags, defaults, flags, output_paths, parsing, resolved
from brimful.cli.early import refuse_early
from brimful.cli.output import DOES_NOT_FIT, FITS, INTERRUPTED, show, show_json
from brimful.cli.train_inputs import check_inputs
from brimful.errors import InputError, OutOfTimeError
from brimful.text.escaping import json_text
from brimful.text.terminal import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brimful.launch.local import Group
    from brimful.measure.reading import Reading
    from brimful.search.record import SearchRecord
    from brimful.search.solve import Solution
    from brimful.train.data.source import DataSource
    from brimful.train.observers import Observer
    from brimful.train.result import TrainResult
    from brimful.train.settings import RunSettings
    from brimful.values.job import Job
    from brimful.values.plan import Plan
    from brimful.values.results import Simulation


HELP = "run a plan, or plan a model and run it: progress, checkpoints, measurement, verdict"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    from brimful.cli.plan import add_objective
    from brimful.train.settings import NUM_KEPT, SaveMode, Tracker

    flags.add_model(parser)
    add = parser.add_argument
    add("--out", metavar="DIR", type=output_paths.output_folder("--out"), help="folder of the run")
    add("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    every = parsing.whole("--checkpoint-every")
    add("--checkpoint-every", type=every, metavar="N", help="steps between checkpoints")
    modes = get_args(SaveMode)
    kinds, words = parsing.choice("checkpoint", modes), "train while it is written; default sync"
    add("--checkpoint", type=kinds, metavar="NAME", help=f"{' or '.join(modes)}: {words}")
    keep = parsing.whole("--keep")
    add("--keep", type=keep, metavar="N", help=f"newest checkpoints kept; default {NUM_KEPT}")
    add("--keep-best", action="store_true", help="keep that of the lowest held-out loss as well")
    every = parsing.whole("--eval-every")
    add("--eval-every", type=every, metavar="N", help="steps between held-out losses")
    add("--merge", action="store_true", help="hand adapters over inside the model")
    add("--track", metavar="NAMES", help=f"{' and '.join(get_args(Tracker))}, by comma")
    tries = parsing.whole("--max-restarts", least=0)
    add("--max-restarts", type=tries, metavar="N", help="restarts of lost workers; default 3")
    wait = parsing.whole("--collective-timeout")
    add(
        "--collective-timeout",
        type=wait,
        metavar="S",
        help="seconds that a worker waits for the others; default 600",
    )
    add("--preview", action="store_true", help="print one sample with its mask, and stop")
    data_flags.add_data(parser)
    flags.add_job(parser)
    flags.add_strategy(parser, searched=True)
    flags.add_pipeline(parser)
    add_objective(parser)
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Train, then write measurement and verdict into the run's folder."""
    from brimful.process.library_output import quiet_libraries

    quiet_libraries()
    if not args.preview:
        refuse_early(args, searched=True)
    settings = _settings(args)
    if args.preview:
        return _preview(args, settings)
    check_inputs(args, settings)
    planned = _planned(args)
    if not planned.fits:
        return _refuse(planned)
    from brimful.models.config import check_buildable

    plan = planned.plan
    check_buildable(plan.job.model)
    if not args.json and _speaks():
        _show_plan(planned)
    result, readings = _trained(args, plan, settings)
    if not _speaks():
        return INTERRUPTED if result.interrupted else FITS
    _keep(planned, readings, result, args.out)
    if args.json:
        model = None if result.model is None else str(result.model)
        told = {**msgspec.structs.asdict(result), "model": model}
        show_json({"schema": "brimful.train/1", **told})
    else:
        _show(plan, result, settings)
    return INTERRUPTED if result.interrupted else FITS


def _speaks() -> bool:
    """Whether this process is the one of its group that speaks to the user."""
    from brimful.train.world import place_here

    place = place_here()
    return place is None or place.rank == 0


def _trained(
    args: argparse.Namespace, plan: "Plan", settings: "RunSettings"
) -> "tuple[TrainResult, tuple[Reading | None, ...]]":
    """Train in this process, as one of a group that was started for us, or in a group of ours."""
    from brimful.train.world import place_here
    from brimful.values.strategy import world_size

    # With --json standard output is one object, for a program.
    observer = _to_stderr if args.json else _observer
    if place_here() is None and world_size(plan.strategy) == 1:
        from brimful.launch.alone import run_alone
        from brimful.simulate.ladder import next_plan

        alone = run_alone(plan, settings, observer=observer, next_plan=next_plan)
        return alone.result, (alone.reading,)
    from brimful.launch.local import launch
    from brimful.launch.worker import Patience, checked, work
    from brimful.process.child import ending_with_parent

    group = _group(args)
    if place_here() is None:
        end = launch(plan, settings, group, observer=observer)
    else:
        patience = Patience(group.timeout_s)
        with ending_with_parent():
            end = work(
                plan, settings, observer=observer, next_plan=group.next_plan, patience=patience
            )
    return checked(end), end.readings


def _observer() -> "Observer":
    from brimful.train.observers import make_observer

    return make_observer()


def _to_stderr() -> "Observer":
    from brimful.train.observers import PlainObserver

    return PlainObserver(sys.stderr)


def _group(args: argparse.Namespace) -> "Group":
    from brimful.launch.local import Group
    from brimful.simulate.ladder import next_plan

    given = {"max_restarts": args.max_restarts, "timeout_s": args.collective_timeout}
    named = {name: value for name, value in given.items() if value is not None}
    return Group(next_plan=next_plan, **named)


class _Planned(NamedTuple):
    """What is run.

    Attributes:
        plan: The plan.
        peak: Its highest peak in bytes and how that is known; None where nobody has looked.
        record: Of the search; None where there was none.
        simulation: Of the plan, where the search simulated.
    """

    plan: "Plan"
    peak: tuple[int, str] | None
    record: "SearchRecord | None" = None
    simulation: "Simulation | None" = None

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against it."""
        if self.record is not None:
            return self.record.rows[0].fits
        if self.plan.estimate is None and self.peak is not None:
            from brimful.cost.estimate import limit_bytes

            return self.peak[0] <= limit_bytes(self.plan)
        return self.plan.estimate is None or self.plan.estimate.fits


def _planned(args: argparse.Namespace) -> _Planned:
    """Return the plan that is run: the file's, the resumed run's own, or the best found now."""
    from brimful.values.plan import read_plan
    from brimful.values.run_files import PLAN_FILE

    if resolved.is_plan(args.model):
        resolved.refuse_flags(args)
        plan = read_plan(Path(args.model))
        return _known(_predicted_anew(plan, Path(args.model)))
    started = args.out / PLAN_FILE
    if args.resume and started.is_file():
        from brimful.train.run_folder import check_same_job, check_same_length

        plan, given = read_plan(started), resolved.job_from(args)
        check_same_length(args.out, plan.job, given)
        check_same_job(plan.job, given)
        if not _is_resized(args, plan):
            resolved.refuse_other_strategy(args, plan.strategy)
            return _known(plan)
    if args.engine not in {None, defaults.ENGINE}:
        return _known(_as_asked(args))
    if args.pp not in (None, 1) or args.ep not in {None, 1}:
        from brimful.process.child import run_in_child
        from brimful.train.world import place_here

        plan = _as_asked(args)
        if place_here() is not None:
            return _known(plan)  # each process would simulate, and the others wait
        row = run_in_child(_simulated_row, plan)
        fullest = max(row, key=lambda found: found.simulated_peak_allocated_bytes)
        peak_bytes = fullest.simulated_peak_allocated_bytes
        return _Planned(plan, (peak_bytes, "simulated"), simulation=fullest)
    found, simulation = _searched(args)
    best = found.record.rows[0]
    return _Planned(found.plan, (best.peak_bytes, found.record.rung), found.record, simulation)


def _as_asked(args: argparse.Namespace) -> "Plan":
    """Plan what the flags say: another engine, a pipeline, parted experts are not searched."""
    from brimful.search.pins import Pins
    from brimful.values.plan import PLAN_SCHEMA, Plan

    what = f"--ep {args.ep}" if args.pp in (None, 1) else f"--pp {args.pp}"
    if args.engine not in {None, defaults.ENGINE}:
        what = f"engine={args.engine}"
    for name in Pins._fields:
        values = getattr(args, name)
        if isinstance(values, list):
            raise InputError(
                f"--{name.replace('_', '-')} {','.join(map(str, values))} is a list to search, and "
                f"{what} is not searched; give one value"
            )
    job, cluster, strategy = resolved.asked(args)
    return Plan(schema=PLAN_SCHEMA, job=job, cluster=cluster, strategy=strategy, estimate=None)


def _is_resized(args: argparse.Namespace, plan: "Plan") -> bool:
    """Whether the run goes on with more or fewer devices than it began with."""
    from brimful.hardware.gpus import count_devices
    from brimful.values.strategy import world_size

    return args.gpus is not None and count_devices(args.gpus) != world_size(plan.strategy)


def _known(plan: "Plan") -> _Planned:
    if plan.estimate is None:
        return _Planned(plan, None)
    return _Planned(plan, (plan.estimate.predicted_peak_allocated_bytes, "predicted"))


def _searched(args: argparse.Namespace) -> "tuple[Solution, Simulation | None]":
    """Search; where that simulates, in another process: what is measured never saw the tape."""
    from brimful.cli.searching import search, why_untold
    from brimful.process.child import run_in_child
    from brimful.search.budget import Budget

    if not why_untold(args):
        return search(args, Budget(args.budget)), None
    return run_in_child(_simulated, args)


def _simulated_row(plan: "Plan") -> "list[Simulation]":
    """Simulate a device of every place in the row."""
    from brimful.simulate.run import simulate
    from brimful.values.strategy import stage_rank

    job, cluster, strategy = plan.job, plan.cluster, plan.strategy
    ranks = (stage_rank(strategy, place) for place in range(strategy.pp))
    return [simulate(job, cluster, strategy, rank=rank) for rank in ranks]


def _simulated(args: argparse.Namespace) -> "tuple[Solution, Simulation]":
    """Search by simulating, and keep of the plan that won what is alive at its peak."""
    from brimful.cli.searching import search
    from brimful.search.budget import Budget
    from brimful.simulate.run import simulate

    found = search(args, Budget(args.budget))
    plan = found.plan
    return found, simulate(plan.job, plan.cluster, plan.strategy)


def _refuse(planned: _Planned) -> int:
    if planned.record is not None and planned.record.untried is not None:
        from brimful.report.words import untried_sentence

        raise OutOfTimeError(
            f"nothing that fits was found: {untried_sentence(planned.record)}; give a larger "
            f"--budget, or pin what is not to be searched"
        )
    say(
        f"{_fit_words(planned)}; brimful plan with the same flags says what would",
        file=sys.stderr,
    )
    return DOES_NOT_FIT


def _fit_words(planned: _Planned) -> str:
    """Say whether the plan fits, with both numbers; "unknown" where nobody has looked."""
    from brimful.cost.estimate import limit_bytes
    from brimful.report.words import NO_FORMULA, fit_sentence
    from brimful.techniques.kernel_support import Place, why_not_simulated

    if planned.peak is None:
        device = planned.plan.cluster.device
        place = Place(device.kernels, device.capability)
        why = why_not_simulated(planned.plan.job, planned.plan.strategy, place)
        return f"{NO_FORMULA}; {'it is measured' if why else 'brimful simulate traces it'}"
    peak_bytes, rung = planned.peak
    fit = fit_sentence(peak_bytes=peak_bytes, usable_bytes=limit_bytes(planned.plan))
    return f"{fit} ({rung})"


def _predicted_anew(plan: "Plan", path: Path) -> "Plan":
    """Replace the prediction of a plan that was edited: a verdict is on what is run."""
    from brimful.cost.estimate import estimate_or_none
    from brimful.units import format_bytes

    if plan.estimate is None:
        return plan
    now = estimate_or_none(plan.job, plan.cluster, plan.strategy)
    if now is None:
        return msgspec.structs.replace(plan, estimate=None)
    before_bytes = plan.estimate.predicted_peak_allocated_bytes
    if now.predicted_peak_allocated_bytes != before_bytes:
        say(
            f"{path} was changed since it was made: its predicted peak is now "
            f"{format_bytes(now.predicted_peak_allocated_bytes)}, not {format_bytes(before_bytes)}",
            file=sys.stderr,
        )
    return msgspec.structs.replace(plan, estimate=now)


def _preview(args: argparse.Namespace, settings: "RunSettings") -> int:
    """Print the first row of the first step, and what of it is learnt."""
    import shutil

    from brimful.train.data.prepare import prepare
    from brimful.train.data.preview import preview

    job = resolved.asked(args).job
    prepared = prepare(
        settings.data,
        job,
        micro_batch=1,
        cache=settings.cache,
        num_eval_tokens=settings.num_eval_tokens,
    )
    say(preview(prepared, number=1, width=shutil.get_terminal_size().columns))
    return FITS


def _settings(args: argparse.Namespace) -> "RunSettings":
    from brimful.train.out_folder import token_cache
    from brimful.train.settings import plain_settings

    if args.preview:  # makes no folder
        args.out = args.out or Path()
    if args.out is None:
        raise InputError("--out is missing; give the folder of the run, such as --out runs/first")
    from brimful.train.settings import Tracker

    names = tuple(name.strip() for name in (args.track or "").split(",") if name.strip())
    for name in names:
        parsing.choice("tracker", get_args(Tracker))(name)
    given = {
        "checkpoint_every_steps": args.checkpoint_every,
        "checkpoint": args.checkpoint,
        "num_kept": args.keep,
        "eval_every_steps": args.eval_every,
        "keep_best": args.keep_best or None,
        "merge": args.merge or None,
        "track": names or None,
        "enforces_limit": args.memory_limit is not None or None,
    }
    return plain_settings(
        out=args.out,
        data=_source(args),
        cache=token_cache(args.out),
        resume=args.resume,
        **{**_started_with(args), **{name: x for name, x in given.items() if x is not None}},
    )


def _started_with(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that a run which goes on was started with; flags win over them."""
    from brimful.train.run_folder import read_settings
    from brimful.values.run_files import SETTINGS_FILE

    path = args.out / SETTINGS_FILE
    if not (args.resume and path.is_file()):
        return {}
    return msgspec.structs.asdict(read_settings(path))


def _source(args: argparse.Namespace) -> "DataSource":
    """Return what the flags say; of a run that goes on and whose flags say nothing, its own."""
    from brimful.train.run_folder import read_source
    from brimful.values.run_files import SOURCE_FILE

    started = args.out / SOURCE_FILE
    if args.resume and args.data is None and started.is_file():
        data_flags.refuse_alone(args)
        return read_source(started)
    return data_flags.source_from(args)


def _keep(
    planned: _Planned, readings: "Sequence[Reading | None]", result: "TrainResult", out: Path
) -> None:
    """Write what the report reads beside what the loop wrote: of many devices, the hottest's."""
    from brimful.files.writing import write_text
    from brimful.measure.reading import measurement
    from brimful.values.plan import read_plan
    from brimful.values.run_files import MEASUREMENT_FILE, PLAN_FILE, SEARCH_FILE, SIMULATION_FILE

    if read_plan(out / PLAN_FILE).strategy != planned.plan.strategy:  # memory ran out
        planned = planned._replace(record=None, simulation=None)
    if planned.record is not None:
        write_text(out / SEARCH_FILE, json_text(planned.record))
    if planned.simulation is not None:
        write_text(out / SIMULATION_FILE, json_text(planned.simulation))
    found = [reading for reading in readings if reading is not None]
    if found:
        hottest = max(found, key=lambda reading: reading.measured_peak_allocated_bytes)
        measured = measurement(
            hottest, process_bytes=result.peak_bytes, step_s=result.median_step_s
        )
        write_text(out / MEASUREMENT_FILE, json_text(measured))


def _show_plan(planned: _Planned) -> None:
    """Say what is trained, how and on what, before anything is loaded."""
    from brimful.cost.managed import paging_words
    from brimful.report.tables import pairs_table
    from brimful.report.words import machine_words, model_words, plan_words

    plan = planned.plan
    pairs = [
        ("model", model_words(plan.job)),
        ("weights", plan.job.weights or "random"),
        ("plan", plan_words(plan)),
        ("machine", machine_words(plan.cluster)),
        ("memory", _fit_words(planned)),
        *(("paged", words) for words in paging_words(plan.job, plan.cluster.device)),
    ]
    show(pairs_table(pairs, title=""))


def _show(plan: "Plan", result: "TrainResult", settings: "RunSettings") -> None:
    """Lay the rungs side by side, and say where the model is and what comes next."""
    from brimful.measure.verdict import judge
    from brimful.report.run_folder import read_run_folder
    from brimful.report.text import verdict_table
    from brimful.values.run_words import describe_event

    folder = read_run_folder(settings.out)
    if folder.measurement is not None:
        verdict = judge(
            folder.plan, folder.simulation, folder.measurement, takeovers=folder.takeovers
        )
        show("", verdict_table(verdict), *map(describe_event, folder.events))
    else:
        say("memory was not measured: that takes two steps by the strategy of the run's end")
    if result.model is not None:
        say(f"model in {result.model}: {_opened_by(plan.job, settings)}")
    say(f"run in {settings.out}; next: brimful report {settings.out}")


def _opened_by(job: "Job", settings: "RunSettings") -> str:
    """Name what reads the folder of the trained model."""
    from brimful.report.words import OPENED_BY

    if job.adapter is not None and job.weights is not None and not settings.merge:
        return "adapters, for peft.PeftModel.from_pretrained"
    return OPENED_BY[job.task]
