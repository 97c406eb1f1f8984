"""The ``gpu`` device: registered with PyTorch, it has shapes, dtypes and no memory.

Tensors on it are fake (``FakeTensorMode``), so a step costs no bytes and no arithmetic. PyTorch
asks a device's backend module for many small things, some of them from the autograd engine, where
a missing answer ends the process; every method that is asked for in training stands here.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils import backend_registration

from brimful.pretend import (
    attention,
    autocast,
    composites,
    eight_bit,
    guard,
    moving,
    recurrent,
    streams,
)
from brimful.pretend.libraries import library

NAME = "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the pretend GPU says of itself.

    Attributes:
        name: What ``get_device_name`` answers.
        capability: Compute capability, major and minor.
        usable_bytes: What ``get_device_properties().total_memory`` answers.
        num_devices: How many of it there are.
        multi_processor_count: Streaming multiprocessors, 0 if not known.
        shared_bytes_per_block: Shared memory that a block may ask for, 0 if not known.
    """

    name: str
    capability: tuple[int, int]
    usable_bytes: int
    num_devices: int
    multi_processor_count: int
    shared_bytes_per_block: int


UNNAMED = Card(
    name="pretend GPU",
    capability=(9, 0),
    usable_bytes=80 * 2**30,
    num_devices=1,
    multi_processor_count=0,
    shared_bytes_per_block=0,
)


class Properties(NamedTuple):
    """What ``get_device_properties`` returns, under PyTorch's names."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    is_integrated: bool
    warp_size: int
    shared_memory_per_block_optin: int


class Memory(Protocol):
    """Whoever can answer questions about the bytes of device ``index``: the tape."""

    def memory_stats(self, index: int) -> dict[str, int]:
        """Return counters under the names of ``torch.cuda.memory_stats``."""

    def reset_peak(self, index: int) -> None:
        """Start the peaks again from what is alive now."""

    def empty_cache(self) -> None:
        """Take note that cached memory is given back here."""


class _World:
    """What the backend answers from, for the whole process."""

    card: Card = UNNAMED
    memory: Memory | None = None
    is_there: bool = False


def card() -> Card:
    """Return the card that is pretended now."""
    return _World.card


@contextlib.contextmanager
def pretending(new: Card) -> Iterator[None]:
    """Pretend to be the given card inside the block, with fresh streams."""
    before, _World.card = _World.card, new
    streams.reset()
    try:
        with there():
            yield
    finally:
        _World.card = before
        streams.reset()


@contextlib.contextmanager
def there() -> Iterator[None]:
    """Let PyTorch find the device inside the block."""
    before, _World.is_there = _World.is_there, True
    try:
        yield
    finally:
        _World.is_there = before


def answer_from(memory: Memory | None) -> Memory | None:
    """Let memory queries be answered by ``memory`` from now on; return who answered before."""
    before, _World.memory = _World.memory, memory
    return before


class _Backend(backend_registration._DummyBackendModule):  # type: ignore[misc]  # noqa: SLF001
    """What ``torch.gpu`` answers."""

    Stream, Event = streams.Stream, streams.Event

    # -- devices and streams --

    def is_available(self) -> bool:
        # Always, and torch would pin memory for it long after a simulation is over.
        fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)  # noqa: SLF001
        return _World.is_there or fake is not None

    def device_count(self) -> int:
        return _World.card.num_devices

    def current_device(self) -> int:
        return streams.current_device()

    def set_device(self, device: Any) -> None:
        streams.set_device(device)

    def device(self, device: Any) -> streams.UseDevice:
        return streams.UseDevice(device)

    def current_stream(self, device: Any = None) -> streams.Stream:
        return streams.current(device)

    def default_stream(self, device: Any = None) -> streams.Stream:
        return streams.default(device)

    def set_stream(self, stream: streams.Stream) -> None:
        streams.set_current(stream)

    def stream(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        # Asked for by torch's checkpoints, of CPU tensors too, once this backend is registered.
        return streams.Use(stream if isinstance(stream, streams.Stream) else None)

    def synchronize(self, device: Any = None) -> None:
        streams.synchronize(device)

    # -- what it is --

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:  # noqa: ARG002
        return _World.card.capability

    def get_device_name(self, device: Any = None) -> str:  # noqa: ARG002
        return _World.card.name

    def get_device_properties(self, device: Any = None) -> Properties:  # noqa: ARG002
        now = _World.card
        return Properties(
            name=now.name,
            major=now.capability[0],
            minor=now.capability[1],
            total_memory=now.usable_bytes,
            multi_processor_count=now.multi_processor_count,
            is_integrated=False,
            warp_size=32,
            shared_memory_per_block_optin=now.shared_bytes_per_block,
        )

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:  # noqa: FBT001, FBT002
        return including_emulation or _World.card.capability >= (8, 0)

    # -- random numbers: none are drawn --

    def init(self) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        pass

    def manual_seed_all(self, seed: int) -> None:
        pass

    def seed(self) -> None:
        pass

    def initial_seed(self) -> int:
        return 0

    def get_rng_state(self, device: Any = None) -> torch.Tensor:  # noqa: ARG002
        return torch.empty(16, dtype=torch.uint8, device="cpu")

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        pass

    # -- memory: answered by the tape --

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        index = streams.index_of(device)
        return _World.memory.memory_stats(index) if _World.memory else {}

    def memory_allocated(self, device: Any = None) -> int:
        return self.memory_stats(device).get("allocated_bytes.all.current", 0)

    def max_memory_allocated(self, device: Any = None) -> int:
        return self.memory_stats(device).get("allocated_bytes.all.peak", 0)

    def memory_reserved(self, device: Any = None) -> int:
        return self.memory_stats(device).get("reserved_bytes.all.current", 0)

    def max_memory_reserved(self, device: Any = None) -> int:
        return self.memory_stats(device).get("reserved_bytes.all.peak", 0)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        total = _World.card.usable_bytes
        return max(0, total - self.memory_reserved(device)), total

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        if _World.memory:
            _World.memory.reset_peak(streams.index_of(device))

    def empty_cache(self) -> None:
        if _World.memory:
            _World.memory.empty_cache()


@cache
def register() -> None:
    """Make ``torch.device("gpu")`` exist, once per process."""
    backend_registration._setup_privateuseone_for_python_backend(  # noqa: SLF001
        NAME, backend_module=_Backend(), device_guard=guard.Guard()
    )
    # Claim a kernel for every op that real devices implement whole though a formula exists. Without
    # one, autograd takes such an op (`silu_backward`, ...) apart into others with other
    # allocations. The kernel never runs: fake tensors compute shapes before it is reached.
    own = library("PrivateUse1")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001
    for name in torch._C._dispatch_get_all_op_names():  # noqa: SLF001
        if not name.startswith("aten::"):
            continue
        composite = has_kernel(name, "CompositeImplicitAutograd")
        if composite and has_kernel(name, "CPU") and not has_kernel(name, "PrivateUse1"):
            own.impl(name.removeprefix("aten::"), _never_runs)
    autocast.register()
    attention.register()
    composites.register()
    recurrent.register()
    eight_bit.register()
    moving.register()
    streams.register()


def _never_runs(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError("the pretend GPU computes nothing; run this under FakeTensorMode")
