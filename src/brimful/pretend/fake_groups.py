"""What groups of a pretend world are asked for beside plain collectives of tensors.

Groups of any backend are PyTorch's ``fake`` ones. Objects are pickled into bytes, sent, and their
sizes read, of which a pretend tensor has none: here they never become tensors. What peers would
send is not known: each is taken to send what this process does, and what only a peer has does not
arrive.
"""

import contextlib
from collections.abc import Iterator
from functools import cache, wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed._meta_registrations import create_fakework

from brimful.pretend.fake_world import World
from brimful.pretend.libraries import library
from brimful.pretend.replacing import replaced

_COALESCED = (
    "allreduce_coalesced_", "allgather_coalesced_", "allgather_into_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced_",
)  # fmt: skip
"""Collectives of several tensors at once, which PyTorch has given no kernel for tensors without
values."""
_HOMES = (dist, distributed_c10d)


_PEERS = "of Python objects each peer sends what this process does, and none that only a peer has"


@contextlib.contextmanager
def groups_of_one_process(world: World, assumptions: set[str]) -> Iterator[None]:
    """Let groups be made and objects be sent inside the block.

    ``assumptions``: where it is noted what peers are taken to send.
    """
    _give_kernels()
    named = {
        "all_gather_object": _all_gather_object,
        "gather_object": _gather_object,
        "broadcast_object_list": _nothing,
        "scatter_object_list": _scatter_object_list(world),
    }

    def noted(send: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> None:
            if world.size > 1:
                assumptions.add(_PEERS)
            send(*args, **kwargs)

        return call

    changes = [(home, name, noted(send)) for home in _HOMES for name, send in named.items()]
    make = distributed_c10d._new_group_with_tag  # noqa: SLF001 - below every way of making one
    changes.append((distributed_c10d, "_new_group_with_tag", _of_fake_backend(make)))
    with replaced(changes):
        yield


@cache
def _give_kernels() -> None:
    own = library("Meta", "c10d")
    for name in _COALESCED:
        own.impl(name, lambda *args: create_fakework(args, return_first_arg=False))


def _of_fake_backend(make: Any) -> Any:
    @wraps(make)
    def make_group(
        ranks: Any = None, timeout: Any = None, _backend: Any = None, _options: Any = None,
        *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        for name in ("backend", "backend_options"):
            kwargs.pop(name, None)
        return make(ranks, timeout, "fake", None, *args, **kwargs)

    return make_group


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Send to peers what is here, or wait for what only a peer has."""


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:  # noqa: ARG001
    object_list[:] = [obj] * len(object_list)


def _gather_object(obj: Any, object_gather_list: Any = None, *_args: Any, **_kwargs: Any) -> None:
    if object_gather_list:
        _all_gather_object(object_gather_list, obj)


def _scatter_object_list(world: World) -> Any:
    def scatter(output: list[Any], given: Any = None, *_args: Any, **_kwargs: Any) -> None:
        if given and len(given) > world.rank:
            output[0] = given[world.rank]

    return scatter
