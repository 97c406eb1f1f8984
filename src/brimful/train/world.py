"""The processes that train together: which one this is, and how they agree.

A run on many devices is one process per device, started by ``torchrun`` or by ``launch``, which
both say by environment variables who is who. Every function here does nothing, or answers for one,
in a process that trains alone. Agreement goes through gloo on the host: it needs no device.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from brimful import errors
from brimful.errors import BrimfulError, InputError, RunError
from brimful.train.meeting import meet

T = TypeVar("T")
BACKEND = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
_AGREED = "_is_of_all_processes"
_STEP, _GAVE_UP = "brimful-step-", "brimful-gave-up-"
_GRACE_S = 5.0
TIMEOUT_S = 600.0
"""How long a process waits for the others in one collective before it gives up."""


class Place(NamedTuple):
    """Which process this is.

    Attributes:
        rank: Among all, from 0.
        local_rank: Among those of this machine, from 0.
        size: How many there are.
        restart: How often the group was started again for a loss on this machine.
        launch: Names all the groups that were started as one; empty where nobody named them.
    """

    rank: int
    local_rank: int
    size: int
    restart: int = 0
    launch: str = ""


def place_here() -> Place | None:
    """Read from the environment which process this is; None: one that was started alone."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    if not all(name in os.environ for name in names):
        return None
    texts = [os.environ[name] for name in names]
    texts.append(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if not all(text.isdecimal() for text in texts):
        raise InputError(f"RANK, LOCAL_RANK and WORLD_SIZE are {texts[:3]}; start with torchrun")
    launch = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    rank, local_rank, size, restart = map(int, texts)
    return Place(rank, local_rank, size, restart, launch="" if launch == "none" else launch)


@contextmanager
def joined(place: Place, kernels: str, *, timeout_s: float = TIMEOUT_S) -> Iterator[None]:
    """Be one of the processes inside the block.

    ``kernels``: ``cpu`` or ``cuda``.
    """
    if kernels == "cuda":
        torch.cuda.set_device(place.local_rank)
    store, timeout = meet(place.rank, place.size, timeout_s=timeout_s), timedelta(seconds=timeout_s)
    dist.init_process_group(
        BACKEND[kernels], store=store, rank=place.rank, world_size=place.size, timeout=timeout
    )
    try:
        with _patience(timeout):
            yield
    finally:
        dist.destroy_process_group()


def use_allocator(settings: str) -> None:
    """Set the caching allocator as a plan says; empty: leave it as the environment says."""
    if settings:
        torch._C._accelerator_setAllocatorSettings(settings)  # noqa: SLF001 - what torch refers to


@contextmanager
def _patience(timeout: timedelta) -> Iterator[None]:
    """Let every group that is made inside the block wait as long as the one of all processes does.

    Meshes make theirs with torch's defaults, 10 minutes for NCCL and 30 for gloo, whatever the
    group of all was told.
    """
    names = ("default_pg_timeout", "default_pg_nccl_timeout")
    known = {name: getattr(dist.distributed_c10d, name, None) for name in names}
    before = {name: value for name, value in known.items() if value is not None}  # without NCCL
    for name in before:
        setattr(dist.distributed_c10d, name, timeout)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(dist.distributed_c10d, name, value)


def count_gpus() -> int:
    """Count the CUDA GPUs that this process can see."""
    return int(torch.cuda.device_count())


def own_device(kernels: str) -> torch.device:
    """Return the device that this process computes on."""
    if kernels == "cuda":
        return torch.device(kernels, torch.cuda.current_device())
    return torch.device(kernels)


def is_spread() -> bool:
    """Whether this process trains with others."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def own_rank() -> int:
    """Return this process's rank; 0 where it is alone."""
    return dist.get_rank() if is_spread() else 0


def num_processes() -> int:
    """Count the processes that train together."""
    return dist.get_world_size() if is_spread() else 1


def is_first() -> bool:
    """Whether this is the process that writes files and speaks to the user."""
    return own_rank() == 0


def host_group() -> Any:
    """Make a group of all processes by the host, for a thread of its own; None where alone."""
    return dist.new_group(backend="gloo") if is_spread() else None


def told_by_first(value: T, group: Any = None) -> T:
    """Return the first process's value in all of them; ``group``: of ``host_group``."""
    if not is_spread():
        return value
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0, group=group)
    told: T = box[0]
    return told


def of_all(value: T, group: Any = None) -> list[T]:
    """Return every process's value, by rank, in all of them; ``group``: of ``host_group``."""
    if not is_spread():
        return [value]
    values: list[Any] = [None] * num_processes()
    dist.all_gather_object(values, value, group=group)
    return values


def numbers_of_all(numbers: Sequence[float]) -> list[list[float]]:
    """Return every process's numbers, by rank: [processes][numbers]; cheaper than ``of_all``."""
    if not is_spread():
        return [list(numbers)]
    table = torch.zeros(num_processes(), len(numbers), dtype=torch.float64)
    table[own_rank()] = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(table)
    rows: list[list[float]] = table.tolist()
    return rows


def any_says(answer: bool) -> bool:  # noqa: FBT001 - the one thing it is told
    """Return whether any process answers yes."""
    if not is_spread():
        return answer
    votes = torch.tensor([int(answer)])
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return bool(votes.item())


@contextmanager
def together(group: Any = None) -> Iterator[None]:
    """Let what is wrong in one process end all of them in the same way.

    Without it the others would wait for one that has gone, until ``TIMEOUT_S``. Nothing inside the
    block may be a collective.

    ``group``: of ``host_group``; None: the default one. Raises BrimfulError: the first process's by
    rank that had one, in all of them.
    """
    if not is_spread():
        yield
        return
    error: BrimfulError | None = None
    try:
        yield
    except BrimfulError as caught:
        error = caught
    said = of_all(None if error is None else (type(error).__name__, str(error)), group)
    for rank, words in enumerate(said):
        if words is None:
            continue
        agreed = error if error is not None and rank == own_rank() else made_again(*words)
        setattr(agreed, _AGREED, True)
        raise agreed


def was_agreed(error: BrimfulError) -> bool:
    """Whether all processes have this error, so that none waits for this one."""
    return not is_spread() or hasattr(error, _AGREED)


def note_step(step: int) -> None:
    """Let the others know in which step this process is, should they wait for it in vain."""
    if is_spread():
        with suppress(
            RuntimeError
        ):  # the store went with its process; this step may still be saved
            _store().set(f"{_STEP}{own_rank()}", str(step))


def who_is_missing() -> str:
    """Say in which step this process waited in vain, and for whom.

    Every process that gave up says so; after a while those that have not are the ones that hang, or
    are gone. To be called after a collective failed.
    """
    try:
        step = _noted(_STEP, own_rank())
        _store().set(f"{_GAVE_UP}{own_rank()}", step)
        time.sleep(_GRACE_S)
        silent = [r for r in range(num_processes()) if _noted(_GAVE_UP, r) != step]
    except RuntimeError:  # with the process that held it the store has gone
        return f"process {own_rank()} waited in vain for one that nobody can name"
    if not silent:
        return f"process {own_rank()} lost touch with the others in step {step}"
    noun = "processes" if len(silent) > 1 else "process"
    return (
        f"process {own_rank()} waited in step {step} for {noun} {', '.join(map(str, silent))}, "
        f"last seen in step {_noted(_STEP, silent[0])}"
    )


def _noted(prefix: str, rank: int) -> str:
    name = f"{prefix}{rank}"
    return str(_store().get(name).decode()) if _store().check([name]) else "none"


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001 - it has no public name


def made_again(kind: str, text: str) -> BrimfulError:
    """Return an error of another process."""
    found = getattr(errors, kind, RunError)
    error: BrimfulError = BrimfulError.__new__(
        found if issubclass(found, BrimfulError) else RunError
    )
    error.args = (text,)
    return error


def first_alone(make: Callable[[], T]) -> T:
    """Call in the first process of each machine, then in the others: they find what it made.

    Raises BrimfulError: Any process's, in all of them.
    """
    made: list[T] = []
    is_early = not is_spread() or os.environ.get("LOCAL_RANK", "0") == "0"
    for now in (True, False):
        with together():
            if is_early == now:
                made.append(make())
    return made[0]
