"""Calls that say ``cuda``: what they mean on the pretend GPU, one by one.

Most calls need only their devices translated; the rest stand here. ``ANSWERS`` are functions that
PyTorch offers to a function mode, ``replacements`` are names that it does not.
"""

import contextlib
import copy
import functools
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._device
import torch.utils.data
from torch._subclasses.fake_tensor import FakeTensor

from brimful.pretend import moving
from brimful.pretend.addresses import storage_address
from brimful.pretend.device import NAME
from brimful.pretend.known_values import TWIN, KnownValues

CUDA = "cuda"
_CPU = "cpu"
_SAYS_CUDA = re.compile(r"cuda(:\d+)?")
_Tensor = torch.Tensor
_RealGenerator: Any = torch.Generator


@functools.cache
def _device(kind: str, index: int | None) -> torch.device:
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        return torch.device(kind) if index is None else torch.device(kind, index)


class _Seen:
    """How the pretend GPU is called now."""

    name = CUDA


@contextlib.contextmanager
def seen_as(name: str) -> Iterator[None]:
    """Call the pretend GPU by another name inside the block, ``cpu`` where a CPU is imitated.

    Where it is called ``cpu``, everything is on it: PyTorch's compiler knows no host then.
    """
    before, _Seen.name = _Seen.name, name
    try:
        yield
    finally:
        _Seen.name = before


def inward(x: Any) -> Any:
    """Return the pretend GPU for a device, or a device's name, that says ``cuda``."""
    if isinstance(x, torch.device):
        return _device(NAME, x.index) if x.type in {CUDA, _Seen.name} else x
    if isinstance(x, str):
        if _SAYS_CUDA.fullmatch(x):
            return x.replace(CUDA, NAME)
        return NAME if x == _Seen.name else x
    return x


def inward_keywords(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments whose device is the pretend GPU's where PyTorch says it as a program does.

    A mesh keeps the name that the program gave it, and DTensor makes tensors on that.
    """
    return {**kwargs, "device": inward(kwargs["device"])} if "device" in kwargs else kwargs


def outward(x: Any) -> Any:
    """Return ``cuda`` for the pretend GPU."""
    if isinstance(x, torch.device) and x.type == NAME:
        return _device(_Seen.name, None if _Seen.name == _CPU else x.index)
    return x


# -- functions that need more than a translation --


def _make_device(_: KnownValues, *args: Any, **kwargs: Any) -> torch.device:
    made = torch.device(*args, **kwargs)
    # A program's own "cuda" stays what it is; a bare index means the accelerator.
    called_by_number = bool(args) and isinstance(args[0], int)
    return outward(made) if called_by_number else made


def _cuda(_: KnownValues, x: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
    where = f"{NAME}:{device}" if isinstance(device, int) else inward(device or CUDA)
    if args:
        kwargs["non_blocking"] = args[0]
    return x.to(where, **kwargs)


def _pin(_: KnownValues, x: Any, *_args: Any, **_kwargs: Any) -> Any:
    return x.clone()


def _type(_: KnownValues, x: Any, *args: Any, **kwargs: Any) -> Any:
    args = tuple(a.replace(".cuda.", f".{NAME}.") if isinstance(a, str) else a for a in args)
    out = _Tensor.type(x, *args, **kwargs)
    return out.replace(f".{NAME}.", ".cuda.") if isinstance(out, str) else out


def _get_device(_: KnownValues, x: Any) -> int:
    where = x.fake_device if isinstance(x, FakeTensor) else x.device
    return -1 if where.type == "cpu" else int(where.index)


def _data_ptr(_: KnownValues, x: Any) -> int:
    if not isinstance(x, FakeTensor):
        return int(_Tensor.data_ptr(x))
    # Programs compare addresses to find tensors that share memory; storages can be told apart.
    begin = x.untyped_storage()._cdata  # noqa: SLF001
    return int(begin + x.storage_offset() * x.element_size())


_LARGE_BYTES = 2**28
"""Of an array of stand-ins, from which all its elements are one: a real host may be larger than
this one, as that to which all logits of an evaluation are moved."""


def _numpy(known: KnownValues, x: Any, **kwargs: Any) -> Any:
    value = known.value(x) if isinstance(x, FakeTensor) else x
    with torch._C._DisableTorchDispatch():  # noqa: SLF001
        if value is None:
            # The same stand-ins as those of item().
            stand_in = int(not (x.is_floating_point() or x.dtype == torch.bool))
            is_large = x.numel() * x.element_size() >= _LARGE_BYTES
            value = torch.full(() if is_large else x.shape, stand_in, dtype=x.dtype)
            value = value.expand(x.shape)
        return _Tensor.numpy(value, **kwargs)


def _array(known: KnownValues, x: Any, dtype: Any = None) -> Any:
    made = _numpy(known, x)
    return made if dtype is None else made.astype(dtype, copy=False)


def _asarray(_: KnownValues, data: Any, **kwargs: Any) -> Any:
    if not isinstance(data, torch.UntypedStorage):
        return torch.asarray(data, **{name: inward(x) for name, x in kwargs.items()})
    # A file that is being read (safetensors): real bytes, of which a fake mode makes nothing.
    with torch._C._DisableTorchDispatch():  # noqa: SLF001
        return torch.asarray(data, **kwargs)


def _tensor(known: KnownValues, data: Any, **kwargs: Any) -> Any:
    """Make a tensor of numbers, among which there may be tensors of one number."""
    kwargs = {name: inward(x) for name, x in kwargs.items() if name != "pin_memory"}
    try:
        return torch.tensor(data, **kwargs)
    except RuntimeError:  # where PyTorch would read a number of a tensor that has none
        numbers = list(_fakes(data))
        if not numbers:
            raise
    made = torch.tensor(_plain(data), **kwargs)
    if any(known.value(x) is None for x in numbers):
        known.forget(made)
    return made


def _fakes(data: Any) -> Iterator[FakeTensor]:
    if isinstance(data, FakeTensor):
        yield data
    elif isinstance(data, (list, tuple)):
        for x in data:
            yield from _fakes(x)


def _plain(data: Any) -> Any:
    if isinstance(data, (list, tuple)):
        return [_plain(x) for x in data]
    return data.item() if isinstance(data, FakeTensor) else data


def _deepcopy(_: KnownValues, x: Any, memo: Any) -> Any:
    """Copy a tensor with its attributes; PyTorch would look at its address, and it has none."""
    if not isinstance(x, FakeTensor) or not x.is_leaf:
        return _Tensor.__deepcopy__(x, memo)
    if id(x) in memo:
        return memo[id(x)]
    new = x.detach().clone()
    if isinstance(x, torch.nn.Parameter):
        new = torch.nn.Parameter(new, requires_grad=x.requires_grad)
    new.requires_grad_(x.requires_grad)
    memo[id(x)] = new
    own = {*vars(new), TWIN}
    mine = {name: value for name, value in vars(x).items() if name not in own}
    vars(new).update(copy.deepcopy(mine, memo))
    if x.grad is not None:
        new.grad = copy.deepcopy(x.grad, memo)
    return new


def _format(_: KnownValues, x: Any, spec: str) -> str:
    is_number = isinstance(x, FakeTensor) and x.dim() == 0
    return format(x.item(), spec) if is_number else _Tensor.__format__(x, spec)


def _set_data(_: KnownValues, x: Any, value: Any) -> None:
    """Move a tensor in place, which PyTorch refuses where devices of fake tensors differ.

    The tensor stays the one that autograd, hooks and the program know.
    """
    if not isinstance(x, FakeTensor) or x.fake_device == value.fake_device:
        _set_data_in_place(x, value)
        return
    with moving.tensors_of_other_devices():
        _set_data_in_place(x, value)
    x.fake_device = value.fake_device


_set_data_in_place = _Tensor.data.__set__
ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.device: _make_device,
    _Tensor.cuda: _cuda,
    _Tensor.pin_memory: _pin,
    _Tensor.is_pinned: lambda *_, **__: False,
    _Tensor.type: _type,
    _Tensor.get_device: _get_device,
    _Tensor.data_ptr: _data_ptr,
    _Tensor.numpy: _numpy,
    _Tensor.__array__: _array,
    torch.asarray: _asarray,
    torch.tensor: _tensor,
    _Tensor.__deepcopy__: _deepcopy,
    _Tensor.__format__: _format,
    _set_data_in_place: _set_data,
}
"""What is called instead of a PyTorch function, with what is known of values before its arguments;
anything that it calls is PyTorch's own."""


# -- names that no function mode sees --


class _GeneratorKind(type(_RealGenerator)):  # type: ignore[misc]  # torch is untyped
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, _RealGenerator)


class Generator(_RealGenerator, metaclass=_GeneratorKind):  # type: ignore[misc]  # torch is untyped
    """A generator; one of the GPU draws nothing, for nothing is drawn there.

    Attributes:
        is_of_gpu: Whether it was made for the GPU.
    """

    def __new__(cls, device: Any = "cpu") -> Any:
        """Make a generator for ``device``, on the host."""
        made = super().__new__(cls)
        made.is_of_gpu = torch.device(inward(device)).type == NAME
        return made

    @property
    def device(self) -> torch.device:
        """The device it was made for."""
        return _device(CUDA, 0) if self.is_of_gpu else _device("cpu", None)

    def get_state(self) -> torch.Tensor:
        """Return its state; that of the GPU's has the size of a real one."""
        return torch.gpu.get_rng_state() if self.is_of_gpu else super().get_state()

    def set_state(self, state: torch.Tensor) -> Any:
        """Take a state; the GPU's has none, and what other processes sent has no value here."""
        is_taken = not (self.is_of_gpu or isinstance(state, FakeTensor))
        return super().set_state(state) if is_taken else self

    def clone_state(self) -> Any:
        """Return another one of the same state."""
        return self if self.is_of_gpu else super().clone_state()

    def graphsafe_get_state(self) -> Any:
        """Return one that shares its state."""
        return self if self.is_of_gpu else super().graphsafe_get_state()

    def graphsafe_set_state(self, state: Any) -> Any:
        """Share the state of another."""
        return self if self.is_of_gpu else super().graphsafe_set_state(state)


def _translated(function: Any) -> Any:
    """Return a function whose arguments may say ``cuda`` and whose answer does."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args = tuple(map(inward, args))
        return outward(function(*args, **{name: inward(x) for name, x in kwargs.items()}))

    return call


def _cuda_by_default(function: Any) -> Any:
    """Return a function that means ``cuda`` where it is told no device."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        is_named = bool(args) and isinstance(args[0], str)
        return function(*map(inward, args)) if is_named else function(NAME, *args)

    return call


def _loader_init(original: Any) -> Any:
    """Return ``DataLoader.__init__`` without worker processes: they would send fake tensors."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            kwargs.pop(name, None)
        names = ("batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")
        given = dict(zip(names, args[1:], strict=False))
        if "num_workers" in given:
            args = (*args[:5], 0, *args[6:])
        else:
            kwargs["num_workers"] = 0
        original(self, *args, **kwargs)

    return init


def _saves_nothing(function: str, result: Any = None) -> Any:
    def save(*_args: Any, **_kwargs: Any) -> Any:
        warnings.warn(f"{function} writes nothing on the pretend GPU", stacklevel=2)
        return result

    return save


def _set_rng_state(taken: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """Leave the host's generator as it is where another process sent the state: it has no value."""

    def set_rng_state(new_state: torch.Tensor) -> None:
        if not isinstance(new_state, FakeTensor):
            taken(new_state)

    return set_rng_state


def safetensors_write_nothing(files: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield what keeps a program from writing values that nobody has over its checkpoints."""
    yield files, "_flatten_as_ptr", lambda *_, **__: {}
    yield files, "serialize_file", _saves_nothing("safetensors")
    yield files, "serialize", _saves_nothing("safetensors", b"")


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield object, name and value of everything that is replaced outside ``torch.cuda``."""
    for name in ("set_default_device", "get_default_device", "load"):
        yield torch, name, _translated(getattr(torch, name))
    context = torch.utils._device.DeviceContext  # noqa: SLF001
    yield context, "__init__", _translated(context.__init__)
    yield (
        torch.accelerator,
        "current_accelerator",
        _translated(torch.accelerator.current_accelerator),
    )
    yield torch.autocast, "__init__", _translated(torch.autocast.__init__)
    yield torch._C, "_is_autocast_available", _translated(torch._C._is_autocast_available)  # noqa: SLF001
    for name in ("is_autocast_enabled", "set_autocast_enabled"):
        yield torch, name, _cuda_by_default(getattr(torch, name))
    for name in ("get_autocast_dtype", "set_autocast_dtype"):
        yield torch, name, _translated(getattr(torch, name))
    yield torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype(NAME)
    yield torch, "set_autocast_gpu_dtype", lambda dtype: torch.set_autocast_dtype(NAME, dtype)
    # A wrapper of a type of the program's own, whose device no function of PyTorch's is asked for.
    wrapped = torch.Tensor._make_wrapper_subclass  # noqa: SLF001
    yield torch.Tensor, "_make_wrapper_subclass", staticmethod(_translated(wrapped))
    yield torch, "Generator", Generator
    for module in (torch, torch.random):
        yield module, "set_rng_state", _set_rng_state(torch.random.set_rng_state)
    yield torch.cuda, "default_generators", tuple(map(Generator, [CUDA] * torch.gpu.device_count()))
    loader = torch.utils.data.DataLoader
    yield loader, "__init__", _loader_init(loader.__init__)
    storage = torch.UntypedStorage
    yield storage, "data_ptr", storage_address(storage.data_ptr)
    yield torch, "save", _saves_nothing("torch.save")
