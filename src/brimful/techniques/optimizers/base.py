"""What an optimizer says of itself; whoever needs to know asks this record and lists no names.

Knows no torch, no job and no strategy: those refer to it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal, NamedTuple

Shape = tuple[int, ...]
StateType = Literal["same", "fp32", "uint8", "fp8"]
"""Type of a tensor of the state; ``same``: that of the parameter that is updated."""
Rate = Literal["beta1", "beta2", "epsilon"]
FP32_BYTES = 4
_BYTES: dict[StateType, int] = {"fp32": FP32_BYTES, "uint8": 1, "fp8": 1}
STEP = "step"
"""Key of the count of steps, which is no byte of a GPU's unless its kernel reads it there."""


class Updated(NamedTuple):
    """A parameter as an optimizer sees it.

    Attributes:
        shape: Of what this device updates of it.
        is_hidden: Whether it is a matrix of a block, or a stack of them; told to rules that ask
            (``tells_hidden``).
        whole: Shape of all of it, where this device has a piece; empty: it has all.
    """

    shape: Shape
    is_hidden: bool = False
    whole: Shape = ()

    @property
    def num(self) -> int:
        """Numbers in it."""
        return prod(self.shape)


class Settings(NamedTuple):
    """What depends on recipe, rates and device, and not on a parameter.

    Attributes:
        num_bytes: Of one value of what is updated: of an fp32 master where there are masters.
        kernels: ``cuda`` or ``cpu``.
        momentum: ``beta1``.
        decay: Of matrices.
        num_shards: Devices that share each parameter.
        partial_sums: Returns what adding up the numbers of a shape along a dimension leaves beside
            the sums: partial results of blocks of threads.
    """

    num_bytes: int
    kernels: str
    momentum: float
    decay: float
    num_shards: int = 1
    partial_sums: Callable[[Shape, int], int] = lambda _shape, _dim: 0


class Kept(NamedTuple):
    """A tensor that is kept of a parameter from before the first step on.

    Attributes:
        key: In the optimizer's state.
        shape: Its own.
        type: Its own.
        on_host: Whether it is the host's wherever the parameter is.
        is_paged: Whether it is in CUDA's managed memory, of which no allocator of PyTorch knows and
            which is on the host where the GPU is full.
    """

    key: str
    shape: Shape
    type: StateType = "same"
    on_host: bool = False
    is_paged: bool = False

    def num_bytes(self, element: int) -> int:
        """Return its bytes, where a value of the parameter has ``element``."""
        return prod(self.shape) * _BYTES.get(self.type, element)


class Moment(NamedTuple):
    """What an update has beside the state at one time.

    Attributes:
        made: Bytes of the tensors that were made for it.
        bound: Bytes that the moment before made and that are still there.
    """

    made: tuple[int, ...] = ()
    bound: int = 0

    @property
    def num_bytes(self) -> int:
        """All that is there."""
        return sum(self.made) + self.bound


State = Callable[[Updated, Settings], tuple[Kept, ...]]
Moments = Callable[[Sequence[Updated], Settings], Iterator[Moment]]
"""Yields the moments of an update of parameters that are handed over together, at least one."""


Flops = Callable[[Updated, Settings], float]
"""Returns what one update of a parameter multiplies, in products of matrices."""


class Spelled(NamedTuple):
    """What a program that we export to calls an optimizer.

    Attributes:
        name: Its name there.
        lost: Field of ``Job`` that means something else there; empty: none.
        why: What it means there.
        is_same: Whether a run there updates as ours does, so that one predicts the other.
        reads: Further names there, in lower case, that are read as this one.
    """

    name: str
    lost: str = ""
    why: str = ""
    is_same: bool = True
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """One update rule.

    Attributes:
        name: As it is typed.
        words: The rule's name for people; whose variants have one word for it.
        keeps: What its state is, in words.
        source: Paper, or the file that it was read from.
        state: Returns what is kept of a parameter; the same before the first step and after.
        moments: See ``Moments``.
        flops: See ``Flops``.
        passes: How often its kernels read and write gradients, parameters and state; 1: once, all
            by one kernel.
        gathered_bytes: Returns what an update of a piece of a parameter gathers of its whole.
        rates: Fields of ``Job`` that it reads.
        is_momentum: Whether ``beta1`` is the momentum of the gradient itself.
        keeps_by_number: Whether what it keeps of a parameter depends on how many numbers it has,
            and not on its shape or its place.
        tells_hidden: Whether matrices of blocks are updated by another rule than all else, which
            makes them a group of their own.
        shards: How it updates what FSDP2 or tensor parallelism shards: ``all`` by kernels that know
            of shards; ``local`` each as if it were all, so that blocks of numbers begin with it;
            ``gathered`` by what is computed of whole matrices, of which FSDP2's shards are gathered
            and tensor parallelism's are not; ``none``: not at all.
        zero1: Whether torch's ZeRO-1 cuts its state.
        masters: Whether it updates fp32 masters, which come in buckets.
        pipeline: Whether the stages of a pipeline may have it.
        on_host: Whether it runs in host memory.
        travels: Whether its state may be on the host and be updated on the device.
        deepspeed_engine: Whether it updates one flat piece of all parameters, as DeepSpeed has it.
        hangs_on_chip: Whether its moments ask for ``partial_sums``.
        compiled: Whether its update is compiled when a run meets it, so that a pretend device has
            no memory of it.
        rounds: Whether it holds in fewer bits what another optimizer of the same rule holds whole.
        pages: Whether some of its state is paged on a GPU (``Kept``).
        transformers: In Hugging Face's Trainer; None: it has none.
        deepspeed: In DeepSpeed's JSON; None: it is not said there.
        titan: torchtitan's implementation of AdamW; empty: it has none.
        also: Other names that mean it.
    """

    name: str
    words: str
    keeps: str
    source: str
    state: State
    moments: Moments
    flops: Flops = lambda _parameter, _settings: 0.0
    passes: float = 1.0
    gathered_bytes: Callable[[Updated], int] = lambda _parameter: 0
    rates: frozenset[Rate] = field(default=frozenset({"beta1", "beta2", "epsilon"}))
    is_momentum: bool = False
    keeps_by_number: bool = True
    tells_hidden: bool = False
    shards: Literal["all", "local", "gathered", "none"] = "none"
    zero1: bool = True
    masters: bool = True
    pipeline: bool = True
    on_host: bool = False
    travels: bool = True
    deepspeed_engine: bool = False
    hangs_on_chip: bool = False
    compiled: bool = False
    rounds: bool = False
    pages: bool = False
    transformers: Spelled | None = None
    deepspeed: Spelled | None = None
    titan: str = ""
    also: tuple[str, ...] = ()


def counted(*, on_host: bool) -> Kept:
    """Return the count of steps: an fp32 scalar."""
    return Kept(STEP, (), "fp32", on_host)


def at_once(_parameters: Sequence[Updated], _settings: Settings) -> Iterator[Moment]:
    """Update in place by one kernel, with nothing beside the state."""
    yield Moment()


def one_by_one(
    beside: Callable[[Updated, Settings], tuple[int, ...]],
) -> Moments:
    """Update one parameter after another; ``beside`` says what one of them has beside its state."""

    def moments(parameters: Sequence[Updated], settings: Settings) -> Iterator[Moment]:
        found = [made for each in parameters if (made := beside(each, settings))]
        yield from map(Moment, found or [()])

    return moments


def bytes_kept(
    optimizer: Optimizer,
    parameters: Sequence[Updated],
    settings: Settings,
    *,
    is_paged: bool = False,
) -> int:
    """Return the bytes of a state, counts of steps left out: of what is paged, or of the rest."""
    return sum(
        num * kept.num_bytes(settings.num_bytes)
        for each, num in Counter(parameters).items()
        for kept in optimizer.state(each, settings)
        if kept.key != STEP and kept.is_paged == is_paged
    )
