"""The phases of a training loop nobody announces: forward, backward, optimizer, step by step.

A forward begins with the call of an outermost module, a backward with autograd's engine, an update
with an optimizer's ``step``. Whoever listens is told, on the pretend GPU and beside a real run
alike, so that both go by the same names.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import autograd
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizers

Trained = tuple[torch.nn.Module, torch.nn.Parameter]
"""An outermost module, and a parameter of it that has a gradient."""


class Listener(Protocol):
    """What is told of a loop."""

    def begin(self, phase: str) -> None:
        """Hear that a phase begins, e.g. ``step 1 forward``; the one before it has ended."""

    def adopt(self, module: torch.nn.Module) -> bool:
        """Take an outermost module; False where it is known as a part of another."""

    def after_forward(self, module: torch.nn.Module, output: Any) -> None:
        """Hear what an outermost module returned."""

    def after_backward(self, trained: Iterable[Trained]) -> None:
        """Hear that a backward pass is over, and which parameters have gradients."""

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Hear that an optimizer has stepped."""


class _Follower:
    """Follows a loop through its phases."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._step = 1
        self._phase = "load"
        self._depth = 0
        self._backwards = 0
        self._roots: list[weakref.ref[torch.nn.Module]] = []

    def enter_module(self, module: torch.nn.Module, args: Any) -> None:  # noqa: ARG002
        self._depth += 1
        if self._depth > 1 or self._backwards:
            return
        # What torch.compile returns holds the program's module.
        module = getattr(module, "_orig_mod", module)
        is_known = any(module is root() for root in self._roots)
        if not is_known and self._listener.adopt(module):
            self._roots.append(weakref.ref(module))
        self._begin("forward" if torch.is_grad_enabled() else "eval")

    def leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002
        is_outermost = self._depth == 1 and not self._backwards
        self._depth = max(0, self._depth - 1)
        if is_outermost:
            self._listener.after_forward(getattr(module, "_orig_mod", module), output)

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
                self._listener.after_backward(self._trained())

    def before_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if not self._backwards:
            self._begin("optimizer")

    def after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        self._listener.after_update(optimizer)

    def _begin(self, phase: str) -> None:
        if phase in {"forward", "eval"} and self._phase == "optimizer":
            self._step += 1
        if phase != self._phase or phase in {"forward", "backward"}:
            self._phase = phase
            self._listener.begin(f"step {self._step} {phase}")

    def _trained(self) -> Iterator[Trained]:
        for root in (root() for root in self._roots):
            if root is None:
                continue
            for parameter in root.parameters():
                if parameter.grad is not None:
                    yield root, parameter


def state_of(optimizer: Any) -> list[torch.Tensor]:
    """List the tensors of an optimizer's state."""
    return [x for one in optimizer.state.values() for x in tensors_in(one)]


def tensors_in(state: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of what an optimizer keeps of one parameter."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, dict):
        for value in state.values():
            yield from tensors_in(value)


@contextlib.contextmanager
def following(
    listener: Listener,
    *,
    around_backward: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Iterator[None]:
    """Tell ``listener`` the phases of whatever trains inside the block."""
    loop = _Follower(listener)
    original = autograd._engine_run_backward  # noqa: SLF001

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        with loop.backward(), around_backward():
            return original(*args, **kwargs)

    handles = [
        hooks.register_module_forward_pre_hook(loop.enter_module),
        hooks.register_module_forward_hook(loop.leave_module, always_call=True),
        optimizers.register_optimizer_step_pre_hook(loop.before_update),
        optimizers.register_optimizer_step_post_hook(loop.after_update),
    ]
    autograd._engine_run_backward = run_backward  # noqa: SLF001
    try:
        yield
    finally:
        autograd._engine_run_backward = original  # noqa: SLF001
        for handle in handles:
            handle.remove()


class Updates:
    """How many updates there were.

    Attributes:
        count: Of all optimizers.
    """

    count = 0


@contextlib.contextmanager
def counting_updates() -> Iterator[Updates]:
    """Count the updates of every optimizer inside the block."""
    updates = Updates()

    def after_update(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
        updates.count += 1

    handle = optimizers.register_optimizer_step_post_hook(after_update)
    try:
        yield updates
    finally:
        handle.remove()
