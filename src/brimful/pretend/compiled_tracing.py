"""What Dynamo and AOTAutograd see of the pretend GPU while they capture a graph.

Below PyTorch's Python functions tensors stay on the ``gpu`` device, whose autograd, autocast and
choice of attention are those of the pretend GPU. Above, they are on ``cuda``, or on the ``cpu``
where a CPU's kernels are imitated: that is what decompositions and Inductor go by. Devices are
translated where a fake tensor is made and where an operation is written into a graph.

Source: PyTorch 2.13, ``torch/_dynamo/convert_frame.py``, ``torch/_subclasses/fake_tensor.py``,
``torch/_subclasses/functional_tensor.py`` and ``torch/fx/experimental/proxy_tensor.py``.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo.convert_frame
import torch._dynamo.guards
import torch._dynamo.trace_rules
import torch._dynamo.utils
import torch._dynamo.variables.optimizer
import torch._dynamo.variables.torch
import torch._dynamo.variables.torch_function
import torch._inductor.compile_fx
import torch._subclasses
from torch import autograd
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.graph import _engine_run_backward
from torch.fx import Interpreter
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _pop_mode,
    _push_mode,
)

from brimful.pretend import composites, guard, kernels
from brimful.pretend.cuda_calls import CUDA, inward, outward, seen_as
from brimful.pretend.known_values import REALLY_FAKE
from brimful.pretend.replacing import replaced

_PACKAGE = __name__.partition(".")[0]
_OURS = __name__.rpartition(".")[0]
"""What follows a program, and is no part of one as ``build`` is."""
_dynamo: Any = torch._dynamo  # noqa: SLF001
_function_modes: Any = _dynamo.variables.torch_function
_device_of = torch.Tensor.device.__get__


class _State:
    """Whether PyTorch's compiler is at work, and what it has put away of the program's."""

    is_tracing = False
    modes: Sequence[Any] = ()


@contextlib.contextmanager
def tracing_programs(
    stands_for: Mapping[Any, Any], is_running: Callable[[], bool]
) -> Iterator[None]:
    """Let Dynamo capture what runs under the pretend GPU's modes, inside the block.

    ``stands_for``: PyTorch's own functions, by what stands in their place. ``is_running``: whether
    a compiled function of the program's is being called.
    """
    _dynamo.reset()
    _dynamo.trace_rules.add(_OURS)
    with (
        replaced(_replacements(is_running)),
        _taken_for(stands_for),
        _dynamo.config.patch(enable_cpp_symbolic_shape_guards=False),
        torch._functorch.config.patch(  # noqa: SLF001
            enable_autograd_cache=False, check_custom_op_aliasing=False
        ),
    ):
        try:
            yield
        finally:
            _dynamo.reset()


def _replacements(is_running: Callable[[], bool]) -> Iterator[tuple[Any, str, Any]]:
    frames = _dynamo.convert_frame
    modes_there = frames.any_torch_dispatch_mode_on_stack
    # Modes of the pretend GPU see compiled code run, not what it was compiled from.
    yield (
        frames, "any_torch_dispatch_mode_on_stack",
        lambda: not is_running() and modes_there(),
    )  # fmt: skip
    wrapper = frames.CatchErrorsWrapper
    yield wrapper, "__call__", _frame_is_captured(wrapper.__call__, is_running)
    compiler = torch._inductor.compile_fx  # noqa: SLF001
    yield compiler, "compile_fx_backward", _backward_is_compiled(compiler.compile_fx_backward)
    state = _function_modes.SymbolicTorchFunctionState
    yield state, "__init__", _without_our_function_modes(state.__init__)
    sets = _dynamo.utils.set_torch_function_mode_stack
    yield _dynamo.utils, "set_torch_function_mode_stack", _with_our_function_modes(sets)
    optimizers = _dynamo.variables.optimizer.OptimizerVariable
    yield optimizers, "call_method", _state_is_made(optimizers.call_method)
    for where in (_dynamo.utils, _dynamo.guards):
        yield where, "get_current_stream", lambda device: torch.gpu.current_stream(inward(device))
    yield from _devices()


def _devices() -> Iterator[tuple[Any, str, Any]]:
    """Yield what translates devices between a graph and the tensors it was captured from."""
    # Every device that a fake tensor is given goes through it; before PyTorch 2.12 it is made so.
    given = "_normalize_fake_device" if hasattr(FakeTensor, "_normalize_fake_device") else "__new__"
    yield FakeTensor, given, staticmethod(_translated(getattr(FakeTensor, given), inward))
    yield FakeTensor, "device", _seen_device(FakeTensor.device)
    yield FunctionalTensor, "device", _seen_device(property(_device_of))
    yield FakeTensorMode, "avoid_device_init", _no_device(FakeTensorMode.avoid_device_init)
    wrapped = torch.Tensor._make_wrapper_subclass  # noqa: SLF001
    yield torch.Tensor, "_make_wrapper_subclass", staticmethod(_translated(wrapped, inward))
    # What a captured program says itself: x.to("cuda").
    yield _dynamo.utils, "run_node", _run_below(_dynamo.utils.run_node)
    for name in ("call_function", "call_method"):
        yield Interpreter, name, _run_below(getattr(Interpreter, name))
    proxies = ProxyTorchDispatchMode
    yield proxies, "__torch_dispatch__", _recorded(proxies.__torch_dispatch__)
    yield proxy_tensor, "unset_fake_temporarily", _constants_on_host


@contextlib.contextmanager
def _taken_for(stands_for: Mapping[Any, Any]) -> Iterator[None]:
    """Let Dynamo treat what stands for a function of PyTorch's as it treats that function."""
    tables = (
        _dynamo.trace_rules.get_torch_obj_rule_map(),
        _dynamo.variables.torch.constant_fold_functions,
        _dynamo.variables.torch.constant_fold_functions_need_guards,
        _dynamo.variables.torch.TorchInGraphFunctionVariable._get_handlers(),  # noqa: SLF001
    )
    added = []
    for table in tables:
        for new, original in stands_for.items():
            if original in table and new not in table:
                table[new] = table[original]
                added.append((table, new))
    try:
        yield
    finally:
        for table, new in added:
            del table[new]


# -- while the compiler is at work --


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Let PyTorch's compiler work inside the block: its own engine, fake tensors and names."""
    if _State.is_tracing:
        yield
        return
    _State.is_tracing = True
    try:
        with (
            replaced(
                [
                    (autograd, "_engine_run_backward", _run_engine),
                    (composites, "dropped", composites.dropped_in_graph),
                    REALLY_FAKE,
                ]
            ),
            seen_as(kernels.current()),
        ):
            yield
    finally:
        _State.is_tracing = False


@contextlib.contextmanager
def _as_program() -> Iterator[None]:
    """Run inside the block what a program does while it is captured."""
    modes = _State.modes
    functions = _function_modes.torch_function_mode_stack_state_mgr.temp_restore_stack()
    with _disable_current_modes(), functions, seen_as(CUDA):
        _State.is_tracing = False
        for mode in modes:
            _push_mode(mode)
        try:
            yield
        finally:
            for _ in modes:
                _pop_mode()
            _State.is_tracing = True


def _state_is_made(original: Any) -> Any:
    """Return how Dynamo treats an optimizer, which makes its state for real while captured."""

    def call_method(variable: Any, tx: Any, name: str, *args: Any) -> Any:
        if name != "_init_group":
            return original(variable, tx, name, *args)
        optimizer = variable.value
        makes = optimizer._init_group  # noqa: SLF001

        def make(*given: Any, **named: Any) -> Any:
            with _as_program():
                return makes(*given, **named)

        with replaced([(optimizer, "_init_group", make)]):
            return original(variable, tx, name, *args)

    return call_method


def _run_engine(*args: Any, **kwargs: Any) -> Any:
    with guard.errors_come_through():
        return _engine_run_backward(*args, **kwargs)


def _frame_is_captured(original: Any, is_running: Callable[[], bool]) -> Any:
    def call(wrapper: Any, *frame: Any) -> Any:
        if not is_running():
            return original(wrapper, *frame)
        # Dynamo itself puts modes away except where it cuts a graph into DDP's buckets.
        with tracing(), _disable_current_modes() as modes:
            _State.modes = modes[::-1]
            return original(wrapper, *frame)

    return call


def _backward_is_compiled(original: Any) -> Any:
    """Return what compiles a backward graph, when a backward pass first needs it."""

    def compile_backward(*args: Any, **kwargs: Any) -> Any:
        if _State.is_tracing:  # at once, with the forward
            return original(*args, **kwargs)
        no_functions = _function_modes.torch_function_mode_stack_state_mgr
        with tracing(), _disable_current_modes(), no_functions:
            return original(*args, **kwargs)

    return compile_backward


def _without_our_function_modes(original: Any) -> Any:
    def init(state: Any, stack: Any, *more: Any, **named: Any) -> None:
        theirs = [mode for mode in stack if not _is_ours(mode)]
        original(state, theirs, *more, **named)

    return init


def _with_our_function_modes(original: Any) -> Any:
    """Return what puts modes in place that a compiled function has entered or left."""

    def set_stack(stack: Any) -> None:
        now = torch.overrides._get_current_function_mode_stack()  # noqa: SLF001
        ours = [mode for mode in now if _is_ours(mode)]
        original(stack if any(map(_is_ours, stack)) else [*ours, *stack])

    return set_stack


def _is_ours(mode: Any) -> bool:
    return str(type(mode).__module__).startswith(_PACKAGE)


# -- devices --


def _seen_device(original: property) -> property:
    getter: Any = original.fget
    return property(lambda x: outward(getter(x)) if _State.is_tracing else getter(x))


def _no_device(original: property) -> property:
    getter: Any = original.fget
    return property(lambda mode: _State.is_tracing or getter(mode))


def _translated(original: Any, way: Callable[[Any], Any]) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        if _State.is_tracing:
            args, kwargs = tuple(map(way, args)), {name: way(x) for name, x in kwargs.items()}
        return original(*args, **kwargs)

    return call


def _run_below(original: Any) -> Any:
    """Return what runs an operation of a captured graph, with devices as they are below."""

    def call(one: Any, other: Any, args: Any, kwargs: Any, *left: Any) -> Any:
        if _State.is_tracing:
            args = tuple(map(inward, args))
            kwargs = {name: inward(x) for name, x in kwargs.items()}
        return original(one, other, args, kwargs, *left)

    return call


def _recorded(original: Any) -> Any:
    """Return the dispatch of operations that a graph is made of, with devices as they are seen."""

    def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _State.is_tracing:
            args = tuple(map(outward, args))
            kwargs = {name: outward(x) for name, x in (kwargs or {}).items()}
        return original(mode, func, types, args, kwargs)

    return dispatch


@contextlib.contextmanager
def _constants_on_host() -> Iterator[None]:
    """Work constants of a graph out beside it, as PyTorch does, and leave them on the host."""
    with unset_fake_temporarily(), _OnHost():
        yield


class _OnHost(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped to mypy
    """Runs operations on the host, whatever device they are to be on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one."""
        args = tuple(map(_on_host, args))
        return func(*args, **{name: _on_host(x) for name, x in (kwargs or {}).items()})


def _on_host(x: Any) -> Any:
    return torch.device("cpu") if isinstance(x, torch.device) else x
