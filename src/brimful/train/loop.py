"""The training loop: steps, losses on held-out text, checkpoints, and a clean end."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from brimful.build.assemble import build_program
from brimful.build.batch import count_targets
from brimful.build.optimizers.base import compiled_in
from brimful.build.parallel.alone import leave_alone
from brimful.build.parallel.place import own_part
from brimful.build.program import Program
from brimful.build.retarget import can_retarget, retarget
from brimful.build.step import StepResult, train_step
from brimful.doctor.program import PlainStep
from brimful.errors import RunError, UnsupportedError
from brimful.files.writing import write_text
from brimful.hardware.cluster import offered_bytes
from brimful.train.bad_step import StepNumbers, explain_stop, look_together, must_stop
from brimful.train.checkpoint import Progress, load_checkpoint
from brimful.train.data.batches import START, DataPosition
from brimful.train.data.origin import check_present
from brimful.train.data.source import as_source
from brimful.train.data.widest import widest
from brimful.train.ending import finish
from brimful.train.expert_watch import ExpertWatch, watch_experts
from brimful.train.guard import keeping_weights
from brimful.train.interrupt import catch_interrupts
from brimful.train.judging import judge_heldout
from brimful.train.loggers import check_loggers, open_loggers
from brimful.train.loggers.base import LoggedRun
from brimful.train.memory import peak_bytes, reset_peak, used_bytes
from brimful.train.metering import NUM_METERED_STEPS, Meter, measured_before, measured_peak
from brimful.train.metrics import (
    append_row,
    open_metrics,
    read_metrics,
    sync_metrics,
    without_experts,
    write_data_summary,
)
from brimful.train.observers import Observer, Observers, describe_stop
from brimful.train.opening import describe_compiled, describe_trained
from brimful.train.precomputed import check_askable
from brimful.train.result import TrainResult, describe_result
from brimful.train.rotation import Kept
from brimful.train.run_data import RunData, asked, prepare_data, read_data
from brimful.train.run_folder import (
    Resumed,
    open_run_folder,
    require_device,
    write_settings,
    write_source,
)
from brimful.train.run_state import Run, Watch
from brimful.train.saver import Saved, open_saver
from brimful.train.schedule import learning_rate_at
from brimful.train.settings import RunSettings
from brimful.train.slowest import FirstForward, Ranks, ends_of
from brimful.train.step_report import StepReport
from brimful.train.takeover import (
    Shortage,
    ShortageError,
    Ways,
    forget_measured,
    may_stay,
    ran_out,
    release,
    shortage_of,
    strategies_of,
    taken_over,
)
from brimful.train.tally import tally_of
from brimful.train.utilization import utilization_of
from brimful.train.whereabouts import Whereabouts
from brimful.train.world import (
    any_says,
    is_first,
    note_step,
    own_device,
    place_here,
    together,
    told_by_first,
    use_allocator,
)
from brimful.units import format_bytes
from brimful.values.plan import Plan, write_yaml
from brimful.values.run_files import (
    CHECKPOINTS,
    DATA_FILE,
    LAUNCH_FILE,
    MEASUREMENT_FILE,
    METRICS_FILE,
    PLAN_FILE,
    SETTINGS_FILE,
    SOURCE_FILE,
    TrainRow,
)
from brimful.values.run_words import describe_event, describe_takeover
from brimful.values.strategy import gathers_alone, keeps_checkpoints

NO_WAYS = Ways()


def train(
    plan: Plan, settings: RunSettings, *, observer: Observer, meter: Meter, ways: Ways = NO_WAYS
) -> TrainResult:
    """Run a plan from its first step, or its newest checkpoint, to its last.

    Ctrl-C or SIGTERM ends the run after the step in progress, with a checkpoint; a second one ends
    it at once. A run that was killed goes on with ``resume`` from its newest checkpoint and, on a
    CPU, repeats the very same losses. The meter sees a run that begins, and one that goes on where
    nothing was measured of its strategy yet.

    ``settings``: where it is kept and how often it is saved and judged. ``meter``: what measures
    building the program and its first steps. ``ways``: what it may do when memory runs out; by
    default nothing. Raises InputError: the data is unusable, the folder in use, or the plan not the
    run's own. Raises UnsupportedError: a logger's package is not installed. Raises RunError: the
    disk is full, memory is, or the loss is not a number.
    """
    check_loggers(settings.track)
    observers = Observers(observer)
    where = Whereabouts(plan.strategy)
    use_allocator(plan.strategy.allocator)
    try:
        with where.followed():
            result = _train(plan, settings, Watch(observers, meter, where), ways)
        observers.on_message(describe_result(result, plan.job))
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        if ways.next_plan is None or plan.strategy.engine != "torch":
            raise _out_of_memory(plan, error) from error
        shortage = shortage_of(error, where)
    else:
        return result
    finally:
        meter.abandon()
        observers.close()
        if gathers_alone(plan.strategy):
            leave_alone()
    raise ShortageError(shortage)


def _out_of_memory(plan: Plan, error: Exception) -> RunError:
    reason = str(error).partition("\n")[0][:200]
    return RunError(
        f"the run needs more memory than there is, though its plan has a limit of "
        f"{format_bytes(offered_bytes(plan.cluster))} ({reason}); give a smaller "
        f"--micro-batch or --ac full, or stop what else uses the device"
    )


def _train(plan: Plan, settings: RunSettings, watch: Watch, ways: Ways) -> TrainResult:
    observer, meter = watch.observer, watch.meter
    resumed = _opened(plan, settings)
    for row in () if resumed is None else resumed.damaged:
        observer.on_message(describe_event(row))
    device = own_device(plan.cluster.device.kernels)
    data = read_data(plan, settings, resumed, observer)
    reset_peak(device)
    known_peak = told_by_first(measured_before(settings.out / MEASUREMENT_FILE))
    is_metered = resumed is None or known_peak is None
    if resumed is None:
        meter.start()
    observer.on_stage("building the model")
    program = build_program(plan.job, plan.strategy, device)
    observer.on_message(describe_trained(program))
    data = asked(program, data, settings, observer)
    step, position = _restore(program, resumed)
    if resumed is not None and is_metered:
        meter.begin_again(program)
    with together():
        _write_given(settings, data)
    with (
        _open_curve(settings.out / METRICS_FILE, last_step=step) as metrics,
        open_saver(
            settings.out / CHECKPOINTS,
            mode=settings.checkpoint,
            kept=Kept(num_newest=settings.num_kept, best=settings.keep_best),
        ) as saver,
    ):
        known = read_metrics(settings.out / METRICS_FILE) if is_first() else ()
        rows = told_by_first(without_experts(known))
        if is_first():
            open_loggers(settings.track, LoggedRun(settings.out, plan, step, known), observer)
        _say_where(observer, step, plan.job.num_steps)
        run = Run(
            plan=plan,
            settings=settings,
            observer=observer,
            data=data,
            metrics=metrics,
            saver=saver,
            program=program,
            tally=tally_of(rows),
            utilization=utilization_of(plan),
            experts=watch_experts(program),
            first_step=step + 1,
            started_s=time.perf_counter(),
            ways=ways,
            where=watch.where,
            meter=meter,
            last_metered=min(step + NUM_METERED_STEPS, plan.job.num_steps) if is_metered else 0,
            measured_peak_bytes=None if is_metered else known_peak,
        )
        run, last_step, is_asked = _run_steps(run, position)
    return finish(run, last_step, is_asked=is_asked)


def _say_where(observer: Observer, step: int, num_steps: int) -> None:
    """Say which step comes first; ``step``: the last one that was taken before."""
    if step >= num_steps:
        observer.on_message(f"already at step {step} of {num_steps}: nothing is left to train")
    elif step:
        observer.on_stage(f"going on from step {step} of {num_steps}")
    else:
        observer.on_stage("running the first step")


def _opened(plan: Plan, settings: RunSettings) -> Resumed | None:
    """Make the folder ready, by the first process for all."""
    resumed = None
    with together():
        require_device(plan.cluster.device.kernels)
        check_present(as_source(settings.data), plan.job.task)
        check_askable(plan.strategy, as_source(settings.data))
        _check_resumable(plan, settings)
        if is_first():
            resumed = open_run_folder(plan, settings.out, resume=settings.resume)
            # Write which launch runs here, so that its next group of processes goes on.
            place = place_here()
            if place is not None:
                write_text(settings.out / LAUNCH_FILE, place.launch)
    return told_by_first(resumed)


def _check_resumable(plan: Plan, settings: RunSettings) -> None:
    if settings.resume and not keeps_checkpoints(plan.strategy):
        raise UnsupportedError(
            f"engine={plan.strategy.engine} keeps no checkpoints in this version, so that there is "
            f"nothing to resume from; start again in another --out, or use engine=torch"
        )


def _write_given(settings: RunSettings, data: RunData) -> None:
    if is_first():
        write_source(settings.out / SOURCE_FILE, as_source(settings.data))
        write_settings(settings.out / SETTINGS_FILE, settings)
        write_data_summary(settings.out / DATA_FILE, data.summary)


@contextmanager
def _open_curve(path: Path, *, last_step: int) -> Iterator[BinaryIO | None]:
    """Open the file of rows in the process that writes it; None in the others."""
    if not is_first():
        yield None
        return
    with open_metrics(path, last_step=last_step) as metrics:
        yield metrics


def _restore(program: Program, resumed: Resumed | None) -> tuple[int, DataPosition]:
    if resumed is None:
        return 0, START
    checkpoint = load_checkpoint(resumed.path, program, is_checked=True)
    return checkpoint.step, checkpoint.position


def _run_steps(run: Run, position: DataPosition) -> tuple[Run, int, bool]:
    """Run to the last step or an interrupt: the last step done, and whether there was one."""
    num_steps, settings = run.plan.job.num_steps, run.settings
    step = run.first_step - 1
    with catch_interrupts() as is_interrupted:
        while step < num_steps:
            step += 1
            run, position = _one_step_at_last(run, step, position)
            if step == run.last_metered:
                run.meter.stop(run.program)
                peak = measured_peak(run.meter)
                run = msgspec.structs.replace(run, measured_peak_bytes=peak)
            is_last, is_stopped = step == num_steps, any_says(is_interrupted())
            is_saved = is_last or is_stopped or step % settings.checkpoint_every_steps == 0
            if run.experts is not None and run.experts.after_step(is_last=is_saved):
                _note_experts(run, run.experts, step)
            if is_last or step % settings.eval_every_steps == 0:
                row = judge_heldout(run.program, run.data.heldout, step, run.tally)
                append_row(run.metrics, row)
                run.tally.take(row)
                run.observer.on_eval(row)
            if is_saved:
                _save(run, step, position)
            _note(run, run.saver.finished())
            if not is_last and is_stopped:
                _note(run, run.saver.wait())
                run.observer.on_message(_describe_stop(run, step))
                break
        # Still guarded: a signal must not tear the last write.
        _note(run, run.saver.wait())
        return run, step, is_interrupted()


def _one_step_at_last(run: Run, step: int, position: DataPosition) -> tuple[Run, DataPosition]:
    """Run one step, by another strategy where memory runs out and everything can be kept."""
    run.where.step = step
    while True:
        try:
            return run, _one_step(run, step, position)
        except (MemoryError, RuntimeError) as error:
            if run.ways.next_plan is None or not ran_out(error):
                raise
            shortage = shortage_of(error, run.where)
            if run.experts is not None or not may_stay(run.program, shortage):
                raise
        # The error is gone by now, and with it the frames that held the step.
        run = _under_another(run, shortage)


def _under_another(run: Run, shortage: Shortage) -> Run:
    """Switch a run to the next strategy, between two steps."""
    release(run.program)
    rows = read_metrics(run.settings.out / METRICS_FILE)
    plan, row = taken_over(run.plan, shortage, rows, run.ways, in_place=True)
    if not can_retarget(run.program, plan.strategy):
        raise ShortageError(shortage)
    program = retarget(run.program, plan.strategy)
    append_row(run.metrics, row)
    forget_measured(run.settings.out)
    write_yaml(plan, run.settings.out / PLAN_FILE)
    run.where.strategy = plan.strategy
    run.observer.on_message(describe_takeover(row))
    run.meter.abandon()
    run.meter.begin_again(program)
    return msgspec.structs.replace(
        run,
        plan=plan,
        program=program,
        data=prepare_data(plan, run.settings, before=strategies_of((*rows, row))),
        utilization=utilization_of(plan),
        last_metered=min(shortage.step + NUM_METERED_STEPS - 1, plan.job.num_steps),
        measured_peak_bytes=None,
    )


def _one_step(run: Run, step: int, position: DataPosition) -> DataPosition:
    """Run one optimizer step, write its row, and say where the next one's data begins."""
    learning_rate = learning_rate_at(run.plan.job, step)
    note_step(step)
    first = FirstForward()
    start_s = time.perf_counter()
    micro_batches, following = run.data.batches.step_at(position)
    if step <= NUM_METERED_STEPS:
        micro_batches = [widest(batch, seq_len=run.plan.job.seq_len) for batch in micro_batches]
    num_targets, compiled = count_targets(micro_batches), compiled_in(run.program.optimizer)
    own = own_part(micro_batches, run.program.strategy)
    with keeping_weights(run.program), first.watching():
        result = train_step(
            run.program, own, num_targets=num_targets, learning_rate=learning_rate, step=step
        )
    numbers = _numbers(step, result, learning_rate)
    step_s = time.perf_counter() - start_s
    if must_stop(run.program, numbers, run.tally.num_skipped_in_a_row):
        out = run.settings.out
        part = PlainStep(micro_batches=own, num_targets=num_targets, number=step)
        found = look_together(run.program, numbers, part, position=position, out=out)
        with together():
            raise explain_stop(run.program, numbers, own, position=position, out=out, found=found)
    device = run.program.device
    ranks = ends_of(first.seconds, used_bytes(device), peak_bytes(device))
    row = _row(run, numbers, ranks, num_targets=num_targets, step_s=step_s)
    row = _with_compiling(run, row, compiled)
    append_row(run.metrics, row)
    run.tally.take(row)
    run.observer.on_step(_report(run, row))
    return following


def _numbers(step: int, result: StepResult, learning_rate: float) -> StepNumbers:
    """Read what a step came to; waits for the device."""
    return StepNumbers(
        step=step,
        loss=float(result.loss),
        grad_norm=float(result.grad_norm),
        learning_rate=learning_rate,
        loss_scale=result.loss_scale,
        skipped=result.skipped,
    )


def _row(
    run: Run, numbers: StepNumbers, ranks: Ranks, *, num_targets: int, step_s: float
) -> TrainRow:
    return TrainRow(
        step=numbers.step,
        loss=numbers.loss if math.isfinite(numbers.loss) else None,
        learning_rate=numbers.learning_rate,
        grad_norm=numbers.grad_norm if math.isfinite(numbers.grad_norm) else None,
        tokens_per_s=num_targets / step_s,
        step_s=step_s,
        num_targets=num_targets,
        loss_scale=numbers.loss_scale,
        skipped=numbers.skipped,
        mfu=run.utilization.mfu(step_s),
        hfu=run.utilization.hfu(step_s),
        used_bytes=ranks.used_bytes,
        peak_bytes=ranks.peak_bytes,
        hottest_rank=ranks.hottest,
        slowest_rank=ranks.slowest,
    )


def _with_compiling(run: Run, row: TrainRow, before: tuple[int, float]) -> TrainRow:
    """Add to a row, and say, what of its time went into compiling the update."""
    now = compiled_in(run.program.optimizer)
    num, seconds = now[0] - before[0], now[1] - before[1]
    if not num:
        return row
    run.observer.on_message(describe_compiled(row, num, seconds))
    return msgspec.structs.replace(row, compile_s=seconds)


def _report(run: Run, row: TrainRow) -> StepReport:
    num_done = row.step - run.first_step + 1
    mean_s = (time.perf_counter() - run.started_s) / num_done
    return StepReport(
        row=row,
        num_steps=run.plan.job.num_steps,
        task=run.plan.job.task,
        num_skipped=run.tally.num_skipped,
        is_process=run.program.device.type == "cpu",
        measured_peak_bytes=run.measured_peak_bytes,
        limit_bytes=offered_bytes(run.plan.cluster),
        remaining_s=(run.plan.job.num_steps - row.step) * mean_s,
    )


def _note_experts(run: Run, watch: ExpertWatch, step: int) -> None:
    """Write how experts were loaded, and raise the alarm where one is hot or most are idle."""
    row = watch.row(step)
    append_row(run.metrics, row)
    run.observer.on_experts(row)
    for alarm in watch.alarms(row):
        run.observer.on_message(alarm)


def _save(run: Run, step: int, position: DataPosition) -> None:
    # First the curve, then the checkpoint: no checkpoint is ahead of its rows.
    sync_metrics(run.metrics)
    if not (keeps_checkpoints(run.plan.strategy) and run.settings.keeps_model):
        return
    judged = run.tally.last_eval
    progress = Progress(
        plan=run.plan,
        step=step,
        position=position,
        tokens_hash=run.data.data_hash,
        heldout_loss=judged.heldout_loss if judged and judged.step == step else None,
    )
    run.saver.save(run.program, progress)


def _describe_stop(run: Run, step: int) -> str:
    if keeps_checkpoints(run.plan.strategy):
        return describe_stop(step, run.settings.out)
    return f"stopped after step {step}; engine={run.plan.strategy.engine} keeps no checkpoints"


def _note(run: Run, saved: list[Saved]) -> None:
    """Tell of checkpoints that have become whole."""
    for step, path in saved:
        run.observer.on_checkpoint(step, path)
