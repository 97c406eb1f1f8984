"""What PyTorch's machinery does with real tensors and does otherwise with fake ones.

Source: ``can_accumulate_inplace`` in ``torch/csrc/autograd/input_buffer.cpp``; what asks
``isTensorSubclassLike`` in ``torch/csrc/autograd/FunctionsManual.cpp`` and
``aten/src/ATen/native/TensorAdvancedIndexing.cpp``;
``torch/utils/_python_dispatch.py`` for wrapper subclasses.
"""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensor

from brimful.errors import OutOfTimeError
from brimful.pretend import kernels

ENGINE_AND_PYTHON = 2
"""Uses of a storage that the engine alone holds, seen from Python."""
_aten = torch.ops.aten
_ADD = _aten.add.Tensor
IN_PLACE = {
    _ADD: _aten.add_.Tensor,
    _aten.index_add.default: _aten.index_add_.default,
    _aten.scatter_add.default: _aten.scatter_add_.default,
    _aten.scatter.src: _aten.scatter_.src,
    _aten.index_put.default: _aten.index_put_.default,
    _aten.put.default: _aten.put_.default,
}
"""Operations that autograd uses for tensor subclasses, and what it may use for other tensors."""
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_OURS = {
    _aten.scaled_dot_product_attention.default, _aten.dropout.default, _aten.rms_norm.default,
    _aten._pad_packed_sequence.default, _aten._pack_padded_sequence_backward.default,  # noqa: SLF001
    *(getattr(_aten, kind).input for kind in _RECURRENT),
    *(getattr(_aten, kind).data for kind in _RECURRENT),
    *(getattr(_aten, f"{kind}_cell").default for kind in _RECURRENT),
}  # fmt: skip
"""Operations for which the pretend GPU has a kernel made of others."""
_FILLING_NODES = {
    f"{name}Backward{number}"
    for name in (
        "Index", "IndexSelect", "Gather", "Take", "Sort", "Topk", "Kthvalue", "Mode", "Median",
        "Nanmedian", "Max", "Min", "Cummax", "Cummin", "UnsafeIndex",
    )
    for number in range(2)
}  # fmt: skip
_current_node = torch._C._current_autograd_node  # noqa: SLF001
_functorch = torch._C._functorch  # noqa: SLF001


@cache
def desugars(kind: type) -> bool:
    """Whether tensors of this type are made of others, as DTensor is.

    Their operations are left to their own dispatch, which runs operations on what they are made of.
    """
    return hasattr(kind, "__tensor_flatten__")


@cache
def any_desugars(kinds: tuple[type, ...]) -> bool:
    """Whether tensors of one of these types are made of others."""
    return any(map(desugars, kinds))


def plain_tensors(tensor: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that hold the bytes: a DTensor's local one, others themselves."""
    kind: type = type(tensor)
    if not desugars(kind):
        yield _unwrapped(tensor)
        return
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):  # a DTensor lists its mesh too
            yield from plain_tensors(part)


@cache
def is_mutable(func: Any) -> bool:
    """Whether an operation writes to what it is given."""
    is_so: bool = func._schema.is_mutable  # noqa: SLF001
    return is_so


@cache
def parts_of(func: Any) -> Any:
    """Return what runs the parts of an operation that PyTorch makes of others; None: it is one.

    Autograd makes them. In inference mode, and within operations of other libraries, such as a
    product with 4-bit weights, there is no autograd: such operations arrive whole.
    """
    if not _has_kernel(func, "CompositeImplicitAutograd"):
        return _written_in_python(func)
    if not _has_kernel(func, "PrivateUse1"):
        return func.decompose
    if func not in _OURS:
        return None
    return partial(func._op_dk, torch._C.DispatchKey.PrivateUse1)  # noqa: SLF001


def as_program(kernel: Any) -> Any:
    """Return a function of a program's, as it is called from inside of PyTorch.

    Where a program says ``cuda``, its calls have to be translated again (``cuda_mode``).
    """
    return kernel


def _written_in_python(func: Any) -> Any:
    """Return the kernel of an operation that a program wrote in Python (``torch.library``).

    That it may allocate more than its result is seen by running it, not by its fake. What cannot be
    run here is left to that.
    """
    if (written := OPDEFS.get(func.name())) is None:
        return None

    def run(*args: Any, **kwargs: Any) -> Any:
        by_device = written._backend_fns  # noqa: SLF001
        kernel = by_device.get(kernels.current(), by_device.get(None))
        try:
            return as_program(kernel)(*args, **kwargs) if kernel else NotImplemented
        except OutOfTimeError:
            raise
        except Exception:  # noqa: BLE001 - whatever it needs that is not here
            return NotImplemented

    return run


def _has_kernel(func: Any, key: str) -> bool:
    found: bool = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)  # noqa: SLF001
    return found


def _unwrapped(tensor: Any) -> Any:
    """Return what ``torch.func`` transforms have wrapped."""
    while _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def in_place(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the operation that autograd would use with real tensors, which fake ones are not.

    It adds up gradients in place, and some formulas fill a tensor of zeros of their own; for
    tensor subclasses, as fake tensors are, it does both out of place.

    ``func``: an operation of ``IN_PLACE``. ``args``: its arguments; the first is the tensor that
    would be changed.
    """
    if func is _ADD:
        return IN_PLACE[func] if not kwargs and adds_in_place(*args) else func
    node = _current_node()
    if node is None or torch.is_grad_enabled() or node.name() not in _FILLING_NODES:
        return func
    uses: int = torch._C._storage_Use_Count(args[0].untyped_storage()._cdata)  # noqa: SLF001
    return IN_PLACE[func] if uses <= ENGINE_AND_PYTHON else func


def adds_in_place(old: Any, new: Any) -> bool:
    """Whether autograd, with real tensors, would add these two gradients in place.

    A tensor that is used twice gets two gradients, and the engine adds the second into the first
    if it holds the last reference to it; for tensor subclasses, as fake tensors are, it never
    does. One more use is counted for the Python object through which we look.
    """
    if _current_node() is None or torch.is_grad_enabled() or not isinstance(new, FakeTensor):
        return False
    if old.shape != new.shape or old.dtype != new.dtype or not _is_dense(old):
        return False
    uses: int = torch._C._storage_Use_Count(old.untyped_storage()._cdata)  # noqa: SLF001
    return uses <= ENGINE_AND_PYTHON


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one stretch of memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
