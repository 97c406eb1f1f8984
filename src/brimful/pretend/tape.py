"""The tape: every allocation and free of a pretend step, with its size, owner, op and phase.

A dispatch mode sees each operation's results. A storage seen for the first time was allocated by
that operation; it is freed when PyTorch drops it. Recording appends to plain lists; ``Recording``
(``recording.py``) is the finished, columnar form.
"""

import weakref
from bisect import bisect_right
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.pretend import autocast
from brimful.pretend.costs import work
from brimful.pretend.device import NAME
from brimful.pretend.recording import AUTOCAST_CACHE, Recording, RecordingBuilder

_next_sequence_number = torch._C._autograd._get_sequence_nr  # noqa: SLF001
_current_node = torch._C._current_autograd_node  # noqa: SLF001
_ADD, _ADD_IN_PLACE = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor
ENGINE_AND_PYTHON = 2
"""Uses of a storage that the engine alone holds, seen from Python."""


class Tape(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped to mypy
    """Records the device storages that operations create and drop while it is entered.

    Owners are module paths. In the forward pass the owner is the innermost module being called.
    In the backward pass it is the module whose forward created the running autograd node: nodes
    carry increasing sequence numbers, so the numbers at which modules begin and end tell which.
    For that the backward pass must run on the calling thread; the tape sees to it.
    """

    def __init__(self, *, count_costs: bool = False) -> None:
        """Make an empty tape.

        Args:
            count_costs: Whether to record each operation's FLOPs and bytes moved as well.
        """
        super().__init__()
        self._count_costs = count_costs
        self._record = RecordingBuilder()
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._paths: dict[int, str] = {}
        self._module_stack: list[str] = []
        self._stack_floor = 0
        self._boundary_numbers: list[int] = [0]
        self._boundary_owners: list[str] = [""]
        self._parameter_paths: dict[int, str] = {}
        self._handles: list[Any] = []

    # -- what the user of a tape calls --

    def name_modules(self, module: torch.nn.Module, prefix: str = "") -> None:
        """Let allocations under ``module`` be owned by its submodules' paths."""
        for name, child in module.named_modules(prefix=prefix):
            self._paths[id(child)] = name
        for name, parameter in module.named_parameters(prefix=prefix):
            self._parameter_paths[id(parameter)] = name.rpartition(".")[0]

    def begin_phase(self, name: str) -> None:
        """Attribute everything from here on to the phase ``name``."""
        self._record.begin_phase(name)
        self._stack_floor = len(self._module_stack)

    def mark(self) -> None:
        """Remember this place: a boundary that is no module's and no phase's."""
        self._record.mark()

    def tag(self, tensors: Any, item: str) -> None:
        """Count the storages of ``tensors`` (any iterable) in the class ``item``, for good."""
        for tensor in tensors:
            local = getattr(tensor, "_local_tensor", tensor)
            entry = self._alive.get(local.untyped_storage()._cdata)  # noqa: SLF001
            if entry is not None:
                self._record.set_item(entry[1], item)

    def finish(self) -> Recording:
        """Return what was recorded so far in columnar form."""
        return self._record.build()

    # -- how it sees --

    def __enter__(self) -> Self:
        """Start recording."""
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter_module),
            hooks.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        autocast.on_weight_cast.append(self._weight_cast)
        self._multithreading = torch.autograd.set_multithreading_enabled(False)
        self._multithreading.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop recording."""
        super().__exit__(*exc)
        self._multithreading.__exit__(*exc)
        autocast.on_weight_cast.remove(self._weight_cast)
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and look at what it returned."""
        if func is _ADD and not kwargs and _engine_adds_in_place(*args):
            func = _ADD_IN_PLACE
        out = func(*args, **(kwargs or {}))
        if self._count_costs:
            self._cost(func, args, kwargs or {}, out)
        if isinstance(out, torch.Tensor):
            self._see(out, func)
        elif isinstance(out, (tuple, list)):
            for x in out:
                if isinstance(x, torch.Tensor):
                    self._see(x, func)
        return out

    def _cost(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        outputs = [x for x in pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
        is_view = not func._schema.is_mutable and any(  # noqa: SLF001
            x.untyped_storage()._cdata in self._alive  # noqa: SLF001
            for x in outputs
        )
        if not is_view and any(x.device.type == NAME for x in outputs):
            self._record.cost(func, *work(func, args, kwargs, outputs))

    def _see(self, tensor: torch.Tensor, op: Any) -> None:
        tensor = getattr(tensor, "_local_tensor", tensor)
        if tensor.device.type != NAME or not isinstance(tensor, FakeTensor):
            return
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001
        if key in self._alive:
            return
        uid = self._record.allocate(
            num_bytes=storage.nbytes(), op=op, owner=self._owner(), tensor=tensor
        )

        def freed(_: Any, key: int = key, uid: int = uid) -> None:
            del self._alive[key]
            self._record.free(uid)

        self._alive[key] = (weakref.ref(storage, freed), uid)

    def _owner(self) -> str:
        if len(self._module_stack) > self._stack_floor:
            return self._module_stack[-1]
        node = _current_node()
        if node is None:
            return ""
        variable = getattr(node, "variable", None)
        if variable is not None:
            return self._parameter_paths.get(id(variable), "")
        place = bisect_right(self._boundary_numbers, node._sequence_nr()) - 1  # noqa: SLF001
        return self._boundary_owners[place]

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:  # noqa: ARG002
        path = self._paths.get(id(module))
        if path is None:
            above = self._module_stack[-1] if self._module_stack else ""
            path = f"{above}.{type(module).__name__}".removeprefix(".")
        self._module_stack.append(path)
        self._mark(path)

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:  # noqa: ARG002
        if self._module_stack:
            self._module_stack.pop()
        self._mark(self._module_stack[-1] if self._module_stack else "")

    def _mark(self, owner: str) -> None:
        number = _next_sequence_number()
        if self._boundary_numbers[-1] == number:
            self._boundary_owners[-1] = owner
        else:
            self._boundary_numbers.append(number)
            self._boundary_owners.append(owner)

    def _weight_cast(self, low: torch.Tensor) -> None:
        self.tag((low,), AUTOCAST_CACHE)


def _engine_adds_in_place(old: Any, new: Any) -> bool:
    """Whether autograd, with real tensors, would add these two gradients in place.

    A tensor that is used twice gets two gradients, and the engine adds the second into the first
    if it holds the last reference to it; for tensor subclasses, as fake tensors are, it never
    does. One more use is counted for the Python object through which we look.

    Source: ``can_accumulate_inplace`` in ``torch/csrc/autograd/input_buffer.cpp``.
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
