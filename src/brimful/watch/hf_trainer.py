"""A Hugging Face Trainer, watched: ``Trainer(..., callbacks=[MemoryCallback()])``.

The first two optimizer steps are metered. When training ends, the same Trainer takes the same two
steps on the pretend GPU, and both are laid side by side. The run itself never fails by this: what
could not be seen is said in a warning.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from brimful.measure.loop import Subject
from brimful.report.watched import watched_lines
from brimful.report.watched_run import WATCHED_SCHEMA, WatchedRun
from brimful.text.escaping import one_line
from brimful.text.terminal import console
from brimful.values.results import Measurement
from brimful.values.run_files import LoopRow
from brimful.watch.simulated import Simulated, simulate_loop
from brimful.watch.trainer_plan import predict
from brimful.watch.trainer_twin import train_twin
from brimful.watch.watcher import Watcher, counts, this_machine, write_run

FOLDER = "brimful"
"""Where a run's files go, below the Trainer's ``output_dir``."""
_LOG = logging.getLogger("brimful.watch")
_TOLD = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16", "tf32", "optim",
    "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm",
    "gradient_checkpointing", "torch_compile", "use_liger_kernel", "max_steps",
    "num_train_epochs", "seed",
)  # fmt: skip
"""Arguments that decide memory, time or the mathematics."""


class MemoryCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
    """Meters a Trainer's first steps, simulates them, and writes verdict and report.

    Attributes:
        run: What was seen, once training has ended; None where nothing was.
        report: The page; None before it is written.
    """

    def __init__(self, out: str | Path | None = None, *, simulate: bool = True) -> None:
        """Say where to write.

        Args:
            out: The folder; None: ``brimful`` in the Trainer's ``output_dir``.
            simulate: Whether to run the same steps on the pretend GPU when training ends.
        """
        self._out = None if out is None else Path(out)
        self._simulate = simulate
        self._trainer: Trainer | None = None
        self._watcher: Watcher | None = None
        self._ended: list[tuple[int, float]] = []
        self.run: WatchedRun | None = None
        self.report: Path | None = None

    def on_train_begin(self, _args: Any, _state: Any, _control: Any, **given: Any) -> None:
        """Begin to meter, and to remember batches."""
        with self._harmless():
            self._trainer = _trainer_that_calls()
            self._watcher = Watcher(Subject(given["model"], given["optimizer"]))
            _remember_batches(self._trainer, self._watcher)

    def on_step_begin(self, _args: Any, _state: Any, _control: Any, **_given: Any) -> None:
        """Read the clock."""
        if self._watcher is not None:
            self._watcher.begin_step()

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_given: Any) -> None:
        """Count a step; behind the second, take the instrument off."""
        watcher = self._watcher
        if watcher is None:
            return
        with self._harmless():
            was_metering = watcher.is_metering
            watcher.end_step()
            if watcher.step_s:
                self._ended.append((state.global_step, watcher.step_s[-1]))
            if was_metering and not watcher.is_metering:
                _forget_batches(self._trainer)

    def on_train_end(self, args: Any, state: Any, _control: Any, **_given: Any) -> None:
        """Compare, write, and print the verdict."""
        watcher, trainer = self._watcher, self._trainer
        if watcher is None or trainer is None:
            return
        with self._harmless():
            _forget_batches(trainer)
            measured = watcher.measured()
            if measured is None or not state.is_world_process_zero:
                return
            rows = _rows(state.log_history, self._ended)
            self.run = _watched(trainer, watcher, measured, rows, simulate=self._simulate)
            self.report = write_run(self.run, self._out or Path(args.output_dir) / FOLDER)
            _show(self.run, self.report)

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """Let nothing of the watching end the run."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
            _LOG.warning("not watched: %s: %s", type(error).__name__, one_line(str(error)))
            if self._watcher is not None:
                self._watcher.abandon()
            self._watcher = None
            _forget_batches(self._trainer)


def _trainer_that_calls() -> Trainer:
    """Find the Trainer whose event this is: callbacks are handed everything of it but itself."""
    frame = sys._getframe()  # noqa: SLF001 - there is no other way to it
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer):
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    raise RuntimeError("no Trainer calls this callback; give it to one by callbacks=[...]")


def _remember_batches(trainer: Trainer, watcher: Watcher) -> None:
    """Have the Trainer's step show each batch before it is used."""
    step = trainer.training_step

    def training_step(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        watcher.take(inputs)
        return step(model, inputs, *args, **kwargs)

    trainer.training_step = training_step


def _forget_batches(trainer: Trainer | None) -> None:
    if trainer is not None:
        vars(trainer).pop("training_step", None)


def _rows(history: list[dict[str, Any]], ended: list[tuple[int, float]]) -> tuple[LoopRow, ...]:
    """Turn the Trainer's log into rows, each with the mean time of the steps since the last."""
    rows, last = [], 0
    for line in history:
        if "loss" not in line:
            continue
        step = int(line["step"])
        seconds = [s for number, s in ended if last < number <= step]
        rows.append(
            LoopRow(
                step=step,
                step_s=sum(seconds) / len(seconds) if seconds else None,
                loss=_number(line["loss"]),
                learning_rate=_number(line.get("learning_rate")),
                grad_norm=_number(line.get("grad_norm")),
            )
        )
        last = step
    return tuple(rows)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _watched(
    trainer: Trainer,
    watcher: Watcher,
    measured: Measurement,
    rows: tuple[LoopRow, ...],
    *,
    simulate: bool,
) -> WatchedRun:
    cluster = this_machine()
    device = cluster.device
    simulated = Simulated(None, "simulate=False was asked for")
    if simulate:
        _LOG.info("simulating the first %d steps on the pretend GPU", watcher.num_metered)
        simulated = simulate_loop(
            lambda: train_twin(trainer, watcher.batches, num_steps=watcher.num_metered), device
        )
    predicted = predict(trainer, watcher.batches, cluster)
    num_parameters, num_trained = counts(trainer.model)
    return WatchedRun(
        schema=WATCHED_SCHEMA,
        title=f"{type(trainer.model).__name__} by {type(trainer).__name__}",
        machine=device.description,
        usable_bytes=device.usable_bytes,
        num_parameters=num_parameters,
        num_trained=num_trained,
        settings=tuple((name, _setting(trainer.args, name)) for name in _TOLD),
        estimate=predicted.estimate,
        not_predicted=predicted.why_not,
        simulation=simulated.simulation,
        not_simulated=simulated.why_not,
        measurement=measured,
        rows=rows,
    )


def _setting(args: Any, name: str) -> str:
    value = getattr(args, name, "unknown")
    return str(getattr(value, "value", value))


def _show(run: WatchedRun, report: Path) -> None:
    screen = console(stderr=True)
    screen.print(watched_lines(run))
    screen.print(f"report: {report}", soft_wrap=True)
