"""Values that all programs share."""

from typing import NamedTuple

import msgspec


class Rank(NamedTuple):
    """A process that is run, and what it is.

    Attributes:
        rank: Its number in the world.
        words: What it does.
    """

    rank: int
    words: str


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program that will be run on the pretend GPU.

    Attributes:
        name: How it is called.
        argv: The script and its arguments.
        world_size: Processes in its world.
        ranks: Which of them are run: one of each kind.
        assume: Packages of kernels that are stood in for.
        environment: Variables that are set for it.
        notes: What was left out or taken for granted, a sentence each.
    """

    name: str
    argv: tuple[str, ...]
    world_size: int
    ranks: tuple[Rank, ...]
    assume: tuple[str, ...]
    environment: dict[str, str]
    notes: tuple[str, ...]


class Command(NamedTuple):
    """A command line as it was given.

    Attributes:
        script: What is run.
        arguments: The script's own.
        environment: Variables before it.
        num_processes: That a launcher starts; None: it is not said.
    """

    script: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    num_processes: int | None


class RankPeak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one process took.

    Attributes:
        rank: Its number in the world.
        words: What it does.
        simulated_peak_allocated_bytes: Of live tensors, as ``torch.cuda`` counts blocks.
        simulated_peak_reserved_bytes: What the allocator held at most, by its replay.
        fits: Whether the card has room for that.
        capacity_bytes: What the allocator can have there.
        unknown_ops: Operations whose kernels may take memory that nobody knows here.
        assumptions: What the run rests on.
    """

    rank: int
    words: str
    simulated_peak_allocated_bytes: int
    simulated_peak_reserved_bytes: int
    fits: bool
    capacity_bytes: int
    unknown_ops: tuple[str, ...]
    assumptions: tuple[str, ...]
