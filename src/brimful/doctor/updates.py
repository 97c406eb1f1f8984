"""Whether an optimizer's updates arrive: what a step changes, and what its format loses.

A copy of every parameter would double the memory, so that of large ones numbers at even distances
are looked at.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from brimful.build.own import own_memory
from brimful.doctor.formats import FORMATS, SIXTEEN_BITS, FormatName
from brimful.doctor.records import Lost

SAMPLE = 2**16
"""Numbers of a parameter that are looked at, at most."""
MASTER = "master"
"""Where an optimizer's state may hold the fp32 copy that it updates (``MasterWeights``)."""


class _Before(NamedTuple):
    weight: torch.Tensor
    has_gradient: torch.Tensor
    is_master: bool


class Updates:
    """Looks at parameters before and after one optimizer step."""

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]) -> None:
        """Look at the parameters that the optimizer holds, by name."""
        self._optimizer = optimizer
        self._names = names
        self._before: dict[torch.Tensor, _Before] = {}

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
    def before(self) -> None:
        """Take note: the gradients are what they will be stepped by."""
        for parameter in self._moving():
            wide = self._updated(parameter)
            self._before[parameter] = _Before(
                weight=sample(wide).clone(),
                has_gradient=sample(parameter.grad) != 0,
                is_master=wide is not parameter,
            )

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
    def after(self, step: int) -> list[Lost]:
        """Compare; the masters that the step has made have no before, and are left out."""
        found = []
        for parameter, before in self._before.items():
            wide = self._updated(parameter)
            if (wide is not parameter) == before.is_master:
                found.append(self._compare(parameter, before, sample(wide), step))
        self._before = {}
        return found

    def _moving(self) -> Iterator[torch.Tensor]:
        """List the parameters that a rate above 0 and a gradient move."""
        for group in self._optimizer.param_groups:
            if group.get("lr", 1.0):
                yield from (p for p in group["params"] if p.grad is not None and p in self._names)

    def _updated(self, parameter: torch.Tensor) -> torch.Tensor:
        state = getattr(self._optimizer, "optim", self._optimizer).state.get(parameter, {})
        master = state.get(MASTER)
        return master if isinstance(master, torch.Tensor) else parameter

    def _compare(
        self, parameter: torch.Tensor, before: _Before, now: torch.Tensor, step: int
    ) -> Lost:
        update = now.double() - before.weight.double()
        moved = update != 0
        num_lost_in = {name: _num_lost(before.weight, update, moved, name) for name in SIXTEEN_BITS}
        return Lost(
            step=step,
            name=self._names[parameter],
            held=str(now.dtype).removeprefix("torch."),
            num=int(before.has_gradient.sum()),
            num_lost=int((before.has_gradient & ~moved).sum()),
            num_moved=int(moved.sum()),
            num_lost_in=num_lost_in,
            largest=float(update.abs().amax()) if update.numel() else 0.0,
        )


def _num_lost(
    weight: torch.Tensor, update: torch.Tensor, moved: torch.Tensor, name: FormatName
) -> int:
    """Count updates that a format would lose: round(round(weight) + update) = round(weight)."""
    dtype = getattr(torch, FORMATS[name].torch_name)
    narrow = weight.to(dtype).double()
    return int((moved & ((narrow + update).float().to(dtype).double() == narrow)).sum())


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's own numbers, of many ``SAMPLE`` at even distances; a view."""
    flat = own_memory(tensor).detach().reshape(-1)
    return flat[:: -(-flat.numel() // SAMPLE)] if flat.numel() > SAMPLE else flat
