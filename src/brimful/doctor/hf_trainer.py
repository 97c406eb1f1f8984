"""The watcher in a Hugging Face Trainer: ``Trainer(..., callbacks=[PrecisionCallback(every=50)])``.

The Trainer says when a step begins and ends, and hands its model and optimizer over; its gradient
accumulation is seen as micro-batches. The loss scale is that of its own scaler, where it has one.
"""

from typing import Any

from transformers import TrainerCallback

from brimful.doctor.findings import Finding, find_faults
from brimful.doctor.seen import seen_in_loop
from brimful.doctor.watcher import Watcher
from brimful.errors import InputError


class PrecisionCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped to mypy
    """Watches the Trainer's model and optimizer on chosen steps.

    Attributes:
        watcher: What it has seen, once training began.
        findings: What is wrong, once training has ended.
    """

    def __init__(self, *, every: int = 50) -> None:
        """Watch step 1 and each ``every`` steps after it.

        Raises:
            InputError: ``every`` is less than 1.
        """
        if every < 1:
            raise InputError(f"every={every} is too few; give 1 or more")
        self._every = every
        self.watcher: Watcher | None = None
        self.findings: tuple[Finding, ...] = ()

    def on_train_begin(self, args: Any, _state: Any, _control: Any, **given: Any) -> None:
        """Take the model and the optimizer."""
        rank = int(args.process_index)
        self.watcher = Watcher(given["model"], given["optimizer"], every=self._every, rank=rank)

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **given: Any) -> None:
        """Begin to watch, if it is the step's turn."""
        if self.watcher is not None:
            scaler = getattr(given["optimizer"], "scaler", None)  # of accelerate's wrapper
            scale = 1.0 if scaler is None else float(scaler.get_scale())
            self.watcher.begin(state.global_step + 1, loss_scale=scale)

    def on_step_end(self, _args: Any, _state: Any, _control: Any, **_given: Any) -> None:
        """End what was watched."""
        if self.watcher is not None:
            self.watcher.end()

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_given: Any) -> None:
        """Say what is wrong, by ``findings``."""
        if self.watcher is not None:
            self.watcher.end()
            self.findings = find_faults(seen_in_loop(self.watcher.watched()))
