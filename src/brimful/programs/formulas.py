"""What processes of a program take by formula, where there is one: nothing has to be installed."""

import math
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from brimful.cost.outside import Room, room_of
from brimful.errors import UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.hardware.cuda_chips import version_of
from brimful.hardware.gpus import load_cluster
from brimful.megatron.layout import Layout, layout
from brimful.megatron.speed import step
from brimful.megatron.stage import Peak, moved_bytes, peak
from brimful.plan import Word
from brimful.programs import megatron
from brimful.programs.base import Command, Rank
from brimful.programs.reading import read_command
from brimful.units import KIB

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


class RankPrediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one process takes, by formula.

    Attributes:
        rank: Its number in the world.
        words: What it does.
        predicted_peak_allocated_bytes: Blocks at most, as ``torch.cuda`` counts them.
        predicted_peak_reserved_bytes: What the allocator holds at most, by its replay.
        predicted_between_steps_bytes: Blocks that are there when a step has ended: what a log of
            allocated memory says, where that of the most says the peak.
        state_bytes: Of parameters, gradients and states.
        place: What runs at the peak.
        word: Whether the card has room for what is reserved: ``fits`` whatever lies outside of the
            allocator, ``tight`` if that is little.
        capacity_bytes: What the allocator can have there at most.
    """

    rank: int
    words: str
    predicted_peak_allocated_bytes: int
    predicted_peak_reserved_bytes: int
    predicted_between_steps_bytes: int
    state_bytes: int
    place: str
    word: Word
    capacity_bytes: int


class Prediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program takes, by formula.

    Attributes:
        name: How it is called.
        world_size: Processes in its world.
        ranks: One of each kind.
        predicted_step_s: Of the slowest stage's step, with what it waits for; None: a rate or a
            link is unknown, or T5's.
        predicted_tokens_per_s: Of all GPUs.
        notes: What was taken for granted, a sentence each.
    """

    name: str
    world_size: int
    ranks: tuple[RankPrediction, ...]
    predicted_step_s: float | None
    predicted_tokens_per_s: float | None
    notes: tuple[str, ...]


class _Found(NamedTuple):
    at: Layout
    peak: Peak
    step_s: float


def predict_program(
    text: str, world_size: int | None, gpu: str, *, per_node: int = megatron.NODE, network: str = ""
) -> Prediction:
    """Predict what each kind of process of a command line takes, and how long a step is.

    Args:
        text: A command line, or a YAML of arguments.
        world_size: Processes, where that is asked for; None: as the command line says.
        gpu: A card of ``brimful gpus``.
        per_node: Of one machine, at most.
        network: Between machines, a name of ``brimful gpus``; empty: of the maker's own systems.

    Raises:
        InputError: It cannot be read, or does not fit the world.
        UnsupportedError: There is no formula for it.
    """
    command = read_command(text)
    if (name := Path(command.script).name) not in megatron.WITH_FORMULA:
        known = " and ".join(megatron.WITH_FORMULA)
        raise UnsupportedError(
            f"{name} has no formula (those that have: {known} of Megatron-LM); brimful simulate "
            f"--from '...' runs it as it is on a pretend GPU"
        )
    told = megatron.told(command, world_size)
    cluster = _cluster(gpu, told.world_size, per_node, network)
    if cluster.device.kernels != "cuda":
        raise UnsupportedError("Megatron-LM's formulas are of CUDA GPUs; give --gpus, as 8xh100")
    room, capability = room_of(cluster.device), version_of(cluster.device.capability)
    overlaps = told.flags.has("--overlap-grad-reduce")

    def of_stage(stage: int) -> _Found:
        at = layout(
            told.flags,
            vocab=told.vocab,
            world_size=told.world_size,
            stage=stage,
            capability=capability,
            kind=megatron.WITH_FORMULA[name],
        )
        found = peak(at, cublas_bytes=_cublas_bytes(command), capacity_bytes=room.most_bytes)
        took = step(at, cluster, moved_bytes(at), overlaps=overlaps)
        return _Found(at, found, took.predicted_step_s)

    def of_rank(rank: Rank, found: _Found) -> RankPrediction:
        return RankPrediction(
            rank=rank.rank,
            words=rank.words,
            predicted_peak_allocated_bytes=found.peak.predicted_peak_allocated_bytes,
            predicted_peak_reserved_bytes=found.peak.predicted_peak_reserved_bytes,
            predicted_between_steps_bytes=found.peak.between_steps_bytes,
            state_bytes=found.peak.state_bytes,
            place=found.peak.place,
            word=_word(found.peak, room),
            capacity_bytes=room.most_bytes,
        )

    stages = [of_stage(stage) for stage in told.stages]
    slowest = max(stages, key=lambda each: each.step_s)
    at = slowest.at
    rows = at.micro_batch * at.num_micro * at.dp
    is_known = math.isfinite(slowest.step_s) and at.decoder is None  # two lengths: not told
    return Prediction(
        name=f"Megatron-LM's {told.name}",
        world_size=told.world_size,
        ranks=tuple(map(of_rank, told.ranks, stages)),
        predicted_step_s=slowest.step_s if is_known else None,
        predicted_tokens_per_s=rows * at.seq_len / slowest.step_s if is_known else None,
        notes=told.notes,
    )


def _word(found: Peak, room: Room) -> Word:
    if not found.fits:
        return "no"
    return "fits" if found.predicted_peak_reserved_bytes <= room.firm_bytes else "tight"


def _cluster(gpu: str, world_size: int, per_node: int, network: str) -> Cluster:
    """Return as many GPUs as there are processes, on as few machines as hold them."""
    each = math.gcd(world_size, per_node) if world_size > per_node else world_size
    nodes = world_size // each
    name = gpu if world_size == 1 else f"{nodes}x{each}x{gpu}" if nodes > 1 else f"{each}x{gpu}"
    return load_cluster(name, memory_limit_bytes=None, network_name=network)


def _cublas_bytes(command: Command) -> int | None:
    """Return the workspace that the environment gives a handle of cuBLAS: ``:4096:8``, in KiB."""
    sizes = re.findall(r":(\d+):(\d+)", command.environment.get(_CUBLAS, ""))
    return sum(int(size) * int(count) for size, count in sizes) * KIB if sizes else None
