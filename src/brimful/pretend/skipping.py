"""Running some micro-batches of a pipeline's stages; the others hand on what they would.

A micro-batch that is skipped leaves an empty stretch on the tape for each call of a stage, which
``calls.fill`` fills. Stands between the schedules of ``torch.distributed.pipelining`` and its
stages; which micro-batches are enough to run the caller says.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch

from brimful.pretend.calls import Call
from brimful.pretend.recording_builder import Spot
from brimful.pretend.tape import Tape

FORWARD, BACKWARD = "forward", "backward"


class Chosen(NamedTuple):
    """Micro-batches that are run.

    Attributes:
        first_step: In the first step: every kind of call is among them.
        later_steps: In a later one, whose calls have to be like the first step's.
    """

    first_step: frozenset[int]
    later_steps: frozenset[int]


class Skipper:
    """Runs some micro-batches of a program's stages and lets the others hand on what they would.

    Attributes:
        calls: What was called so far.
    """

    def __init__(self, tape: Tape, stages: Iterable[Any], chosen: Chosen) -> None:
        """Stand between the pipeline and its stages."""
        self.calls: list[Call] = []
        self._tape, self._chosen = tape, chosen
        self._step, self._is_run = 0, True
        self._results: dict[int, torch.Tensor] = {}
        for stage in stages:
            forward, backward = stage.forward_one_chunk, stage.backward_one_chunk
            stage.forward_one_chunk = partial(self._call, stage, FORWARD, forward)
            stage.backward_one_chunk = partial(self._call, stage, BACKWARD, backward)
            run_forward = stage.forward_maybe_with_nosync
            run_backward = stage.backward_maybe_with_nosync
            stage.forward_maybe_with_nosync = partial(self._forward, stage, run_forward)
            stage.backward_maybe_with_nosync = partial(self._backward, run_backward)

    def begin_step(self, step: int) -> None:
        """Take note that the next calls are of another step, counted from 1."""
        self._step = step

    def _call(
        self,
        stage: Any,
        kind: str,
        call: Callable[..., Any],
        micro_batch: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        chosen = self._chosen.first_step if self._step == 1 else self._chosen.later_steps
        self._is_run = micro_batch in chosen
        start = self._tape.spot()
        out = call(micro_batch, *args, **kwargs)
        stop = self._tape.spot()
        handed = (out,) if kind == FORWARD else stage.bwd_cache.get(micro_batch, ())
        self._note(stage.stage_index, kind, micro_batch, (start, stop), handed)
        return out

    def _note(
        self, stage: int, kind: str, micro_batch: int, spots: tuple[Spot, Spot], handed: Any
    ) -> None:
        tensors = [x for x in handed if isinstance(x, torch.Tensor)]
        self.calls.append(
            Call(
                stage=stage,
                kind=kind,
                step=self._step,
                micro_batch=micro_batch,
                start=spots[0],
                stop=spots[1],
                ran=self._is_run,
                handed=self._tape.rows_of(tensors),
            )
        )

    def _forward(self, stage: Any, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._is_run:
            out = run(*args, **kwargs)
            self._results[stage.stage_index] = _like(out)
            return out
        like = self._results[stage.stage_index]
        return torch.empty_like(like, device=stage.device, requires_grad=True)

    def _backward(
        self, run: Callable[..., Any], kind: str, given: dict[str, Any], **kwargs: Any
    ) -> Any:
        if self._is_run:
            return run(kind, given, **kwargs)
        trained = (x is not None and x.requires_grad for x in given["input_values"])
        pairs = zip(given["input_values"], trained, strict=True)
        return tuple(torch.empty_like(x) if asks else None for x, asks in pairs), None


def _like(out: torch.Tensor) -> torch.Tensor:
    return torch.empty(out.shape, dtype=out.dtype, device="meta")
