"""Any PyTorch loop, watched.

::

    with watch.Loop(model, optimizer, out="runs/mine", step=train_step) as loop:
        for batch in loop(batches):
            train_step(model, optimizer, batch)

The first two optimizer steps are metered. When the block ends, ``step`` takes the same two on the
pretend GPU, with copies of the model and the optimizer that take no memory, and both are laid side
by side.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from brimful.loop_phases import counting_updates
from brimful.measure.loop import Subject
from brimful.report.watched_run import WATCHED_SCHEMA, WatchedRun
from brimful.values.results import Measurement
from brimful.values.run_files import LoopRow
from brimful.watch.simulated import Simulated, simulate_loop
from brimful.watch.twin import Pair, recall, twins
from brimful.watch.watcher import Watcher, counts, this_machine, write_run

Step = Callable[[torch.nn.Module, torch.optim.Optimizer, Any], Any]
"""Takes model, optimizer and batch, and does all that the loop does with a batch."""


class Loop:
    """A block around a training loop; its attributes are there when it has ended.

    Attributes:
        run: What was seen; None where no step was taken.
        report: The page; None where no folder was given.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        out: str | Path | None = None,
        step: Step | None = None,
        title: str = "",
    ) -> None:
        """Say what is trained.

        Args:
            model: It is on its device.
            optimizer: Of its parameters.
            out: Folder for verdict and page; None: nothing is written.
            step: What the loop does with each batch; None: the loop is measured, not simulated.
            title: What the page is called; empty: the class of the model.
        """
        self._model, self._optimizer = model, optimizer
        self._out = None if out is None else Path(out)
        self._step = step
        self._title = title or type(model).__name__
        self._watcher: Watcher | None = None
        self._rows: list[LoopRow] = []
        self.run: WatchedRun | None = None
        self.report: Path | None = None

    def __enter__(self) -> Self:
        """Begin to meter."""
        self._watcher = Watcher(Subject(self._model, self._optimizer))
        return self

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Hand batches through, and tell steps apart by the optimizer's updates.

        Args:
            batches: What the loop trains on; several may make a step.
        """
        watcher = self._watcher
        assert watcher is not None, "batches are handed through inside of the block"
        with counting_updates() as updates:
            num_seen, num_done = 0, 0
            watcher.begin_step()
            for batch in batches:
                watcher.take(batch)
                yield batch
                if updates.count > num_seen:
                    num_seen = updates.count
                    num_done += 1
                    watcher.end_step()
                    step_s = watcher.step_s[-1] if watcher.step_s else None
                    self._rows.append(LoopRow(step=num_done, step_s=step_s))
                    watcher.begin_step()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Compare and write; where the loop failed, only take the instrument off."""
        watcher = self._watcher
        assert watcher is not None
        if kind is not None:
            watcher.abandon()
            return
        measured = watcher.measured()
        if measured is not None:
            self.run = self._watched(watcher, measured)
            if self._out is not None:
                self.report = write_run(self.run, self._out)

    def _watched(self, watcher: Watcher, measured: Measurement) -> WatchedRun:
        device = this_machine().device
        simulated = Simulated(None, "the loop was given no step=")
        if self._step is not None:
            simulated = simulate_loop(lambda: self._train_twin(watcher.batches), device)
        num_parameters, num_trained = counts(self._model)
        return WatchedRun(
            schema=WATCHED_SCHEMA,
            title=self._title,
            machine=device.description,
            usable_bytes=device.usable_bytes,
            num_parameters=num_parameters,
            num_trained=num_trained,
            settings=(),
            estimate=None,
            not_predicted="a loop of one's own has no settings that could be asked",
            simulation=simulated.simulation,
            not_simulated=simulated.why_not,
            measurement=measured,
            rows=tuple(self._rows),
        )

    def _train_twin(self, batches: list[Any]) -> Pair:
        """Take the metered steps again, on copies."""
        assert self._step is not None
        pair = twins(self._model, self._optimizer)
        for batch in batches:
            self._step(pair.model, pair.optimizer, recall(batch))
        return pair
