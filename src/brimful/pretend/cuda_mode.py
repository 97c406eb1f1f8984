"""Programs that say ``cuda``: inside the block, ``cuda`` is the pretend GPU.

What such a program sees is ``cuda``: ``x.device``, ``x.is_cuda``, ``torch.cuda``. Below PyTorch's
Python functions it is the ``gpu`` device. Devices are translated where a call enters a function and
where it returns, on a PyTorch that was built with CUDA as on one that was not.

Limits: where no function is asked, the device keeps its own name (``tensor.untyped_storage()``,
``stream.device``, the text of a tensor); ``torch.cuda.FloatTensor`` and the like, CUDA graphs,
``DataParallel``, FlexAttention and CUDA kernels of one's own are not served; data workers run in
the main process; a thread of the program's own sees none of this.
"""

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import autograd
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.pretend import (
    cuda_calls,
    cuda_names,
    deepspeed_ops,
    device,
    eight_bit,
    full_texts,
    host_memory,
    kernels,
    triton_decorators,
    triton_kernels,
)
from brimful.pretend import engine as kernels_in_python
from brimful.pretend.absent import looking_for
from brimful.pretend.compiled import Compiler
from brimful.pretend.cuda_calls import ANSWERS, CUDA, Generator, inward, outward
from brimful.pretend.device import NAME
from brimful.pretend.fake_mode import NeverCompiled
from brimful.pretend.hub_models import absent_models
from brimful.pretend.known_values import KnownValues
from brimful.pretend.other_kernels import OtherKernels
from brimful.pretend.replacing import replaced
from brimful.pretend.stand_in_packages import stand_ins
from brimful.pretend.when_imported import Changes, when_imported

_LOAD_IN_ORDER = "HF_DEACTIVATE_ASYNC_LOAD"
"""With it transformers reads weights one after another, not in threads, which no mode reaches."""


_DEVICE_BELOW = torch.ops.prim.device.default
"""What PyTorch asks a tensor's device by, from C++: through a program's own dispatch modes too."""


class _State:
    """Whether PyTorch itself is running, which calls the device by its own name."""

    inside = False


class _SaysCuda(TorchFunctionMode):  # type: ignore[misc]  # torch is untyped to mypy
    """Translates devices where a call enters PyTorch and where it returns."""

    def __init__(self, known: KnownValues) -> None:
        super().__init__()
        self._known = known

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _State.inside or func is _DEVICE_BELOW:
            return func(*args, **kwargs)
        answer = ANSWERS.get(func)
        _State.inside = True
        try:
            if answer is not None:
                return answer(self._known, *args, **kwargs)
            args = tuple(map(inward, args))
            if kwargs:
                kwargs = {name: inward(x) for name, x in kwargs.items()}
                kwargs.pop("pin_memory", None)  # of a host that has none to pin
                generator = kwargs.get("generator")
                if type(generator) is Generator and generator.is_of_gpu:
                    kwargs["generator"] = None
            return outward(func(*args, **kwargs))
        finally:
            _State.inside = False


class _Below(NeverCompiled, TorchDispatchMode):  # type: ignore[misc]  # torch is untyped to mypy
    """Notes that what runs now is PyTorch itself, which the engine calls from below."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE_BELOW and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # two calls in three, from PyTorch's own inner workings
        before, _State.inside = _State.inside, True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            _State.inside = before


def _as_ours(original: Any) -> Any:
    """Return a function that knows the device by its own name, wherever it is called from."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        before, _State.inside = _State.inside, True
        try:
            return original(*args, **kwargs)
        finally:
            _State.inside = before

    return call


def _as_program(mode: _SaysCuda, original: Any) -> Any:
    """Return a function that is a program again, though PyTorch may call it from inside."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        before, _State.inside = _State.inside, False
        try:
            if mode in torch.overrides._get_current_function_mode_stack():  # noqa: SLF001
                return original(*args, **kwargs)
            with mode:
                return original(*args, **kwargs)
        finally:
            _State.inside = before

    return call


def _hooks_init(original: Any, whose: Callable[[Any], Any]) -> Any:
    """Return ``saved_tensors_hooks.__init__``, whose hooks are a program's, or ours."""

    def init(self: Any, pack_hook: Any, unpack_hook: Any) -> None:
        original(self, whose(pack_hook), whose(unpack_hook))

    return init


def _device_of_fake(original: property) -> property:
    return property(
        lambda x: original.fget(x) if _State.inside else outward(original.fget(x))  # type: ignore[misc]
    )


def _accelerator(original: Any) -> Any:
    def get() -> torch.device:
        return original() if _State.inside else outward(original())

    return get


def _replacements(mode: _SaysCuda) -> Iterator[tuple[Any, str, Any]]:
    engine = autograd._engine_run_backward  # noqa: SLF001
    # What the engine calls in turn (hooks, recomputed checkpoints) is a program's.
    yield autograd, "_engine_run_backward", _as_program(mode, engine)
    hooks = autograd.graph.saved_tensors_hooks
    yield kernels_in_python, "as_program", functools.partial(_as_program, mode)
    yield hooks, "__init__", _hooks_init(hooks.__init__, functools.partial(_as_program, mode))
    # What is made by default, such as FSDP2's mesh, is made of the device that the program knows.
    yield torch._C, "_get_accelerator", _accelerator(torch._C._get_accelerator)  # noqa: SLF001
    yield from _seen_as_cuda()


@contextlib.contextmanager
def saying_cuda(
    known: KnownValues,
    kernels: OtherKernels,
    assumed: Collection[str],
    assumptions: set[str],
    *,
    weights_dtype: str,
) -> Iterator[None]:
    """Let ``cuda`` be the pretend GPU inside the block; entered inside ``pretend.gpu``.

    ``kernels``: where it is noted which kernels beside PyTorch's the program launches and misses.
    ``assumed``: packages of kernels that are stood in for where they are not installed.
    ``assumptions``: where it is noted what a run rests on. ``weights_dtype``: of weights that are
    not on this machine; empty: as they are published.
    """
    mode = _SaysCuda(known)
    compiler = Compiler(known, assumptions, _Below)
    compiler.on_use = kernels.compiled
    standing = stand_ins(assumed, kernels, known)
    libraries: dict[str, Changes] = {
        "safetensors.torch": cuda_calls.safetensors_write_nothing,
        "transformers.generation.utils": functools.partial(full_texts.beams_go_on, known),
        "bitsandbytes.functional": eight_bit.state_is_paged,
        **host_memory.changes(assumptions),
        **deepspeed_ops.changes(kernels, known),
        **triton_kernels.changes(kernels, known),
        **{name: change for each in standing.values() for name, change in each.changes.items()},
    }
    variables = {name: x for each in standing.values() for name, x in each.environment.items()}
    names = [*cuda_names.replacements(), *cuda_calls.replacements(), *_replacements(mode)]
    compiler.originals = _originals(names)
    with (
        _environment({_LOAD_IN_ORDER: "1", **variables}),
        replaced((*names, *compiler.replacements())),
        compiler.open(),
        absent_models(assumptions, weights_dtype) as asking,
        when_imported({**libraries, **asking}),
        looking_for(kernels, standing),
        _Below(),
        mode,
    ):
        yield


@contextlib.contextmanager
def compiling(
    top: type,
    assumptions: set[str],
    on_attention: Callable[[str, int], None] = lambda _name, _flops: None,
) -> Iterator[None]:
    """Let ``torch.compile`` compile inside the block what calls the pretend GPU by its own name.

    ``top``: the kind of the mode that sees an operation first. ``assumptions``: where it is noted
    what a run rests on. ``on_attention``: told which attention the compiler's kernels compute, and
    its FLOPs.
    """
    known = KnownValues()
    compiler = Compiler(known, assumptions, top)
    compiler.on_attention = on_attention
    names = [*cuda_names.replacements(), *cuda_calls.replacements()]
    compiler.originals = _originals(names)
    # Where Triton is installed, Inductor asks its driver of the card.
    changes = triton_kernels.changes(OtherKernels(), known) if _has_triton() else {}
    with (
        device.pretending(_imitated_card()),
        replaced((*names, *compiler.replacements())),
        compiler.open(),
        when_imported(changes),
    ):
        yield


def _has_triton() -> bool:
    return importlib.util.find_spec(triton_decorators.PACKAGE) is not None


def _imitated_card() -> device.Card:
    """Return what a card of the chip that is imitated says of itself, where kernels are CUDA's."""
    if kernels.current() != "cuda":
        return device.card()
    imitated = kernels.imitated()
    return replace(
        device.card(),
        capability=imitated.capability,
        multi_processor_count=imitated.chip.num_multiprocessors,
        shared_bytes_per_block=imitated.chip.shared_bytes_per_block,
    )


@contextlib.contextmanager
def launching(
    libraries: Iterable[str], on_launch: Callable[[str, Mapping[str, Any], int], None]
) -> Iterator[None]:
    """Let functions of libraries run that launch Triton's kernels, inside of a program of ours.

    The program calls the pretend GPU by its own name; these functions ask for ``cuda``, as which it
    is known to them alone. Without Triton's wheel its stand-in takes their decorators.

    ``on_launch``: called with every kernel's name, its arguments by name and its FLOPs.
    """
    known, noted = KnownValues(), OtherKernels(on_launch)
    mode = _SaysCuda(known)
    translated = dict.fromkeys(libraries, functools.partial(_translated_functions, mode))
    is_there = _has_triton()
    absent = () if is_there else (triton_decorators.PACKAGE,)
    changes = triton_kernels.changes(noted, known) if is_there else {}
    hooks = autograd.graph.saved_tensors_hooks
    # What such a function asks for may be recomputed first: the program, which knows the device.
    ours = ((hooks, "__init__", _hooks_init(hooks.__init__, _as_ours)), *_seen_as_cuda())
    before, _State.inside = _State.inside, True
    try:
        with (
            device.pretending(_imitated_card()),
            replaced((*cuda_names.replacements(), *cuda_calls.replacements(), *ours)),
            when_imported({**changes, **translated}),
            looking_for(noted, stand_ins(absent, noted, known)),
        ):
            yield
    finally:
        _State.inside = before


def _translated_functions(mode: _SaysCuda, library: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield the two halves of every autograd function that a module defines, as a program."""
    for function in vars(library).values():
        is_one = isinstance(function, type) and issubclass(function, autograd.Function)
        if is_one and function.__module__ == library.__name__:
            for half in ("forward", "backward"):
                yield function, half, staticmethod(_as_program(mode, getattr(function, half)))


def _seen_as_cuda() -> Iterator[tuple[Any, str, Any]]:
    """Yield what of a fake tensor says where it is."""
    yield FakeTensor, "device", _device_of_fake(FakeTensor.device)
    yield FakeTensor, "is_cuda", property(lambda x: x.fake_device.type in {NAME, CUDA})


def _originals(names: Iterable[tuple[Any, str, Any]]) -> list[tuple[Any, str, Any]]:
    """Return what is replaced, with what stands there now."""
    return [(target, name, vars(target)[name]) for target, name, _ in names if name in vars(target)]


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
