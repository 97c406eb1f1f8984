"""The training loop: steps, losses on held-out text, checkpoints, and a clean end."""

import math
import statistics
import time
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec
import torch

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.program import Program
from brimful.build.step import evaluate, train_step
from brimful.errors import RunError
from brimful.plan import Plan
from brimful.run_files import CHECKPOINTS, DATA_FILE, METRICS_FILE, MODEL, EvalRow, TrainRow
from brimful.train.checkpoint import Progress, load_checkpoint, save_checkpoint
from brimful.train.data.batches import (
    START,
    DataPosition,
    TokenBatches,
    heldout_batches,
    open_batches,
)
from brimful.train.data.corpus import load_corpus
from brimful.train.data.tokens import TokenFolder, prepare_tokens
from brimful.train.export import export_model
from brimful.train.interrupt import catch_interrupts
from brimful.train.memory import peak_bytes, reset_peak, used_bytes
from brimful.train.metrics import (
    append_row,
    open_metrics,
    read_metrics,
    sync_metrics,
    write_data_summary,
)
from brimful.train.observers import Observer, StepReport, describe_stop
from brimful.train.run_folder import (
    Resumed,
    check_same_data,
    open_run_folder,
    require_device,
)
from brimful.train.schedule import learning_rate_at

NUM_METERED_STEPS = 2
"""The first step makes the optimizer state, the second shows what every later one looks like."""

CHECKPOINT_EVERY_STEPS = 100
EVAL_EVERY_STEPS = 50
NUM_EVAL_TOKENS = 16_384


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is kept and watched; nothing here changes what is learnt.

    Attributes:
        out: The run's folder.
        data: A text file or folder; None takes the standard library's sources.
        cache: Folder in which token files are kept between runs.
        resume: Go on from the newest checkpoint of ``out``.
        checkpoint_every_steps: Steps between checkpoints; the last step is always saved.
        eval_every_steps: Steps between held-out losses; the last step always has one.
        num_eval_tokens: Size of the fixed held-out sample.
    """

    out: Path
    data: Path | None
    cache: Path
    resume: bool
    checkpoint_every_steps: int
    eval_every_steps: int
    num_eval_tokens: int


class Meter(Protocol):
    """What measures the first steps of a run from the outside."""

    def start(self) -> None:
        """Begin: nothing of the program exists yet."""

    def stop(self, program: Program) -> None:
        """End: the first ``NUM_METERED_STEPS`` steps are done."""


class NullMeter:
    """Measures nothing."""

    def start(self) -> None:
        """Do nothing."""

    def stop(self, program: Program) -> None:
        """Do nothing."""


class TrainResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended.

    Attributes:
        num_steps: Optimizer steps done, those before a resume included.
        resumed_from: The step that this process went on from; 0 where it began.
        interrupted: Whether it was asked to stop before the last step; it can be resumed.
        final_loss: Training loss of the last step, in nats per token.
        heldout_loss: The newest held-out loss; None where the run was interrupted before its first.
        unigram_entropy: Of the held-out tokens, in nats per token: the bar to beat.
        median_step_s: Over the steps after the metered ones; None where there were none.
        tokens_per_s: Tokens of a step divided by ``median_step_s``.
        peak_bytes: Largest memory in use while training: resident on a CPU, allocated on a GPU.
        model: Folder of the trained model; None where the run was interrupted.
    """

    num_steps: int
    resumed_from: int
    interrupted: bool
    final_loss: float
    heldout_loss: float | None
    unigram_entropy: float
    median_step_s: float | None
    tokens_per_s: float | None
    peak_bytes: int
    model: Path | None


class _Data(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained on, and the fixed sample that it is judged by."""

    folder: TokenFolder
    batches: TokenBatches
    heldout: list[Batch]


class _Run(msgspec.Struct, frozen=True, kw_only=True):
    """What stays the same from the first step to the last."""

    plan: Plan
    settings: RunSettings
    observer: Observer
    data: _Data
    metrics: BinaryIO
    program: Program
    first_step: int
    started_s: float


def train(plan: Plan, settings: RunSettings, *, observer: Observer, meter: Meter) -> TrainResult:
    """Run a plan from its first step, or its newest checkpoint, to its last.

    Ctrl-C or SIGTERM ends the run after the step in progress, with a checkpoint; a second one ends
    it at once. A run that was killed goes on with ``resume`` from its newest checkpoint and, on a
    CPU, repeats the very same losses. The meter sees a run that begins, never one that goes on: a
    loaded optimizer is not a first step.

    Args:
        plan: What is run.
        settings: Where it is kept and how often it is saved and judged.
        observer: Who watches.
        meter: What measures building the program and its first steps.

    Returns:
        How the run ended.

    Raises:
        InputError: The data is unusable, the folder in use, or the plan not the run's own.
        RunError: The disk is full, or the loss is not a number.
    """
    device = torch.device(require_device(plan.cluster.device.kernels))
    resumed = open_run_folder(plan, settings.out, resume=settings.resume)
    data = _prepare_data(plan, settings)
    if resumed is not None:
        check_same_data(resumed, data.folder.tokens.tokens_hash)
    reset_peak(device)
    active_meter = meter if resumed is None else NullMeter()
    active_meter.start()
    program = build_program(plan.job, plan.strategy, device)
    step, position = _restore(program, resumed)
    write_data_summary(settings.out / DATA_FILE, data.folder.tokens)
    try:
        with open_metrics(settings.out / METRICS_FILE, last_step=step) as metrics:
            run = _Run(
                plan=plan,
                settings=settings,
                observer=observer,
                data=data,
                metrics=metrics,
                program=program,
                first_step=step + 1,
                started_s=time.perf_counter(),
            )
            last_step = _run_steps(run, position, active_meter)
        return _finish(run, last_step)
    finally:
        observer.close()


def _prepare_data(plan: Plan, settings: RunSettings) -> _Data:
    job, micro_batch = plan.job, plan.strategy.micro_batch
    corpus = load_corpus(settings.data)
    folder = prepare_tokens(corpus, vocab_size=job.model.vocab_size, cache=settings.cache)
    return _Data(
        folder=folder,
        batches=open_batches(folder.train(), job, micro_batch=micro_batch),
        heldout=heldout_batches(
            folder.heldout(), job, micro_batch=micro_batch, num_tokens=settings.num_eval_tokens
        ),
    )


def _restore(program: Program, resumed: Resumed | None) -> tuple[int, DataPosition]:
    if resumed is None:
        return 0, START
    checkpoint = load_checkpoint(resumed.path, program)
    return checkpoint.step, checkpoint.position


def _run_steps(run: _Run, position: DataPosition, meter: Meter) -> int:
    """Run to the last step or an interrupt; returns the last step done."""
    num_steps, settings = run.plan.job.num_steps, run.settings
    last_metered = min(NUM_METERED_STEPS, num_steps)
    step = run.first_step - 1
    with catch_interrupts() as is_interrupted:
        while step < num_steps:
            step += 1
            position = _one_step(run, step, position)
            if step == last_metered:
                meter.stop(run.program)
            is_last = step == num_steps
            if is_last or step % settings.eval_every_steps == 0:
                _judge(run, step)
            if is_last or is_interrupted() or step % settings.checkpoint_every_steps == 0:
                _save(run, step, position)
            if not is_last and is_interrupted():
                run.observer.on_message(describe_stop(step, settings.out))
                break
    return step


def _one_step(run: _Run, step: int, position: DataPosition) -> DataPosition:
    """Run one optimizer step, write its row, and say where the next one's data begins."""
    job = run.plan.job
    learning_rate = learning_rate_at(job, step)
    start_s = time.perf_counter()
    micro_batches, following = run.data.batches.step_at(position)
    num_targets = count_targets(micro_batches)
    result = train_step(
        run.program, micro_batches, num_targets=num_targets, learning_rate=learning_rate
    )
    loss, grad_norm = float(result.loss), float(result.grad_norm)
    step_s = time.perf_counter() - start_s
    _check_finite(run, step, loss=loss, grad_norm=grad_norm)
    row = TrainRow(
        step=step,
        loss=loss,
        learning_rate=learning_rate,
        grad_norm=grad_norm,
        tokens_per_s=num_targets / step_s,
        step_s=step_s,
    )
    append_row(run.metrics, row)
    run.observer.on_step(_report(run, row))
    return following


def _check_finite(run: _Run, step: int, *, loss: float, grad_norm: float) -> None:
    for name, value in (("loss", loss), ("gradient norm", grad_norm)):
        if not math.isfinite(value):
            raise RunError(
                f"the {name} became {value} in step {step} of {run.plan.job.num_steps} with "
                f"learning_rate={run.plan.job.learning_rate}; lower it or raise warmup_steps"
            )


def _report(run: _Run, row: TrainRow) -> StepReport:
    num_done = row.step - run.first_step + 1
    mean_s = (time.perf_counter() - run.started_s) / num_done
    return StepReport(
        step=row.step,
        num_steps=run.plan.job.num_steps,
        loss=row.loss,
        learning_rate=row.learning_rate,
        grad_norm=row.grad_norm,
        tokens_per_s=row.tokens_per_s,
        step_s=row.step_s,
        is_process=run.program.device.type == "cpu",
        used_bytes=used_bytes(run.program.device),
        peak_bytes=peak_bytes(run.program.device),
        limit_bytes=run.plan.cluster.device.usable_bytes,
        remaining_s=(run.plan.job.num_steps - row.step) * mean_s,
    )


def _judge(run: _Run, step: int) -> None:
    heldout_loss = float(evaluate(run.program, run.data.heldout))
    append_row(run.metrics, EvalRow(step=step, heldout_loss=heldout_loss))
    run.observer.on_eval(step, heldout_loss)


def _save(run: _Run, step: int, position: DataPosition) -> None:
    # First the curve, then the checkpoint: no checkpoint is ahead of its rows.
    sync_metrics(run.metrics)
    progress = Progress(
        plan=run.plan,
        step=step,
        position=position,
        tokens_hash=run.data.folder.tokens.tokens_hash,
    )
    path = save_checkpoint(run.settings.out / CHECKPOINTS, run.program, progress)
    run.observer.on_checkpoint(step, path)


def _finish(run: _Run, last_step: int) -> TrainResult:
    rows = read_metrics(run.settings.out / METRICS_FILE)
    steps = [row for row in rows if isinstance(row, TrainRow)]
    evals = [row for row in rows if isinstance(row, EvalRow)]
    steady_s = [row.step_s for row in steps if row.step > NUM_METERED_STEPS]
    median_step_s = statistics.median(steady_s) if steady_s else None
    interrupted = last_step < run.plan.job.num_steps
    peak = peak_bytes(run.program.device)
    model = run.settings.out / MODEL
    if not interrupted:
        export_model(run.program.model, tokenizer_path=run.data.folder.tokenizer_path, folder=model)
    return TrainResult(
        num_steps=last_step,
        resumed_from=run.first_step - 1,
        interrupted=interrupted,
        final_loss=steps[-1].loss,
        heldout_loss=evals[-1].heldout_loss if evals else None,
        unigram_entropy=run.data.folder.tokens.unigram_entropy,
        median_step_s=median_step_s,
        tokens_per_s=run.plan.job.tokens_per_step / median_step_s if median_step_s else None,
        peak_bytes=peak,
        model=None if interrupted else model,
    )
