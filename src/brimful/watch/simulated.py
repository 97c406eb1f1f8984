"""Simulating what was watched: a loop's own code and batches, on the pretend GPU."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from brimful import pretend
from brimful.allocator.config import settings_in
from brimful.cost.outside import room_of
from brimful.hardware.cluster import Device
from brimful.hardware.gpus import gpus
from brimful.simulate.capacity import reserve
from brimful.simulate.items import read_simulation
from brimful.values.results import Simulation

if TYPE_CHECKING:
    from brimful.pretend.kernels import Kernels

_ANY_CARD = "h200"
"""What stands for a machine whose card is not in the table, or that has none: only the kernels
decide what is allocated."""


class Simulated(NamedTuple):
    """What came of it.

    Attributes:
        simulation: The second rung, or None.
        why_not: Why there is none; empty where there is one.
    """

    simulation: Simulation | None
    why_not: str


def simulate_loop(train: Callable[[], Any], device: Device) -> Simulated:
    """Run a loop on the pretend GPU.

    Args:
        train: Takes the steps; it puts what it trains on ``cuda``, and returns what shall outlive
            them: a run's model does.
        device: What the run was on: its kernels are imitated.

    Returns:
        The simulation; where the loop does something that the pretend GPU does not serve, why not.
    """
    begun = time.perf_counter()
    card = device.name if device.name in gpus() else _ANY_CARD
    kernels: Kernels = "cuda" if device.kernels == "cuda" else "cpu"
    try:
        with (
            torch.random.fork_rng(enabled=device.kernels == "cpu"),
            pretend.gpu(card, imitate=kernels, says_cuda=True) as run,
        ):
            kept = train()
    except Exception as error:  # noqa: BLE001 - anything may be in a loop, and the run goes on
        return Simulated(None, _first_line(error))
    recording = run.recording()
    del kept
    reserved = None
    if kernels == "cuda":
        settings = settings_in(os.environ)  # those of this very process
        reserved = reserve(recording, allocator=settings, room=room_of(device))
    simulation = read_simulation(
        recording,
        kernels=kernels,
        reserved=reserved,
        simulate_s=time.perf_counter() - begun,
        host=run.recording("cpu"),
    )
    return Simulated(simulation, "")


def _first_line(error: Exception) -> str:
    told = str(error).strip().splitlines()
    return f"{type(error).__name__}: {told[0]}" if told else type(error).__name__
