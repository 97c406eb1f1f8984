"""The tape: every allocation and free of a pretend step, with its size, owner, op and phase.

A dispatch mode sees each operation's results. A storage seen for the first time was allocated by
that operation; it is freed when PyTorch drops it. Recording appends to arrays; ``Recording``
(``recording.py``) is the finished, columnar form. What stands for a real operation without being
one tensor of it (a rewrite, a workspace) is told by tables of operations.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.pretend import (
    autocast,
    ctc,
    device,
    engine,
    fast_attention,
    host_waits,
    kernels,
    quantized,
    real_values,
    recurrent,
    sparse,
    streams,
)
from brimful.pretend.cuda_calls import inward, inward_keywords
from brimful.pretend.device import NAME
from brimful.pretend.fake_mode import Call, NeverCompiled
from brimful.pretend.kernel_memory import CpuKernelMemory, KernelMemory, Taken, first_tensor
from brimful.pretend.kernel_traffic import moved_by
from brimful.pretend.live_storages import HOST, MAIN, LiveStorages
from brimful.pretend.loop_state import Change
from brimful.pretend.outer_lines import OuterLines
from brimful.pretend.owners import Owners, as_program
from brimful.pretend.recording import KEPT_ON_HOST, SELECTS_ALL, TO_DEVICE, TO_HOST, Recording
from brimful.pretend.recording_builder import Place, RecordingBuilder, Spot, line_text
from brimful.pretend.rounds import Rounds
from brimful.pretend.stretches import Moves
from brimful.values.results import AUTOCAST_CACHE, WHOLE_GRADIENTS, WORKSPACES

_KINDS = (NAME, HOST)
_DEVICE = torch.ops.prim.device.default
_RECORD_STREAM = torch.ops.aten.record_stream.default
_EMPTY_LIKE = torch.ops.aten.empty_like.default
_COPY = torch.ops.aten.copy_.default
_WAIT = torch.ops._c10d_functional.wait_tensor.default  # noqa: SLF001
"""Its kernel for fake tensors makes a new one; the real one waits for the one that it is given."""
COLLECTIVES = frozenset({"c10d", "_c10d_functional"})
"""Namespaces of what processes ask of each other: of programs, and in a compiler's graphs."""
_MADE_OF_OTHERS = (quantized, recurrent, fast_attention, sparse)
"""What tells of operations whose parts a tape is to see."""
STANDS_FOR = "stands_for"
"""Attribute of an autograd node of ours: the name of the program's node that is in its place."""
_current_node = torch._C._current_autograd_node  # noqa: SLF001


@cache
def _parts_of(func: Any) -> Any:
    """Return what runs the parts of an operation that the tape is to see; None: it is one."""
    parts = next(filter(None, (where.parts_of(func) for where in _MADE_OF_OTHERS)), None)
    return parts or engine.parts_of(func)


def go_on() -> None:
    """Let whoever has all the time there is record the next operation."""


class Tape(NeverCompiled, TorchDispatchMode):  # type: ignore[misc]  # torch is untyped to mypy
    """Records the storages that operations create and drop while it is entered, device by device.

    For owners in a backward pass see ``owners.py``; for that the backward pass must run on the
    calling thread, and the tape sees to it.
    """

    def __init__(
        self,
        *,
        count_costs: bool = False,
        count_messages: bool = False,
        assume_all_selected: bool = False,
        on_op: Callable[[], None] = go_on,
    ) -> None:
        """Make an empty tape.

        ``count_costs``: whether to record each operation's FLOPs and bytes moved as well.
        ``count_messages``: whether to record what collectives are given and make, as costs too.
        ``assume_all_selected``: whether a result whose size values decide has the largest size it
        can have; else such an operation ends the run. ``on_op``: called before every operation;
        what it raises ends the run.
        """
        super().__init__()
        self.owners, self.rounds = Owners(), Rounds()
        self._count_costs = count_costs
        self._count_messages = count_messages
        self._live = LiveStorages()
        self._lines = OuterLines()
        self._kernels = KernelMemory()
        self._host_kernels = CpuKernelMemory()
        self._num_pauses, self._shares = 0, False
        self._assume_all = assume_all_selected
        self.on_op = on_op
        self.ended_by: BaseException | None = None
        self.assumptions: set[str] = set()
        self.stand_ins: list[Any] = []  # numbers that the GPU would compute
        self.phase, self._purpose = "load", ""

    # -- what the user of a tape calls --

    def name_modules(self, module: torch.nn.Module, prefix: str = "") -> None:
        """Let allocations under ``module`` be owned by its submodules' paths."""
        self.owners.name(module, prefix)
        for name, child in module.named_modules(prefix=prefix):
            # Not by their methods: a program may have a list of that name.
            held = (*child._parameters.values(), *child._buffers.values())  # noqa: SLF001
            own = tuple(x for x in held if x is not None)
            for builder, row in self._live.rows(own):
                builder.set_owner(row, as_program(name))

    def begin_phase(self, name: str) -> None:
        """Attribute everything from here on to the phase ``name``."""
        self.phase = name
        for builder in self._live.builders.values():
            builder.begin_phase(name)
        self.owners.begin_phase()

    def mark(self) -> None:
        """Remember this place: a boundary that is no module's and no phase's."""
        for builder in self._live.builders.values():
            builder.mark()

    def spot(self) -> Spot:
        """Return how much was recorded so far of the first device."""
        return self._live.first.spot()

    def rows_of(self, tensors: Iterable[Any]) -> tuple[int, ...]:
        """Return the allocations on the first device that tensors lie in."""
        return tuple(
            row for builder, row in self._live.rows(tensors) if builder is self._live.first
        )

    @property
    def main(self) -> RecordingBuilder:
        """What is recorded of the first device."""
        return self._live.first

    @property
    def builders(self) -> dict[Any, RecordingBuilder]:
        """What is recorded of each device."""
        return self._live.builders

    def put_stretches(self, moves: Mapping[Any, Moves], change: Change) -> None:
        """Record further stretches of what is alike; see ``LiveStorages``."""
        with self.paused():
            self._live.put_stretches(moves, change)

    def host_events(self) -> int:
        """Return how many allocations and frees of the host were recorded."""
        return self._live.builder(torch.device(HOST)).spot().event

    def count_host(self) -> None:
        """Count what lies on the host as on the device: those of a CPU are one memory."""
        self._live.builders[torch.device(HOST)] = self._live.first

    def let_be(self, tensor: Any, row: int, frees: Callable[[], bool] | None = None) -> None:
        """Let a tensor lie in an allocation of the first device that was recorded without it.

        ``frees``: asked when the storage is gone: whether the allocation is freed then.
        """
        for plain in engine.plain_tensors(tensor):
            self._live.follow(plain.untyped_storage(), row, self._live.first, frees)

    def let_go(self, tensor: Any) -> None:
        """Follow a tensor's storage no more: its allocation is freed by who asks for this."""
        self._live.let_go(tensor)

    def tag(self, tensors: Iterable[Any], item: str) -> None:
        """Count the storages of ``tensors`` (any iterable) in the class ``item``, for good.

        What is kept on the host, or whole until it is reduced, stays counted as that.
        """
        for builder, row in self._live.rows(tensors):
            if not builder.item_of(row).startswith((KEPT_ON_HOST, WHOLE_GRADIENTS)):
                builder.set_item(row, item)

    def keep_on_host(self, purpose: str) -> None:
        """Count what is allocated on the host from here on as kept there; empty: as passing."""
        self._purpose = f"{KEPT_ON_HOST}{purpose}" if purpose else ""

    def finish(self, device_name: str = "") -> Recording:
        """Return what was recorded so far of a device, in columnar form.

        ``device_name``: ``gpu:0``, ``cpu``, ...; empty for ``gpu:0``.
        """
        return self._live.builder(torch.device(device_name or MAIN)).build()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """See nothing inside the block: what is fake there would be fake in a real run too."""
        self._num_pauses += 1
        try:
            yield
        finally:
            self._num_pauses -= 1

    @property
    def unknown_ops(self) -> dict[str, int]:
        """How often each operator was called of whose kernel's own memory nothing is known."""
        return dict(self._kernels.unknown)

    @property
    def bounded(self) -> dict[str, int]:
        """The most that a call may have taken of each operator of which only that is known."""
        return dict(self._kernels.bounded)

    def num_allocations(self) -> int:
        """Return how many allocations were seen on devices, the host apart."""
        return sum(b.num_rows for d, b in self._live.builders.items() if d.type != HOST)

    # -- what it answers to those who ask for memory --

    def memory_stats(self, index: int) -> dict[str, int]:
        """Return counters of a device under the names of ``torch.cuda.memory_stats``."""
        return self._live.memory_stats(torch.device(NAME, index))

    def reset_peak(self, index: int) -> None:
        """Start the peak of a device again from what is alive now."""
        self._live.reset_peak(torch.device(NAME, index))

    def forget_handles(self) -> None:
        """Let libraries of kernels make their workspaces once more, as in a process of their own.

        What they made before stays.
        """
        self._kernels.forget_handles()

    def empty_cache(self) -> None:
        """Take note that cached memory is given back here."""
        self._live.flush_caches()

    # -- how it sees --

    def __enter__(self) -> Self:
        """Start recording."""
        if kernels.current() == "cpu":
            self._kernels = CpuKernelMemory()
        self.owners.watch()
        autocast.on_weight_cast.append(self._weight_cast)
        streams.on_wait.append(self._wait)
        sparse.on_assumed.append(self.assumptions.add)
        streams.on_use.append(self._record_stream)
        self._answered = device.answer_from(self)
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resizing()
        self._multithreading = torch.autograd.set_multithreading_enabled(False)
        self._multithreading.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop recording."""
        super().__exit__(*exc)
        self._multithreading.__exit__(*exc)
        torch.UntypedStorage.resize_ = self._resize
        device.answer_from(self._answered)
        streams.on_use.remove(self._record_stream)
        sparse.on_assumed.remove(self.assumptions.add)
        streams.on_wait.remove(self._wait)
        autocast.on_weight_cast.remove(self._weight_cast)
        self.owners.unwatch()

    def _go_on(self) -> None:
        try:
            self.on_op()
        except BaseException as error:
            self.ended_by = error
            raise

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and look at what it returned."""
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # two calls in three, from PyTorch's own inner workings
        if engine.any_desugars(types):
            return NotImplemented
        self._go_on()
        kwargs = inward_keywords(kwargs) if kwargs else {}
        if (out := self._in_parts(func, args, kwargs)) is not NotImplemented:
            return out
        if func in engine.IN_PLACE:
            func = engine.in_place(func, args, kwargs)
        call = Call(func, args, kwargs)
        out = self._run(call)
        if self._count_costs or self._count_messages:
            self._count(call, out)
        if isinstance(out, torch.Tensor):
            self._see(out, func, args)
        elif isinstance(out, (tuple, list)):
            for i, x in enumerate(out):
                if isinstance(x, torch.Tensor):
                    self._see(x, func, args, i)
        self._kernel_memory(func, args, kwargs, out)
        return out

    def _in_parts(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run under the tape what an operation is made of; ``NotImplemented``: it is one."""
        if (parts := _parts_of(func)) is None:
            return NotImplemented
        super().__enter__()  # the mode alone, again: the rest of ``__enter__`` stands
        try:
            return parts(*map(inward, args), **kwargs)
        finally:
            super().__exit__(None, None, None)

    def _run(self, call: Call) -> Any:
        """Run the operation, and see the host wait for it where streams share blocks."""
        if not self._shares:
            return self._result(call)
        if host_waits.waits(call.func, call.args, call.kwargs):
            self._wait()
        out = self._result(call)
        where = host_waits.launched_on(call.func, first_tensor(out, call.args))
        if where is not None:
            self._live.builder(where).launch()
        return out

    def _result(self, call: Call) -> Any:
        """Run the operation, or what stands for it where fake tensors differ from real ones."""
        func, args, kwargs = call.func, call.args, call.kwargs
        if func in real_values.NUMBERS:
            return real_values.scalar(func, args, self.stand_ins)
        if func is _RECORD_STREAM:
            return self._record_stream(*args)
        if func is _WAIT:
            return args[0]
        if (out := call.remembered()) is not NotImplemented:
            return out
        try:
            return func(*args, **kwargs)
        except real_values.UNKNOWN as error:
            self._wait()  # for the values
            out = ctc.by_lengths(func, args)
            return self._assumed(call, error) if out is None else out

    def _assumed(self, call: Call, error: Exception) -> Any:
        """Return the largest result that there can be, where that may be taken.

        Raises UnsupportedError: it may not, or nobody knows it.
        """
        func, where = call.func, line_text(self._lines.here())
        out = real_values.everything_selected(func, call.args) if self._assume_all else None
        if out is None:
            raise real_values.refusal(func, where) from error
        self.assumptions.add(f"{func} at {where} {SELECTS_ALL}")
        return out

    def _record_stream(self, tensor: Any, stream: Any) -> None:
        for builder, row in self._live.rows((tensor,)):
            if streams.number_of(stream) != builder.stream_of(row):
                builder.use_elsewhere(row)
                self._shares = True

    def _count(self, call: Call, out: Any) -> None:
        is_message = call.func.namespace in COLLECTIVES and call.func is not _WAIT
        if self._count_costs and not is_message and not self._num_pauses:
            self._cost(call, out)
        if self._count_messages and is_message:
            self._live.first.cost(call.func, *call.work(out))

    def _cost(self, call: Call, out: Any) -> None:
        func, args = call.func, call.args
        if func is _COPY and {args[0].device.type, args[1].device.type} == {NAME, HOST}:
            way = TO_DEVICE if args[0].device.type == NAME else TO_HOST
            self._live.first.cost(way, 0, 0, (args[0].nbytes,))
            return
        if func is _EMPTY_LIKE and args[0].device.type == HOST:
            return  # room for a copy, which moves nothing yet
        outputs = [out] if isinstance(out, torch.Tensor) else pytree.tree_leaves(out)
        outputs = [x for x in outputs if isinstance(x, torch.Tensor)]
        is_view = not engine.is_mutable(func) and self._live.knows(outputs)
        if not is_view and any(x.device.type == NAME for x in outputs):
            self._worked(call, out, outputs[0])

    def _worked(self, call: Call, out: Any, first: torch.Tensor) -> None:
        self._live.builder(first.device).cost(call.func, *call.work(out))

    def launched(self, name: str, arguments: Mapping[str, Any], num_flops: int = 0) -> None:
        """Count products of a kernel that is not PyTorch's, and what it moves (``moved_by``)."""
        if self._count_costs and not self._num_pauses:
            self._live.first.cost(name, num_flops, 0, moved_by(name, arguments))

    def attended(self, name: str, flops: int) -> None:
        """Count attention of a kernel that a compiler wrote."""
        if self._count_costs and not self._num_pauses:
            self._live.first.cost(name, 0, flops, ())

    def _see(self, tensor: Any, op: Any, args: Any, index: int | None = None) -> None:
        if not isinstance(tensor, FakeTensor):
            return
        where = tensor.fake_device
        if where.type not in _KINDS or self._num_pauses:
            return
        storage = tensor.untyped_storage()
        known = self._live.known.get(storage._cdata)  # noqa: SLF001
        if known is not None:
            # Kernels that are given a result too small for them (``out=``) resize its storage.
            if storage.nbytes() != known[2].bytes_of(known[1]):
                self._resized(storage, storage.nbytes())
            return
        builder = self._live.builders.get(where) or self._live.builder(where)
        row = builder.allocate(
            storage.nbytes(), tensor.shape, tensor.dtype, self._place(op, where, args, index)
        )
        if self._purpose and where.type == HOST:
            builder.set_item(row, self._purpose)
        self._live.follow(storage, row, builder)

    def _place(self, op: Any, where: Any, args: Any, index: int | None = None) -> Place:
        node = _current_node()
        owner = self.owners.now(node)
        if owner is None:
            owner = "" if torch.is_grad_enabled() else self._live.owner_of_inputs(args, index)
        return Place(
            op=op,
            owner=owner,
            node="" if node is None else getattr(node, STANDS_FOR, "") or node.name(),
            line=self.rounds.told(self._lines.here(), node),
            stream=0 if where.type == HOST else streams.current_id(where.index or 0),
        )

    def _kernel_memory(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Record what the operation's kernel takes from the allocator beside its outputs."""
        kernel_memory = self._host_kernels if self._purpose else self._kernels
        if self._num_pauses or not kernel_memory.concerns(func):
            return
        shown = first_tensor(out, args)
        unseen = "meta" if self._purpose else HOST
        if not isinstance(shown, FakeTensor) or shown.fake_device.type in {unseen, "meta"}:
            return
        where = shown.fake_device
        place = self._place(func, where, args)
        thread = (where, bool(place.node), place.stream)
        rows = []
        builder = self._live.builder(where)
        for name in kernel_memory.handles_of(func, args):
            builder.ask(name)
        for taken in kernel_memory.of_call(func, args, kwargs, out, thread=thread):
            row = self._take(builder, taken, place)
            if not taken.stays:
                rows.append(row)
        for row in rows:
            builder.free(row)

    def _take(self, builder: RecordingBuilder, taken: Taken, place: Place) -> int:
        """Record bytes nobody can point at: they are named after what they are for."""
        shape = torch.Size((taken.num_bytes,))
        named = place._replace(op=taken.name, owner="" if taken.stays else place.owner)
        row = builder.allocate(taken.num_bytes, shape, torch.uint8, named)
        builder.set_item(row, self._purpose or WORKSPACES)
        if taken.stays:
            builder.outlives(row)
        return row

    def make_handle(self, name: str) -> None:
        """Make a library's workspace on the first device where this thread has none yet."""
        where = torch.device(MAIN)
        place = self._place(name, where, ())
        for taken in self._kernels.handle(name, (where, bool(place.node), place.stream)):
            self._take(self._live.first, taken, place)

    def _resizing(self) -> Callable[[Any, int], Any]:
        original, known = self._resize, self._live.known

        def resize_(storage: Any, num_bytes: int) -> Any:
            """Free and refill a storage, as FSDP2 does with gathered parameters."""
            entry = known.get(storage._cdata)  # noqa: SLF001
            out = original(storage, num_bytes)
            if entry is not None:
                self._resized(storage, num_bytes)
            return out

        return resize_

    def _resized(self, storage: Any, num_bytes: int) -> None:
        self._live.resized(storage, num_bytes, lambda where: self._place("resize_", where, ()))

    def _wait(self) -> None:
        self._live.wait()

    def _weight_cast(self, low: torch.Tensor) -> None:
        self.tag((low,), AUTOCAST_CACHE)
