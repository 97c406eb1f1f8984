"""How good the model is on the held-out sample: loss, perplexity, accuracy."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from brimful.build.batch import IGNORE_INDEX, Batch, count_targets
from brimful.build.parallel.place import data_group, summed
from brimful.build.program import Program
from brimful.build.step import evaluate
from brimful.errors import RunError
from brimful.train.bad_step import NOT_SOUGHT, describe_origin
from brimful.train.nan import find_in_forward
from brimful.train.tally import Tally
from brimful.train.world import is_spread
from brimful.values.job import Task
from brimful.values.run_files import EvalRow

PREDICTS_TOKENS: frozenset[Task] = frozenset({"causal-lm", "chat", "masked-lm", "seq2seq"})


def judge_heldout(program: Program, batches: Sequence[Batch], step: int, tally: Tally) -> EvalRow:
    """Judge the model after a step.

    Raises RunError: the loss is not finite.
    """
    hits = Hits()
    with hits.counting(program):
        loss = float(evaluate(program, batches))
    hits.add_up(program)
    if not math.isfinite(loss):
        raise _no_number(program, batches, step, loss)
    return EvalRow(
        step=step,
        heldout_loss=loss,
        perplexity=perplexity(program.job.task, loss),
        accuracy=hits.accuracy,
        is_best=tally.would_be_best(loss),
    )


def perplexity(task: Task, loss: float) -> float | None:
    """Return the exponential of a loss in nats per token; None where no tokens are predicted.

    None too where it is larger than any number.
    """
    if task not in PREDICTS_TOKENS:
        return None
    try:
        return math.exp(loss)
    except OverflowError:
        return None


class Hits:
    """Counts what a classifier gets right, from what its loss is given: no second forward pass.

    Attributes:
        num_right: Unmasked targets whose class had the highest score.
        num_counted: Unmasked targets that were scored by class; 0 where the task has no classes.
    """

    def __init__(self) -> None:
        """Begin at nothing."""
        self.num_right = 0
        self.num_counted = 0

    @contextmanager
    def counting(self, program: Program) -> Iterator[None]:
        """Count along with every loss inside the block."""
        if program.job.task in PREDICTS_TOKENS:
            yield
            return
        handle = program.loss.register_forward_pre_hook(lambda _loss, given: self._count(*given))
        try:
            yield
        finally:
            handle.remove()

    def add_up(self, program: Program) -> None:
        """Count what other devices counted as well; all must call this."""
        counts = torch.tensor([self.num_right, self.num_counted], device=program.device)
        self.num_right, self.num_counted = summed(counts, data_group(program.mesh)).tolist()

    @property
    def accuracy(self) -> float | None:
        """Share of targets that were right; None where there were no classes."""
        return self.num_right / self.num_counted if self.num_counted else None

    def _count(self, scores: Any, labels: torch.Tensor, _num_targets: int) -> None:
        # Tell whether it is [batch, classes, ...] beside whole numbers [batch, ...]. So torch's
        # cross-entropy is called; a module of the user's may learn something else.
        if not (
            isinstance(scores, torch.Tensor)
            and scores.is_floating_point()
            and not labels.is_floating_point()
            and scores.ndim == labels.ndim + 1
            and scores.shape[:1] + scores.shape[2:] == labels.shape
        ):
            return
        counted = labels != IGNORE_INDEX
        self.num_right += int(((scores.argmax(1) == labels) & counted).sum())
        self.num_counted += int(counted.sum())


def _no_number(program: Program, batches: Sequence[Batch], step: int, loss: float) -> RunError:
    return RunError(
        f"the held-out loss became {loss} after step {step}, "
        f"{_origin_words(program, batches)}; use a recipe of a wider range, such as bf16"
    )


def _origin_words(program: Program, batches: Sequence[Batch]) -> str:
    if is_spread():
        return NOT_SOUGHT
    num_targets, origin = count_targets(batches), None
    program.model.eval()
    for number, batch in enumerate(batches):
        origin = origin or find_in_forward(program, batch, number, num_targets=num_targets)
    return describe_origin(origin, len(batches))
