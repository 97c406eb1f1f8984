"""The optimizer's state of parameters that are on the host: there too, but for their update.

Where parameters are updated inside the backward pass (``early_update``), the state of one is
brought to the device while the one before is updated, and goes home afterwards: as many bytes over
the link, both ways, as the state has. What is one number, a step count say, stays where its rule
made it.
"""

from typing import Any, NamedTuple

import torch

from brimful.build.offload.host import take_like
from brimful.build.offload.lane import Lane
from brimful.values.results import OPTIMIZER_STATE

State = dict[str, Any]


class Brought(NamedTuple):
    """A parameter's state on the device, and what to wait for before it is read."""

    state: State
    events: list[Any]


def travels(value: Any) -> bool:
    """Whether a value of a parameter's state is moved."""
    return isinstance(value, torch.Tensor) and value.numel() > 1


def sent_home(state: State, device: torch.device) -> State:
    """Return a state as it is kept between updates: what travels in memory of the host."""
    return {key: _at_home(value, device) for key, value in state.items()}


def _at_home(value: Any, device: torch.device) -> Any:
    return take_like(OPTIMIZER_STATE, value, device).copy_(value) if travels(value) else value


def bring(lane: Lane, home: State) -> Brought:
    """Begin to copy a state to the device.

    ``home``: as ``sent_home`` returned it.
    """
    here = {
        key: torch.empty_like(value, device=lane.device) if travels(value) else value
        for key, value in home.items()
    }
    events = [lane.copy(here[key], value) for key, value in home.items() if travels(value)]
    return Brought(here, events)


def take_home(lane: Lane, home: State, here: State) -> tuple[list[Any], list[torch.Tensor]]:
    """Begin to copy an updated state home.

    ``home``: what ``bring`` was given; what does not travel is put there at once. Returns what to
    wait for, and what must live until then.
    """
    moved = [key for key, value in here.items() if travels(value)]
    home.update({key: value for key, value in here.items() if key not in moved})
    events = [lane.copy(home[key], here[key]) for key in moved]
    return events, [here[key] for key in moved]
