"""What processes of a program take by formula, where there is one: nothing has to be installed."""

import re
from pathlib import Path

import msgspec

from brimful.cost.outside import room_of
from brimful.errors import UnsupportedError
from brimful.hardware.cluster import Device
from brimful.hardware.cuda_chips import version_of
from brimful.megatron.layout import layout
from brimful.megatron.stage import peak
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
        fits: Whether the card has room for what is reserved.
        capacity_bytes: What the allocator can have there.
    """

    rank: int
    words: str
    predicted_peak_allocated_bytes: int
    predicted_peak_reserved_bytes: int
    predicted_between_steps_bytes: int
    state_bytes: int
    place: str
    fits: bool
    capacity_bytes: int


class Prediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program takes, by formula.

    Attributes:
        name: How it is called.
        world_size: Processes in its world.
        ranks: One of each kind.
        notes: What was taken for granted, a sentence each.
    """

    name: str
    world_size: int
    ranks: tuple[RankPrediction, ...]
    notes: tuple[str, ...]


def predict_program(text: str, world_size: int | None, device: Device) -> Prediction:
    """Predict what each kind of process of a command line takes.

    Args:
        text: A command line, or a YAML of arguments.
        world_size: Processes, where that is asked for; None: as the command line says.
        device: On what.

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
    capacity, capability = room_of(device).most_bytes, version_of(device.capability)

    def of_rank(rank: Rank, stage: int) -> RankPrediction:
        at = layout(
            told.flags,
            vocab=told.vocab,
            world_size=told.world_size,
            stage=stage,
            capability=capability,
            kind=megatron.WITH_FORMULA[name],
        )
        found = peak(
            at,
            cublas_bytes=_cublas_bytes(command),
            capacity_bytes=capacity,
        )
        return RankPrediction(
            rank=rank.rank,
            words=rank.words,
            predicted_peak_allocated_bytes=found.predicted_peak_allocated_bytes,
            predicted_peak_reserved_bytes=found.predicted_peak_reserved_bytes,
            predicted_between_steps_bytes=found.between_steps_bytes,
            state_bytes=found.state_bytes,
            place=found.place,
            fits=found.fits,
            capacity_bytes=capacity,
        )

    return Prediction(
        name=f"Megatron-LM's {told.name}",
        world_size=told.world_size,
        ranks=tuple(map(of_rank, told.ranks, told.stages)),
        notes=told.notes,
    )


def _cublas_bytes(command: Command) -> int | None:
    """Return the workspace that the environment gives a handle of cuBLAS: ``:4096:8``, in KiB."""
    sizes = re.findall(r":(\d+):(\d+)", command.environment.get(_CUBLAS, ""))
    return sum(int(size) * int(count) for size, count in sizes) * KIB if sizes else None
