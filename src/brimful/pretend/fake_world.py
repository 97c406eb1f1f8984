"""A process group of any size with one process in it: what rank r of a world would do.

PyTorch's ``fake`` backend answers every collective without moving anything. Meshes read real ranks
while they are made, so they are made outside the fake mode, whoever asks for them.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import _utils as tensor_places
from torch.distributed.tensor import debug
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from brimful.errors import InputError
from brimful.pretend.kernels import current
from brimful.pretend.known_values import TWIN
from brimful.pretend.pipeline_shapes import shapes_as_said
from brimful.pretend.shards import cut_when_asked_for

Unseen = Callable[[], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Which process of how many is pretended.

    Attributes:
        size: Number of processes.
        rank: Which one this is.
        layout: What the groups of its processes hang on; empty where the program says.
    """

    size: int
    rank: int
    layout: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a rank that the world does not have."""
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise InputError(
                f"rank {self.rank} is not in a world of {self.size}; use 0 to {self.size - 1}"
            )


@contextlib.contextmanager
def pretend_world(world: World, unseen: Unseen) -> Iterator[None]:
    """Be one process of ``world`` inside the block.

    The process group exists from the start; a program's own ``init_process_group`` finds it there.
    Each process sees one GPU, so that its local rank is 0.

    ``unseen``: returns a context in which tensors are not counted: DTensor finds out shapes with
    fake tensors of its own, in a real run too.
    """
    if dist.is_initialized():
        raise InputError(
            f"a process group of {dist.get_world_size()} exists already; leave it first "
            "(torch.distributed.destroy_process_group)"
        )
    # Empty DTensor's caches where they hold meshes of another rank or another layout. Such meshes
    # count as equal to this world's, so that results would be placed on them: they say another
    # rank, and name groups that are gone.
    if _remembered - {world}:
        debug._clear_sharding_prop_cache()  # noqa: SLF001 - it has no other name
    _remembered.clear()
    _remembered.add(world)
    with (
        _environment(world),
        _meshes_outside_the_fake_mode(),
        _shapes_unseen(unseen),
        cut_when_asked_for(),
        _buckets_unread(),
        shapes_as_said(),
        _messages_one_by_one(),
        _sent_until_waited_for(),
    ):
        dist.init_process_group("fake", store=FakeStore(), rank=world.rank, world_size=world.size)
        original = dist.init_process_group
        dist.init_process_group = _already_there
        try:
            yield
        finally:
            dist.init_process_group = original
            if dist.is_initialized():
                dist.destroy_process_group()


_remembered: set[World] = set()
"""The world whose meshes DTensor's caches hold, if any does."""


def _already_there(*_args: Any, **_kwargs: Any) -> None:
    """Stand for what has nothing to do where the pretend group is in place."""


@contextlib.contextmanager
def _environment(world: World) -> Iterator[None]:
    new = {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "0",
    }
    before = {name: os.environ.get(name) for name in new}
    os.environ.update(new)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_MESH_METHODS = ("__getitem__", "_flatten", "_unflatten", "get_local_rank", "get_coordinate")
"""Methods of a mesh, beside its making, that compute with real ranks; shards do so too."""


@contextlib.contextmanager
def _meshes_outside_the_fake_mode() -> Iterator[None]:
    wanted: list[tuple[Any, str]] = [(DeviceMesh, name) for name in (*_MESH_METHODS, "__init__")]
    wanted.append((_StridedShard, "local_shard_size_and_offset"))
    wanted.append((tensor_places, "_compute_local_shape_and_global_offset"))
    originals = [(kind, name, getattr(kind, name)) for kind, name in wanted if hasattr(kind, name)]
    for kind, name, method in originals:
        setattr(kind, name, _outside_the_fake_mode(method))
    try:
        yield
    finally:
        for kind, name, method in originals:
            setattr(kind, name, method)


def _outside_the_fake_mode(method: Any) -> Any:
    @wraps(method)
    def call(*args: Any, _rank_map: Any = None, **kwargs: Any) -> Any:
        with _disable_current_modes():
            if isinstance(_rank_map, FakeTensor):
                # init_device_mesh, called inside the mode, numbers the ranks in order.
                _rank_map = torch.arange(_rank_map.numel(), dtype=torch.int)
            if _rank_map is not None:
                kwargs["_rank_map"] = _rank_map
            return method(*map(_really, args), **{k: _really(v) for k, v in kwargs.items()})

    return call


def _really(x: Any) -> Any:
    """Return the ranks that a fake tensor stands for, where they are known."""
    return getattr(x, TWIN, x) if isinstance(x, FakeTensor) else x


@contextlib.contextmanager
def _shapes_unseen(unseen: Unseen) -> Iterator[None]:
    original = ShardingPropagator._propagate_tensor_meta_non_cached  # noqa: SLF001

    @wraps(original)
    def propagate(*args: Any, **kwargs: Any) -> Any:
        with unseen():
            return original(*args, **kwargs)

    ShardingPropagator._propagate_tensor_meta_non_cached = propagate  # noqa: SLF001
    try:
        yield
    finally:
        ShardingPropagator._propagate_tensor_meta_non_cached = original  # noqa: SLF001


@contextlib.contextmanager
def _buckets_unread() -> Iterator[None]:
    """Let DDP's reducer, which is C++, read no bytes that are not there.

    It compares parameters when it is made, waits for what each bucket has become, and after the
    first step agrees with the others on new buckets of the same bytes. What it sends when it is
    made it sends here too: flat copies of all, each of 250 MiB, two of which are there at a time.
    """
    original, compare = DistributedDataParallel.__init__, dist._verify_params_across_processes  # noqa: SLF001

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.register_comm_hook(self.process_group, _reduced)
        self.reducer = _FirstBuckets(self.reducer)

    DistributedDataParallel.__init__ = init
    dist._verify_params_across_processes = _already_there  # noqa: SLF001
    try:
        yield
    finally:
        DistributedDataParallel.__init__ = original
        dist._verify_params_across_processes = compare  # noqa: SLF001


@contextlib.contextmanager
def _messages_one_by_one() -> Iterator[None]:
    """Send and receive what comes in a batch one by one: a batch asks for the device's backend."""
    original = dist.batch_isend_irecv

    def each(ops: list[Any]) -> list[Any]:
        peers = {dist.isend: "group_dst", dist.irecv: "group_src"}
        return [
            op.op(op.tensor, group=op.group, tag=op.tag, **{peers[op.op]: op.group_peer})
            for op in ops
        ]

    dist.batch_isend_irecv = each
    try:
        yield
    finally:
        dist.batch_isend_irecv = original


class _Sending:
    """What is being sent: NCCL's work keeps it until somebody waits, gloo's as long as it lives."""

    def __init__(self, work: Any, tensor: torch.Tensor) -> None:
        self._work = work
        self._tensor: torch.Tensor | None = tensor

    def wait(self, *args: Any) -> bool:
        if current() == "cuda":
            self._tensor = None
        return bool(self._work.wait(*args))

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())


@contextlib.contextmanager
def _sent_until_waited_for() -> Iterator[None]:
    """Let what ``isend`` is given live until its work has been waited for."""
    original = dist.isend

    @wraps(original)
    def isend(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> _Sending:
        return _Sending(original(tensor, *args, **kwargs), tensor)

    dist.isend = distributed_c10d.isend = isend
    try:
        yield
    finally:
        dist.isend = distributed_c10d.isend = original


class _FirstBuckets:
    """A reducer that keeps the buckets it was made with."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def _reduced(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    dist.all_reduce(bucket.buffer(), group=group)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done
