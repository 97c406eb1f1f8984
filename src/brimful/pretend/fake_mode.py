"""PyTorch's fake mode, for programs whose operations repeat thousands of times.

A fake mode remembers what an operation made of tensors of given sizes. Asking that memory and
making fake tensors by it is half of the time that a simulation takes: PyTorch's walks dataclasses
field by field. Here the key is one tuple, and what was made is a short *recipe*, into which
PyTorch's own entry is turned; what PyTorch would not remember is not remembered here.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.pretend.costs import Work, work

_WHOLE = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout)
_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default  # noqa: SLF001 - its name
_VIEW = torch.ops.aten.view.default
_EMPTY = torch.ops.aten.empty_strided.default
_IS_PINNED = torch.ops.aten.is_pinned.default
_aten = torch.ops.aten
DIRECT = frozenset(
    {
        _aten._log_softmax.default, _aten._log_softmax_backward_data.default,  # noqa: SLF001
        _aten._softmax.default, _aten._softmax_backward_data.default,  # noqa: SLF001
        _UNSAFE_VIEW,
        _aten.add.Tensor, _aten.add_.Tensor, _aten.bmm.default, _aten.cat.default,
        _aten.clone.default, _aten.copy_.default, _aten.cumsum.default, _aten.div.Scalar,
        _aten.div.Tensor, _aten.exp.default, _aten.expand.default, _aten.gelu.default,
        _aten.gelu_backward.default, _aten.masked_fill.Scalar, _aten.mean.dim, _aten.mm.default,
        _aten.mul.Scalar, _aten.mul.Tensor, _aten.neg.default, _aten.nll_loss_backward.default,
        _aten.nll_loss_forward.default, _aten.permute.default, _aten.pow.Tensor_Scalar,
        _aten.rsqrt.default, _aten.select.int, _aten.select_backward.default,
        _aten.sigmoid.default, _aten.sigmoid_backward.default, _aten.silu.default,
        _aten.silu_backward.default, _aten.slice.Tensor, _aten.slice_backward.default,
        _aten.softplus.default, _aten.softplus_backward.default, _aten.split.Tensor,
        _aten.squeeze.dim, _aten.sub.Tensor, _aten.sum.dim_IntList, _aten.t.default,
        _aten.tanh.default, _aten.tanh_backward.default,
        _aten.transpose.int, _aten.tril.default, _aten.unsqueeze.default, _VIEW,
    }
)  # fmt: skip
"""Operations of which a kernel for ``meta`` in C++ says all there is to know, without a device."""
_FAKE = torch._C._TorchDispatchModeKey.FAKE  # noqa: SLF001 - where the mode that is on stands


class _Again(NamedTuple):
    """An argument that is returned as it is, or an integer or nothing.

    Attributes:
        place: Of the argument; None: ``value`` is returned.
        value: What is no tensor.
    """

    place: int | None
    value: Any


class _New(NamedTuple):
    """A tensor that is made.

    Attributes:
        shape: Of the result, as are the next four.
        stride: In elements.
        dtype: Of its elements.
        device: Where it seems to be.
        requires_grad: Whether it does.
        viewed: Place of the argument whose storage it has; None: one of its own.
        offset: Where in that storage it begins, in elements.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    viewed: int | None
    offset: int


@dataclass(slots=True)
class Recipe:
    """What a call makes.

    Attributes:
        outputs: One by one.
        is_tuple: Whether it is several.
        work: What the call costs, as far as somebody has asked.
    """

    outputs: tuple[_Again | _New, ...]
    is_tuple: bool
    work: Work | None = None


_known: dict[tuple[Any, ...], Recipe | None] = {}
"""What is made, by call; None: PyTorch would not remember it."""


class NeverCompiled:
    """A mode that asks for no wrapper around every call: nothing is compiled on the pretend GPU."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class NotesBehind(NeverCompiled, TorchDispatchMode, ABC):  # type: ignore[misc]  # torch is untyped
    """A mode that notes what operations did, which it can be told of later, but for some."""

    @abstractmethod
    def changes(self, func: Any) -> bool:
        """Whether an operation may be asked for otherwise than it was called, by known values."""

    @abstractmethod
    def note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Follow what an operation does to what is known."""


class Call:
    """A call of an operation, and what it hangs on.

    Attributes:
        func: The operator overload.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        recipe: What ``remembered`` found; None: nothing.
    """

    __slots__ = ("args", "func", "kwargs", "recipe")

    def __init__(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Keep a call."""
        self.func, self.args, self.kwargs = func, args, kwargs
        self.recipe: Recipe | None = None

    def remembered(self) -> Any:
        """Return what the fake mode makes of it, without leaving the mode that asks.

        Returns ``NotImplemented`` where it is not known, or where another mode stands between.
        """
        mode, *others = _modes()
        if not isinstance(mode, FakeMode) or not all(_lets(other, self.func) for other in others):
            return NotImplemented
        key = mode.key_of(self.func, self.args, self.kwargs)
        self.recipe = _known.get(key) if key is not None else None
        if self.recipe is None:
            return NotImplemented
        out = mode.follow(self.recipe, self.args)
        for other in others:
            other.note(self.func, self.args, self.kwargs, out)
        return out

    def work(self, out: Any) -> Work:
        """Return what it costs, which is what it cost before where it makes the same."""
        found = None if self.recipe is None else self.recipe.work
        if found is None:
            found = work(self.func, self.args, self.kwargs, out)
            if self.recipe is not None:
                self.recipe.work = found
        return found


def _modes() -> list[Any]:
    """Return the modes that stand between whoever asks and PyTorch, PyTorch's own first."""
    depth = torch._C._len_torch_dispatch_stack()  # noqa: SLF001 - nobody else knows
    return [torch._C._get_dispatch_stack_at(place) for place in range(depth)] or [None]  # noqa: SLF001


def _lets(mode: Any, func: Any) -> bool:
    """Whether a mode only notes what an operation did, which it can be told of later."""
    return isinstance(mode, NotesBehind) and not mode.changes(func)


def made(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Any:
    """Return a tensor with a storage of its own, which no operation made."""
    new = _New(shape, stride, dtype, device, requires_grad=False, viewed=None, offset=0)
    return _mode().follow(Recipe((new,), is_tuple=False), ())


def alias(tensor: torch.Tensor) -> Any:
    """Return a tensor like another, of its storage and yet no view, which no operation made."""
    new = _new(tensor, viewed=0)._replace(requires_grad=False)
    return _mode().follow(Recipe((new,), is_tuple=False), (tensor,))


def _mode() -> "FakeMode":
    mode = torch._C._get_dispatch_mode(_FAKE)  # noqa: SLF001 - nobody else knows
    assert isinstance(mode, FakeMode), "asked for inside a fake mode of ours"
    return mode


class FakeMode(NeverCompiled, FakeTensorMode):  # type: ignore[misc]  # torch is untyped to mypy
    """A fake mode that makes no tensor on the device: modules of the user's have constants."""

    avoid_device_init = True

    def __init__(self, **how: Any) -> None:
        """Make a mode; ``how`` is PyTorch's."""
        super().__init__(**how)
        self._fields: dict[torch.device, dict[str, Any]] = {}
        self._guard_address = (
            torch._C._set_warn_deprecated_on_mutable_data_ptr  # noqa: SLF001
            if self._allow_unsafe_data_ptr_access
            else torch._C._set_throw_on_mutable_data_ptr  # noqa: SLF001
        )

    def __deepcopy__(self, memo: object) -> Self:
        """Stay one: a copied model's tensors are tensors of the same mode."""
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a call from memory, or let PyTorch."""
        kwargs = kwargs or {}
        if func is _IS_PINNED:
            return True  # asked by DDP's reducer of what it has pinned: Python's has an answer
        if func is _EMPTY and kwargs.get("pin_memory"):
            return self._apart(*args, **kwargs)
        key = self.key_of(func, args, kwargs)
        if key is None or (key in _known and _known[key] is None):
            return super().__torch_dispatch__(func, types, args, kwargs)
        if (recipe := _known.get(key)) is not None:
            return self.follow(recipe, args)
        if func in DIRECT and (recipe := self._direct(func, args, kwargs)) is not None:
            _known[key] = recipe
            return self.follow(recipe, args)
        theirs = self._their_key(func, args, kwargs)  # of arguments that are as they came
        out = super().__torch_dispatch__(func, types, args, kwargs)
        _known[key] = self._recipe(func, out, theirs)
        return out

    @staticmethod
    def _apart(shape: Sequence[int], stride: Sequence[int], **kwargs: Any) -> Any:
        """Return pinned memory at an address that is not null, as all others of fake tensors are.

        Source: ``Reducer::all_reduce_local_used_map`` of ``torch/csrc/distributed/c10d``, which
        asserts that what it has pinned is elsewhere than what it copies there.
        """
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        last = sum((num - 1) * step for num, step in zip(shape, stride, strict=True))
        whole = torch.empty(last + 2, **kwargs | {"pin_memory": False})
        return whole.as_strided(shape, stride, 1)

    def key_of(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Return what a call hangs on; None where something of it is unusual."""
        if self.shape_env is not None or not self.cache_enabled:
            return None
        given = self._plain_key(args)
        if given is None:
            return None
        named = self._plain_key(kwargs.values()) if kwargs else ()
        if named is None:
            return None
        state = (
            torch.get_default_dtype(),
            torch._C._get_default_device(),  # noqa: SLF001 - what PyTorch itself asks
            torch.is_inference_mode_enabled(),
        )
        return (func, state, given, tuple(kwargs), named)

    def follow(self, recipe: Recipe, args: Any) -> Any:
        """Make what a call makes."""
        if recipe.is_tuple:
            return tuple(self._output(each, args) for each in recipe.outputs)
        return self._output(recipe.outputs[0], args)

    def _output(self, made: _Again | _New, args: Any) -> Any:
        """Return one output.

        Source: ``FakeTensorMode._get_output_tensor_from_cache_entry`` and ``FakeTensor.__new__``.
        """
        if isinstance(made, _Again):
            return made.value if made.place is None else args[made.place]
        shape, stride, dtype, device, requires_grad, viewed, offset = made
        storage = None if viewed is None else args[viewed].untyped_storage()
        with torch._C._DisableTorchDispatch(), torch._C._PreserveDispatchKeyGuard():  # noqa: SLF001
            torch._C._set_meta_in_tls_dispatch_include(True)  # noqa: SLF001
            bare = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            if storage is not None:
                bare.set_(storage, offset, shape, stride)
        fields = self._fields.get(device)
        if fields is None:  # its signature is another in each version; what it keeps is not
            fields = self._fields[device] = dict(vars(FakeTensor(self, bare, device)))
        found = torch.Tensor._make_subclass(  # noqa: SLF001
            FakeTensor, bare, requires_grad, dispatch_device=True, device_for_backend_keys=device
        )
        self._guard_address(found)
        found.__dict__.update(fields)
        return found

    def _direct(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Recipe | None:
        """Ask PyTorch's kernel for ``meta`` what a call makes, without what is around it.

        Source: the end of ``FakeTensorMode._dispatch_impl``, which looks through ten tables first.

        ``func``: one of ``DIRECT``. Returns None where devices are several, or named, and of views
        of one row, whose strides PyTorch chooses otherwise for fake tensors.
        """
        devices = set(_devices((*args, *kwargs.values())))
        if len(devices) != 1 or (func is _VIEW and 1 in (*args[0].shape, *args[1])):
            return None
        with fake_tensor.in_kernel_invocation_manager(self):
            out = func(*args, **kwargs)
        (where,), is_tuple = devices, isinstance(out, (tuple, list))
        outputs = tuple(_told(each, args, where) for each in (out if is_tuple else (out,)))
        return Recipe(outputs, is_tuple)

    def _their_key(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        state = fake_tensor._CacheKeyState(None)  # noqa: SLF001 - whose memory this stands before
        try:
            return self._cache_key(state, func, args, kwargs)
        except fake_tensor._BypassDispatchCache:  # noqa: SLF001
            return None

    def _recipe(self, func: Any, out: Any, theirs: Any) -> Recipe | None:
        """Turn what PyTorch remembers into a recipe; None where it remembers nothing, or more."""
        if func is _UNSAFE_VIEW and not (out.is_conj() or out.is_neg()):
            return Recipe((_new(out, viewed=0),), is_tuple=False)
        entry = FakeTensorMode.cache.get(theirs)
        if not isinstance(entry, fake_tensor._DispatchCacheValidEntry):  # noqa: SLF001
            return None
        infos, results = entry.output_infos, out if entry.is_output_tuple else (out,)
        if any(not _is_plain(info) for info in infos):
            return None
        outputs = tuple(map(_made, infos, results))
        return Recipe(outputs, entry.is_output_tuple)

    def _prep_args_for_hash(
        self, result: list[Any], args: Any, state: Any, id_hashed_objects: list[Any]
    ) -> None:
        """Append to a key what distinguishes arguments; see PyTorch's own for what is unusual.

        Source: ``FakeTensorMode._prep_args_for_hash`` and ``extract_tensor_metadata``. The memory
        format, which stands there too, follows from sizes and strides.
        """
        found = None if isinstance(args, dict) else self._plain_key(args)
        if found is None:
            super()._prep_args_for_hash(result, args, state, id_hashed_objects)
        else:
            result.append(found)

    def _plain_key(self, args: Iterable[Any]) -> tuple[Any, ...] | None:
        """Return the key of arguments of which none is unusual; None where one is."""
        found: list[Any] = [type(args)]
        for value in args:
            kind = type(value)
            if kind is FakeTensor:
                key = self._tensor_key(value)
            elif kind is list or kind is tuple:
                key = self._plain_key(value)
            else:
                key = (kind, value) if kind in _WHOLE or kind is torch.memory_format else None
            if key is None:
                return None
            found.append(key)
        return tuple(found)

    def _tensor_key(self, tensor: FakeTensor) -> tuple[Any, ...] | None:
        unusual = (
            tensor.fake_mode is not self
            or tensor.constant is not None
            or tensor.layout is not torch.strided
            or tensor._has_symbolic_sizes_strides  # noqa: SLF001 - what PyTorch itself asks
        )
        if unusual:
            return None
        return (
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            tensor.storage_offset(),
            tensor.untyped_storage().nbytes(),
            tensor.fake_device,
            tensor.requires_grad,
            tensor.is_conj(),
            tensor.is_neg(),
            tensor.is_inference(),
            tensor.is_quantized,
        )


def _devices(args: Iterable[Any]) -> Iterator[torch.device]:
    """Yield where tensors seem to be, and what devices are named."""
    for each in args:
        if isinstance(each, FakeTensor):
            yield each.fake_device
        elif isinstance(each, (list, tuple)):
            yield from _devices(each)
        elif isinstance(each, torch.device):
            yield each


def _told(out: torch.Tensor, args: Any, where: torch.device) -> _Again | _New:
    """Say what a result of a kernel for ``meta`` is: an argument, a view of the first, or new."""
    for place, each in enumerate(args):
        if out is each:
            return _Again(place, None)
    storages = [x.untyped_storage()._cdata for x in (out, args[0]) if isinstance(x, torch.Tensor)]  # noqa: SLF001
    is_view = len(set(storages)) < len(storages)
    return _New(
        shape=tuple(out.shape),
        stride=out.stride(),
        dtype=out.dtype,
        device=where,
        requires_grad=out.requires_grad,
        viewed=0 if is_view else None,
        offset=out.storage_offset(),
    )


def _is_plain(info: Any) -> bool:
    """Whether an output is all that PyTorch wrote down of it: dense, of known sizes."""
    metadata = info.metadata
    if metadata is None:
        return (
            info.constant_value is None
            or isinstance(info.constant_value, int)
            or (info.inplace_idx is not None)
        )
    return metadata.layout is torch.strided and not metadata.is_conj and not metadata.is_neg


def _made(info: Any, result: Any) -> _Again | _New:
    if info.inplace_idx is not None:
        return _Again(info.inplace_idx, None)
    if info.metadata is None:
        return _Again(None, info.constant_value)
    return _new(result, viewed=info.view_idx)


def _new(tensor: Any, *, viewed: int | None) -> _New:
    return _New(
        shape=tuple(tensor.shape),
        stride=tensor.stride(),
        dtype=tensor.dtype,
        device=tensor.fake_device,
        requires_grad=tensor.requires_grad,
        viewed=viewed,
        offset=tensor.storage_offset(),
    )
