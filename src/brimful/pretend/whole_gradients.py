"""Gradients of sharded parameters that a program keeps whole until a later backward pass.

It is noted by which call it does so, and what would be left of each were it reduced at once: its
shard. With that a program is replayed.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, NamedTuple

import msgspec
import numpy as np
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, _runtime_utils
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group

from brimful.allocator.config import AllocatorSettings
from brimful.allocator.held import held_within
from brimful.pretend.already import whole_gradients
from brimful.pretend.gathering import unsharded_gradients
from brimful.pretend.idle_gradients import Trained
from brimful.pretend.recording import Recording
from brimful.pretend.remedies import freed_sooner
from brimful.pretend.replacing import replaced
from brimful.pretend.tape import Tape
from brimful.pretend.unit_values import EACH_BATCH, NO_SYNC, SET_SYNC, WholeGradients

_OF_EACH_BATCH = "accelerate"


class Later(NamedTuple):
    """A gradient that is not reduced yet.

    Attributes:
        event: Of the recording, before which it could have been.
        shard_bytes: What would be left of it.
    """

    event: int
    shard_bytes: int


class Held:
    """What is seen of gradients that are left whole.

    Attributes:
        by: The call that leaves them so; empty: none was seen.
        later: Of each allocation, as it was first left whole.
    """

    def __init__(self) -> None:
        """Have seen none yet."""
        self.by = ""
        self.later: dict[int, Later] = {}

    def told(
        self,
        recording: Recording,
        peak_event: int,
        settings: AllocatorSettings,
        capacity_bytes: int,
    ) -> WholeGradients | None:
        """Sum up those at the peak, and replay the program that reduces each at once."""
        whole = whole_gradients(recording, peak_event)
        later = {row: each for row, each in self.later.items() if row < len(recording.num_bytes)}
        if whole is None or not whole.num_bytes or not later:
            return whole
        events, left = np.array([*later.values()], dtype=np.int64).T
        reduced = freed_sooner(recording, np.array([*later], dtype=np.int64), events, left)
        free, done = held_within(
            reduced.requests(), settings=settings, capacity_bytes=capacity_bytes
        )
        return msgspec.structs.replace(
            whole,
            by=self.by,
            reduced_each_bytes=free.peak_reserved_bytes,
            reduced_each_fits=not done.short_bytes,
        )


@contextlib.contextmanager
def watching(tape: Tape, trained: Trained, held: Held) -> Iterator[None]:
    """Note inside the block which gradients are left whole, and whose whole parameters are."""
    param = getattr(_fsdp_param, "FSDPParam", None)
    group = getattr(_fsdp_param_group, "FSDPParamGroup", None)
    wanted: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
        (param, "init_unsharded_param", lambda original: _unshards(trained, original)),
        (group, "post_backward", lambda original: _leaves(tape, held, original)),
        (_runtime_utils, "_post_backward_hook", lambda call: _leaves_flat(tape, held, call)),
        (FSDPModule, SET_SYNC, lambda original: _says(held, SET_SYNC, original)),
        (FullyShardedDataParallel, NO_SYNC, lambda original: _says(held, NO_SYNC, original)),
    )
    present = [
        (owner, name, wrap(vars(owner)[name]))
        for owner, name, wrap in wanted
        if owner is not None and name in vars(owner)
    ]
    with replaced(present):
        yield


def _unshards(trained: Trained, original: Any) -> Any:
    """A parameter that is whole for a while stands for its shard, which the optimizer has."""

    @wraps(original)
    def unshard(self: Any) -> None:
        original(self)
        trained.shards[self._unsharded_param] = id(self.sharded_param)

    return unshard


def _leaves(tape: Tape, held: Held, original: Any) -> Any:
    """A unit of FSDP2 whose gradients are reduced, or left."""

    @wraps(original)
    def post_backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        for param in self.fsdp_params:
            for whole in unsharded_gradients(param):
                _note(tape, held, whole, param.sharded_param)
        return made

    return post_backward


def _leaves_flat(tape: Tape, held: Held, original: Any) -> Any:
    """A flat parameter of FSDP1, likewise."""

    @wraps(original)
    def post_backward(state: Any, handle: Any, *args: Any, **kwargs: Any) -> None:
        original(state, handle, *args, **kwargs)
        flat = handle.flat_param
        if flat.grad is not None and handle.uses_sharded_strategy and not state._sync_gradients:  # noqa: SLF001
            _note(tape, held, flat.grad, flat._local_shard)  # noqa: SLF001

    return post_backward


def _note(tape: Tape, held: Held, whole: Any, shard: Any) -> None:
    local = getattr(shard, "_local_tensor", shard)
    for row in tape.rows_of((whole,)):
        now = Later(tape.main.spot().event, local.numel() * local.element_size())
        held.later.setdefault(row, now)


def _says(held: Held, by: str, original: Any) -> Any:
    """A call by which gradients are left whole; whoever trains by Accelerate does not make it."""

    @wraps(original)
    def said(self: Any, *args: Any, **kwargs: Any) -> Any:
        if by == NO_SYNC or not next(iter((*args, *kwargs.values())), True):
            caller = str(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001
            held.by = EACH_BATCH if caller.partition(".")[0] == _OF_EACH_BATCH else by
        return original(self, *args, **kwargs)

    return said
