"""What processes of a program take by formula, where there is one: nothing has to be installed."""

import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from brimful.allocator.config import EXPANDABLE
from brimful.cost.money import HOUR_S, Cost, Price
from brimful.cost.outside import Room, middle_outside, room_of
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster, Device
from brimful.hardware.cuda_chips import version_of
from brimful.hardware.cuda_libraries import NEWEST, Version, libraries
from brimful.hardware.gpus import load_cluster
from brimful.megatron.command_line import read_layout
from brimful.megatron.deepep import outside_bytes
from brimful.megatron.layout import Layout
from brimful.megatron.speed import Overlaps, device_flops, slowest_step_s
from brimful.megatron.stage import Peak, peak
from brimful.megatron.state_types import ON_HOST
from brimful.megatron.unwalked import NEAR, not_yet
from brimful.programs import megatron
from brimful.programs.base import Command, Flags, Rank, shortened
from brimful.programs.reading import is_arguments, read_command
from brimful.units import KIB, format_bytes
from brimful.values.plan import Word

MOST_STAGES = 8
"""Of a pipeline that are each predicted; of more those of each kind are told alone."""
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_USER_BUFFERS = "--tp-comm-overlap"
_BUFFERED = (
    f"{_USER_BUFFERS}: its buffers, some ten of a micro-batch's activations, lie outside of the "
    f"allocator and are in no figure; what is gathered into them is told inside of it"
)


class RankPrediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one process takes, by formula.

    Attributes:
        rank: Its number in the world.
        words: What it does.
        predicted_peak_allocated_bytes: Blocks at most, as ``torch.cuda`` counts them.
        predicted_peak_reserved_bytes: What the allocator holds at most, by its replay.
        predicted_process_bytes: Of the process, as the driver says it: with the middle of what lies
            outside of the allocator.
        predicted_between_steps_bytes: Blocks that are there when a step has ended: what a log of
            allocated memory says, where that of the most says the peak.
        state_bytes: Of parameters, gradients and states.
        place: What runs at the peak.
        word: Whether the card has room for what is reserved: ``fits`` whatever lies outside of the
            allocator, ``tight`` if that is little.
        capacity_bytes: What the allocator can have there at most.
        predicted_peak_expandable_bytes: What it holds at most with expandable segments; 0: it fits
            without.
    """

    rank: int
    words: str
    predicted_peak_allocated_bytes: int
    predicted_peak_reserved_bytes: int
    predicted_process_bytes: int
    predicted_between_steps_bytes: int
    state_bytes: int
    place: str
    word: Word
    capacity_bytes: int
    predicted_peak_expandable_bytes: int = 0


class Prediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program takes, by formula.

    Attributes:
        name: How it is called.
        world_size: Processes in its world.
        ranks: One of each kind.
        predicted_step_s: Of the slowest stage's step, with what it waits for; None: a rate or a
            link is unknown, or T5's.
        predicted_tokens_per_s: Of all GPUs.
        tokens_per_step: Of all replicas; of T5 what is read and what is written.
        predicted_flops_per_s: Of each GPU: the model's operations, nothing computed again, causal
            attention by half; None: as of a step.
        predicted_stage_reserved_bytes: Of every stage of a pipeline, in order, of each GPU; empty:
            there is one, or there are very many.
        num_steps: That the command line asks for; None: it says no number.
        notes: What was taken for granted, a sentence each.
    """

    name: str
    world_size: int
    ranks: tuple[RankPrediction, ...]
    predicted_step_s: float | None
    predicted_tokens_per_s: float | None
    tokens_per_step: int
    predicted_flops_per_s: float | None = None
    predicted_stage_reserved_bytes: tuple[int, ...] = ()
    num_steps: int | None = None
    notes: tuple[str, ...]


def run_cost(
    found: Prediction, step_s: float | None, num_steps: int | None, price: Price | None
) -> Cost | None:
    """Return what a run takes; None: nobody says how long it is.

    ``step_s``: of the layout that is run; None: unknown. ``price``: of an hour of a GPU; None:
    unknown.
    """
    if num_steps is None:
        return None
    hours = None if step_s is None else num_steps * step_s / HOUR_S
    gpu_hours = None if hours is None else hours * found.world_size
    rate = None if price is None else price.usd_per_gpu_hour
    return Cost(
        num_tokens=num_steps * found.tokens_per_step, num_steps=num_steps, hours=hours,
        gpu_hours=gpu_hours, energy_kwh=None, usd_per_gpu_hour=rate,
        usd=None if rate is None or gpu_hours is None else gpu_hours * rate,
        assumptions=(), whose="" if price is None else price.whose,
    )  # fmt: skip


def has_formula(text: str) -> bool:
    """Whether a command line is of a program that is predicted by its own formulas."""
    return not megatron.WITH_FORMULA.keys().isdisjoint(Path(word).name for word in text.split())


class Machines(NamedTuple):
    """On what a program runs.

    Attributes:
        gpu: A card of ``brimful gpus``.
        per_node: Cards of one machine, at most.
        network: Between machines, a name of ``brimful gpus``; empty: of the maker's own systems.
        torch_version: PyTorch's (major, minor), which workspaces and losses follow.
    """

    gpu: str
    per_node: int = megatron.NODE
    network: str = ""
    torch_version: Version = NEWEST


class Line(NamedTuple):
    """A command line, read.

    Attributes:
        command: Its words.
        told: What they say.
        stages: Of each kind of process, what it has.
        every: Of every stage of the pipeline.
        cluster: On what.
    """

    command: Command
    told: megatron.Told
    stages: list[Layout]
    every: list[Layout]
    cluster: Cluster

    @property
    def num_tokens(self) -> int:
        """Tokens of a step, of all replicas."""
        at = self.stages[0]
        length = at.seq_len + (0 if at.decoder is None else at.decoder.seq_len)
        return at.micro_batch * at.num_micro * at.dp * length

    @property
    def step_s(self) -> float | None:
        """Seconds of the slowest stage's step; None: unknown, as of T5 and of a host's update."""
        flags = self.told.flags
        overlaps = Overlaps(
            replicas=flags.has("--overlap-grad-reduce"),
            stages=not flags.has("--no-overlap-p2p-communication"),
            tensors=flags.has(_USER_BUFFERS),
        )
        step_s = slowest_step_s(self.stages, self.cluster, overlaps)
        at = self.stages[0]
        is_told = math.isfinite(step_s) and at.decoder is None and not at.updates_on_host
        return step_s if is_told else None

    @property
    def room(self) -> Room:
        """What there is for the allocator, beside buffers that a program makes itself."""
        beside, room = outside_bytes(self.stages[0]), room_of(self.cluster.device)
        return Room(*(max(0, each - beside) for each in room))

    def peak_of(self, machines: Machines) -> "partial[Peak]":
        """Return what says the peak of a stage, on a card that has room for what it may have."""
        device, handle = self.cluster.device, _cublas_bytes(self.command)
        if handle is None:
            handle = libraries().cublas_bytes(version_of(device.capability), machines.torch_version)
        return partial(peak, cublas_bytes=handle, capacity_bytes=self.room.most_bytes)


def predict_speed(text: str, world_size: int | None, machines: Machines) -> float | None:
    """Predict the tokens a second of all GPUs alone, as ``predict_program`` does.

    ``world_size``: processes, where that is asked for; None: as the command line says. Returns
    None: a rate or a link is unknown. Raises InputError: it cannot be read, or does not fit the
    world. Raises UnsupportedError: there is no formula for it.
    """
    found = read_line(text, world_size, machines)
    return None if found.step_s is None else found.num_tokens / found.step_s


def predict_program(text: str, world_size: int | None, machines: Machines) -> Prediction:
    """Predict what each kind of process of a command line takes, and how long a step is.

    ``world_size``: processes, where that is asked for; None: as the command line says. Raises
    InputError: it cannot be read, or does not fit the world. Raises UnsupportedError: there is no
    formula for it.
    """
    found = read_line(text, world_size, machines)
    device = found.cluster.device
    room, of = found.room, found.peak_of(machines)
    peaks = [of(at) for at in found.stages]
    others = [
        None if one.fits else of(at, allocator=EXPANDABLE)
        for at, one in zip(found.stages, peaks, strict=True)
    ]
    ranks = tuple(
        _prediction(rank, of_it, other, room, _outside_bytes(at, device))
        for rank, at, of_it, other in zip(
            found.told.ranks, found.stages, peaks, others, strict=True
        )
    )
    known = dict(zip(found.told.stages, peaks, strict=True))
    told = range(len(found.every) if 1 < len(found.every) <= MOST_STAGES else 0)
    reserved = tuple(
        (known.get(stage) or of(found.every[stage])).predicted_peak_reserved_bytes for stage in told
    )
    step_s = found.step_s
    return Prediction(
        name=f"Megatron-LM's {found.told.name}",
        world_size=found.told.world_size,
        ranks=ranks,
        predicted_step_s=step_s,
        predicted_tokens_per_s=None if step_s is None else found.num_tokens / step_s,
        tokens_per_step=found.num_tokens,
        predicted_flops_per_s=None if step_s is None else device_flops(found.every) / step_s,
        predicted_stage_reserved_bytes=reserved,
        num_steps=_num_steps(found.told.flags),
        notes=tuple(
            map(
                found.command.in_its_words,
                (*found.told.notes, *_notes_of(found)),
            )
        ),
    )


def _notes_of(found: Line) -> Iterator[str]:
    """Yield what lies outside of the allocator, or of the device."""
    if found.stages[0].updates_on_host:
        yield f"{ON_HOST}: how long the host's update takes is not known, so no speed is told"
    if found.told.flags.has(_USER_BUFFERS):
        yield _BUFFERED
    if num_bytes := outside_bytes(found.stages[0]):
        yield (
            f"DeepEP's buffers, {format_bytes(num_bytes)} by its source, lie outside of the "
            f"allocator and are taken off its room; NVSHMEM's own are in no figure; tokens arrive "
            f"as of routers that choose at random, in blocks of another stream: more may be "
            f"reserved"
        )


def _num_steps(flags: Flags) -> int | None:
    """Return how many steps a command line asks for, by their number or by its samples."""
    steps, samples = ("--train-iters", "--train-samples")
    if flags.has(steps):
        return flags.first(steps, default=1)
    if flags.has(samples) and flags.has("--global-batch-size"):
        return -(-flags.first(samples, default=1) // flags.first("--global-batch-size", default=1))
    return None


def read_line(text: str, world_size: int | None, machines: Machines) -> Line:
    """Read a command line that has a formula.

    ``world_size``: processes, where that is asked for; None: as the command line says. Raises
    InputError: it cannot be read, or does not fit the world. Raises UnsupportedError: there is no
    formula for it.
    """
    typed = "" if is_arguments(text) else text
    command = read_command(text)
    try:
        return line_of(command, world_size, machines, typed)
    except (InputError, UnsupportedError) as error:
        if not command.keys:
            raise
        raise type(error)(command.in_its_words(str(error))) from None


def line_of(command: Command, world_size: int | None, machines: Machines, typed: str = "") -> Line:
    """Read a command line that was taken apart, as ``read_line`` does.

    ``world_size``: processes, where that is asked for; None: as the command line says. ``typed``:
    the same as it was typed, where flags may be left out of that.
    """
    if (name := Path(command.script).name) not in megatron.WITH_FORMULA:
        known = " and ".join(megatron.WITH_FORMULA)
        raise UnsupportedError(
            f"{name} has no formula (those that have: {known} of Megatron-LM); brimful simulate "
            f"--from '...' runs it as it is on a pretend GPU"
        )
    told = megatron.told(command, world_size)
    cluster = _cluster(machines, told.world_size)
    if cluster.device.kernels != "cuda":
        raise UnsupportedError("Megatron-LM's formulas are of CUDA GPUs; give --gpus, as 8xh100")
    missing = not_yet(told.flags)
    if missing and NEAR.keys() >= {*missing} and typed:
        words = "; ".join(dict.fromkeys(NEAR[flag] for flag in missing))
        raise UnsupportedError(
            f"{' and '.join(missing)} of Megatron-LM has no formula, brimful simulate runs it; "
            f"{words}",
            nearest={"source": shortened(typed, missing)},
        )
    first = read_layout(
        told.flags,
        vocab=told.vocab,
        world_size=told.world_size,
        stage=0,
        capability=version_of(cluster.device.capability),
        kind=megatron.WITH_FORMULA[name],
        torch_version=machines.torch_version,
    )
    every = [msgspec.structs.replace(first, stage=stage) for stage in range(first.pp)]
    return Line(command, told, [every[stage] for stage in told.stages], every, cluster)


def _outside_bytes(at: Layout, device: Device) -> int:
    """Return the middle of what lies outside of the allocator, with a group for each axis."""
    groups = sum(degree > 1 for degree in (at.tp, at.pp, at.cp, at.dp, at.experts.ep))
    return middle_outside(device, num_groups=groups) + outside_bytes(at)


def _prediction(
    rank: Rank, found: Peak, expandable: Peak | None, room: Room, outside: int
) -> RankPrediction:
    return RankPrediction(
        rank=rank.rank,
        words=rank.words,
        predicted_peak_allocated_bytes=found.predicted_peak_allocated_bytes,
        predicted_peak_reserved_bytes=found.predicted_peak_reserved_bytes,
        predicted_process_bytes=found.predicted_peak_reserved_bytes + outside,
        predicted_between_steps_bytes=found.between_steps_bytes,
        state_bytes=found.state_bytes,
        place=found.place,
        word=_word(found, room),
        capacity_bytes=room.most_bytes,
        predicted_peak_expandable_bytes=(
            expandable.predicted_peak_reserved_bytes if expandable else 0
        ),
    )


def _word(found: Peak, room: Room) -> Word:
    if not found.fits:
        return "no"
    return "fits" if found.predicted_peak_reserved_bytes <= room.firm_bytes else "tight"


def _cluster(machines: Machines, world_size: int) -> Cluster:
    """Return as many GPUs as there are processes, on as few machines as hold them."""
    gpu, most = machines.gpu, machines.per_node
    each = math.gcd(world_size, most) if world_size > most else world_size
    nodes = world_size // each
    name = gpu if world_size == 1 else f"{nodes}x{each}x{gpu}" if nodes > 1 else f"{each}x{gpu}"
    return load_cluster(name, memory_limit_bytes=None, network_name=machines.network)


def _cublas_bytes(command: Command) -> int | None:
    """Return the workspace that the environment gives a handle of cuBLAS: ``:4096:8``, in KiB."""
    sizes = re.findall(r":(\d+):(\d+)", command.environment.get(_CUBLAS, ""))
    return sum(int(size) * int(count) for size, count in sizes) * KIB if sizes else None
