"""The phases of a training loop nobody announces: forward, backward, optimizer, step by step.

A forward begins with the call of an outermost module, a backward with autograd's engine, an update
with an optimizer's ``step``. At their ends what has become a parameter, a gradient or optimizer
state is told to the tape.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import autograd
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizers

from brimful.pretend import guard
from brimful.pretend.tape import Tape
from brimful.rungs import BUFFERS, GRADIENTS, OPTIMIZER_STATE, PARAMETERS


class _Steps:
    """Follows a loop through its phases."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._step = 1
        self._phase = "load"
        self._depth = 0
        self._backwards = 0
        self._roots: list[weakref.ref[torch.nn.Module]] = []

    def enter_module(self, module: torch.nn.Module, args: Any) -> None:  # noqa: ARG002
        self._depth += 1
        if self._depth > 1 or self._backwards:
            return
        if not any(module is root() for root in self._roots):
            self._adopt(module)
        self._begin("forward" if torch.is_grad_enabled() else "eval")

    def leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002
        self._depth = max(0, self._depth - 1)

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        if not self._backwards:
            self._begin("backward")
        self._backwards += 1
        depth, self._depth = self._depth, 0
        try:
            yield
        finally:
            self._backwards -= 1
            self._depth = depth
            if not self._backwards:
                self._tape.tag(self._gradients(), GRADIENTS)

    def before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if not self._backwards:
            self._begin("optimizer")

    def after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        state = [x for one in optimizer.state.values() for x in _tensors(one)]
        self._tape.tag(state, OPTIMIZER_STATE)

    def _adopt(self, module: torch.nn.Module) -> None:
        """Name an outermost module's parts; one that was named as part of another stays that."""
        if self._tape.owners.knows(module):
            return
        self._roots.append(weakref.ref(module))
        self._tape.name_modules(module)
        self._tape.tag(module.parameters(), PARAMETERS)
        self._tape.tag(module.buffers(), BUFFERS)

    def _begin(self, phase: str) -> None:
        if phase in {"forward", "eval"} and self._phase == "optimizer":
            self._step += 1
        if phase != self._phase or phase in {"forward", "backward"}:
            self._phase = phase
            self._tape.begin_phase(f"step {self._step} {phase}")

    def _gradients(self) -> Iterator[torch.Tensor]:
        for root in filter(None, (root() for root in self._roots)):
            for parameter in root.parameters():
                if parameter.grad is not None:
                    yield parameter.grad


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from _tensors(value)


@contextlib.contextmanager
def following(tape: Tape) -> Iterator[None]:
    """Tell ``tape`` the phases of whatever trains inside the block."""
    steps = _Steps(tape)
    original = autograd._engine_run_backward  # noqa: SLF001

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        with steps.backward(), guard.errors_come_through():
            return original(*args, **kwargs)

    handles = [
        hooks.register_module_forward_pre_hook(steps.enter_module),
        hooks.register_module_forward_hook(steps.leave_module, always_call=True),
        optimizers.register_optimizer_step_pre_hook(steps.before_update),
        optimizers.register_optimizer_step_post_hook(steps.after_update),
    ]
    autograd._engine_run_backward = run_backward  # noqa: SLF001
    try:
        yield
    finally:
        autograd._engine_run_backward = original  # noqa: SLF001
        for handle in handles:
            handle.remove()
