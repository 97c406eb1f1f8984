"""Where an Inf or a NaN came from: the failed step's micro-batches are run once more and watched.

Knows the build path only. What is found is a value; keeping it is ``bad_step``'s.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from brimful.build.batch import Batch, count_targets
from brimful.build.drawing import draw_anew
from brimful.build.own import leaf_of
from brimful.build.precision import forward_context, micro_batch_context
from brimful.build.program import Program
from brimful.build.step import micro_step
from brimful.doctor.program import scaled_by
from brimful.doctor.tensors import floats
from brimful.train.guard import is_finite

LOSS = "loss"
"""How the loss is named, which is no module of the model."""


class Origin(NamedTuple):
    """Where the first Inf or NaN of a step appeared.

    Attributes:
        micro_batch: Of the step, from 0.
        where: ``forward``: in a module's output; ``backward``: in a parameter's gradient.
        name: Path of the module or name of the parameter.
        input_low: Smallest number that the module was given; None in the backward pass.
        input_high: Largest.
    """

    micro_batch: int
    where: Literal["forward", "backward"]
    name: str
    input_low: float | None = None
    input_high: float | None = None


def find_origin(
    program: Program, micro_batches: Sequence[Batch], *, loss_scale: float | None, step: int = 1
) -> Origin | None:
    """Run a step's forwards and backwards once more, without an update, up to the first Inf or NaN.

    ``program``: with the weights that the step began with; its gradients are dropped. ``step``:
    which it was, from 1. Returns where it is; None where none appears this time.
    """
    num_targets = count_targets(micro_batches)
    program.optimizer.zero_grad(set_to_none=True)
    with scaled_by(program, loss_scale):
        try:
            for number, batch in enumerate(micro_batches):
                for find in (find_in_forward, _find_in_backward):
                    draw_anew(program, step=step, number=number)
                    origin = find(program, batch, number, num_targets=num_targets)
                    if origin is not None:
                        return origin
        finally:
            program.optimizer.zero_grad(set_to_none=True)
    return None


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def find_in_forward(
    program: Program, batch: Batch, number: int, *, num_targets: int
) -> Origin | None:
    """Find the first module, in the order of the forward pass, whose output is not finite.

    Where a module is handed what is not finite already, the one around it made that in its own
    code, between its parts, and is named.

    ``number``: which of its step, from 0.
    """
    precision, watch = program.job.precision, _Watch()
    with watch.over(_names(program)), micro_batch_context(precision):
        moved = batch.to(program.device)
        with forward_context(precision, program.device):
            share = program.root(program, moved, num_targets)
    if watch.found is None and not is_finite(share):
        watch.found = _Entered(LOSS, None)
    if watch.found is None:
        return None
    low, high = watch.found.input_range or (None, None)
    return Origin(number, "forward", watch.found.name, low, high)


def _find_in_backward(
    program: Program, batch: Batch, number: int, *, num_targets: int
) -> Origin | None:
    """Find the first parameter, in the order of the backward pass, whose gradient is not finite."""
    bad: list[str] = []

    def note(name: str, parameter: torch.Tensor) -> None:
        if not bad and not is_finite(parameter.grad):
            bad.append(name)

    with contextlib.ExitStack() as stack:
        for name, parameter in program.model.named_parameters():
            if parameter.requires_grad:
                hook = leaf_of(parameter).register_post_accumulate_grad_hook(
                    lambda p, name=name: note(name, p)
                )
                stack.callback(hook.remove)
        micro_step(program, batch, num_targets=num_targets)
    return Origin(number, "backward", bad[0]) if bad else None


class _Entered(NamedTuple):
    name: str
    input_range: tuple[float, float] | None


class _Watch:
    """Follows a forward pass through its modules up to the first Inf or NaN."""

    def __init__(self) -> None:
        self.found: _Entered | None = None
        self._inside: list[_Entered] = []

    @contextlib.contextmanager
    def over(self, names: Mapping[nn.Module, str]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for module in names:
                enter = module.register_forward_pre_hook(
                    lambda m, args, kwargs: self._enter(names[m], (args, kwargs)), with_kwargs=True
                )
                leave = module.register_forward_hook(lambda _m, _args, out: self._leave(out))
                stack.callback(enter.remove)
                stack.callback(leave.remove)
            yield

    def _enter(self, name: str, given: Any) -> None:
        if self.found is not None:
            return
        numbers = list(floats(given))
        if self._inside and not all(map(is_finite, numbers)):
            self.found = self._inside[-1]
        self._inside.append(_Entered(name, _range(numbers)))

    def _leave(self, out: Any) -> None:
        if self.found is not None:
            return
        entered = self._inside.pop()
        if not all(map(is_finite, floats(out))):
            self.found = entered


def _names(program: Program) -> dict[nn.Module, str]:
    """Name every module of the model and the loss, a shared one as the model does."""
    model = {module: name for name, module in program.model.named_modules()}
    loss = {program.loss: LOSS} if isinstance(program.loss, nn.Module) else {}
    root = type(program.model).__name__
    return {**loss, **{module: name or root for module, name in model.items()}}


def _range(tensors: Sequence[torch.Tensor]) -> tuple[float, float] | None:
    ends = [torch.stack(torch.aminmax(x)).tolist() for x in tensors if x.numel()]
    return (min(low for low, _ in ends), max(high for _, high in ends)) if ends else None
