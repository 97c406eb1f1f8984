"""A hard limit for what tensors may take, so that a CPU runs out of memory as a GPU does.

A host has no allocator with a limit: it swaps, or the kernel ends the process. So storages are
counted: a dispatch mode sees each operation's results, a weak reference tells when a storage is
dropped, and an operation whose results pass the limit raises ``torch.OutOfMemoryError`` before they
are handed on. On CUDA the caching allocator has such a limit itself.

Counted is everything from the moment that the limit is entered. It binds while the program is built
and inside the phases of its steps (``build.phases``), not while a run is saved or written about:
that is work of the host, on a CPU too.

autograd adds up gradients in place, but not where a dispatch mode looks on. What it would have
added into is counted once: else the limit would count what it causes itself.

What a program says that it keeps on the host (``build.offload.host``) is not counted: on a CPU the
limit stands for that of a device. Not seen: what a kernel takes and drops within one operation,
tensors that are made outside PyTorch
(mapped files), and allocations of other threads.

Cost: see ``docs/decisions/0037-out-of-memory-does-not-end-a-run.md``.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.build import phases
from brimful.build.offload import host
from brimful.units import format_bytes

_HOST = "cpu"
_aten = torch.ops.aten
_IN_PLACE = frozenset({
    _aten.add.Tensor, _aten.index_add.default, _aten.scatter_add.default, _aten.scatter.src,
    _aten.index_put.default,
})  # fmt: skip
"""What autograd does in place with a tensor that it alone holds, where nobody looks on.

Source: ``torch/csrc/autograd/input_buffer.cpp``, ``accumulate``; ``tools/autograd``, formulas that
ask ``areAnyTensorSubclassLike``.
"""
_ENGINE_AND_PYTHON = 2
"""Uses of a storage that the engine alone holds, seen from Python."""


class HostLimit(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped to mypy
    """Counts the storages that operations make on the host, and allows no more than a limit.

    Attributes:
        live_bytes: What is alive now.
        peak_bytes: The most that was alive while the limit bound; at most the limit.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Count from here on."""
        super().__init__()
        self.live_bytes = self.peak_bytes = 0
        self._limit_bytes = limit_bytes
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._depth, self._has_begun, self._is_host = 0, False, False

    def __enter__(self) -> Self:
        """Begin to count."""
        self._listening = ExitStack()
        self._listening.enter_context(phases.listening(self._listen))
        self._listening.enter_context(host.listening(self._hear_of_host))
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resizing(self._resize)
        super().__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        """Count no longer."""
        super().__exit__(*exc)
        torch.UntypedStorage.resize_ = self._resize
        self._listening.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it made."""
        if any(map(_has_parts, types)):
            return NotImplemented  # its class runs the same on its parts, which come by here
        replaced = func in _IN_PLACE and _is_engines_own(func, args)
        out = func(*args, **(kwargs or {}))
        if replaced and args[0].nbytes == out.nbytes:
            self._replace(args[0].untyped_storage(), out.untyped_storage())
        elif isinstance(out, torch.Tensor):
            self._see(func, out)
        elif isinstance(out, (tuple, list)):
            for each in out:
                if isinstance(each, torch.Tensor):
                    self._see(func, each)
        return out

    def _listen(self, _name: str, begins: bool, _program: Any) -> None:  # noqa: FBT001
        self._has_begun = True
        self._depth += 1 if begins else -1

    def _hear_of_host(self, _purpose: str, begins: bool) -> None:  # noqa: FBT001
        self._is_host = begins

    @property
    def _binds(self) -> bool:
        return self._depth > 0 or not self._has_begun

    def _see(self, func: Any, tensor: torch.Tensor) -> None:
        if tensor.device.type != _HOST or hasattr(tensor, "__tensor_flatten__") or self._is_host:
            return
        storage = tensor.untyped_storage()
        key, num_bytes = storage._cdata, storage.nbytes()  # noqa: SLF001
        known = self._known.get(key)
        if known is not None:
            if known[1] != num_bytes:  # a result that was too small for its kernel (``out=``)
                self._ask(num_bytes - known[1], func)
                self._known[key] = (known[0], num_bytes)
                self._add(num_bytes - known[1])
            return
        if not num_bytes or not _makes(func):
            return
        self._ask(num_bytes, func)
        self._known[key] = (weakref.ref(storage, self._forgetting(key)), num_bytes)
        self._add(num_bytes)

    def _replace(self, old: Any, new: Any) -> None:
        """Count a result in place of what it would have been written into."""
        entry = self._known.get(old._cdata)  # noqa: SLF001
        if entry is None:
            return
        self._known[old._cdata] = (entry[0], 0)  # noqa: SLF001
        key = new._cdata  # noqa: SLF001
        self._known[key] = (weakref.ref(new, self._forgetting(key)), entry[1])

    def _forgetting(self, key: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            self.live_bytes -= self._known.pop(key)[1]

        return forget

    def _add(self, num_bytes: int) -> None:
        self.live_bytes += num_bytes
        if self._binds:
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _ask(self, num_bytes: int, what: Any) -> None:
        if self._binds and num_bytes > 0 and self.live_bytes + num_bytes > self._limit_bytes:
            raise torch.OutOfMemoryError(
                f"{what} asked for {format_bytes(num_bytes)} beside {format_bytes(self.live_bytes)}"
                f" that are in use, and the limit is {format_bytes(self._limit_bytes)}"
            )

    def _resizing(self, original: Callable[[Any, int], Any]) -> Callable[[Any, int], Any]:
        known = self._known

        def resize_(storage: Any, num_bytes: int) -> Any:
            """Free and refill a storage, as FSDP2 does with gathered parameters."""
            entry = known.get(storage._cdata)  # noqa: SLF001
            if storage.device.type != _HOST or (entry is None and storage.nbytes()):
                return original(storage, num_bytes)
            before = 0 if entry is None else entry[1]
            self._ask(num_bytes - before, "resize_")
            out, key = original(storage, num_bytes), storage._cdata  # noqa: SLF001
            ref = weakref.ref(storage, self._forgetting(key)) if entry is None else entry[0]
            known[key] = (ref, num_bytes)
            self._add(num_bytes - before)
            return out

        return resize_


def _is_engines_own(func: Any, args: Any) -> bool:
    """Whether a backward pass would, with nobody looking on, write into the first argument."""
    old = args[0]
    if torch._C._current_autograd_node() is None or torch.is_grad_enabled():  # noqa: SLF001
        return False
    if func is _aten.add.Tensor and not (
        isinstance(args[1], torch.Tensor)
        and (args[1].shape, args[1].dtype) == (old.shape, old.dtype)
    ):
        return False
    uses: int = torch._C._storage_Use_Count(old.untyped_storage()._cdata)  # noqa: SLF001
    return uses <= _ENGINE_AND_PYTHON


@cache
def _has_parts(kind: Any) -> bool:
    """Whether tensors of a class are made of others, as sharded and quantised ones are."""
    return hasattr(kind, "__tensor_flatten__")


@cache
def _makes(func: Any) -> bool:
    """Whether an operation returns memory of its own: not that of what it was given."""
    return any(returned.alias_info is None for returned in func._schema.returns)  # noqa: SLF001


def limited(kernels: str, limit_bytes: int | None) -> AbstractContextManager[Any]:
    """Allow tensors so much inside the block, and no more.

    ``kernels``: ``cpu`` or ``cuda``. ``limit_bytes``: bytes of tensors; None: as much as there is.
    """
    if limit_bytes is None:
        return nullcontext()
    return HostLimit(limit_bytes) if kernels == _HOST else _limited_gpu(limit_bytes)


@contextmanager
def _limited_gpu(limit_bytes: int) -> Iterator[None]:
    total_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total_bytes))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
