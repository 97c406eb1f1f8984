"""The optimizer's state before the first step, as the first update would make it.

torch makes it lazily, in the middle of the first update: a run that has no room for it would find
out when some parameters are updated and others not. Made before the first forward pass, every step
looks like the second one, and whatever cannot be had is asked for while nothing has changed yet.

Rules that are not listed, and DeepSpeed's engine, still make theirs in the first update.
"""

from collections.abc import Callable
from typing import Any

import torch

from brimful.build.early_update import EarlyUpdate
from brimful.build.offload import HostOptimizer
from brimful.build.optimizers.adamw_8bit import AdamW8bit, initial_state
from brimful.build.optimizers.adamw_low_bit import LowBitAdamW
from brimful.build.optimizers.base import Group
from brimful.build.phases import phase
from brimful.build.precision.masters import MasterWeights
from brimful.build.program import Program, own_optimizer

STATE = "state"
"""The phase in which it is made."""
State = dict[str, Any]


def make_state(program: Program) -> None:
    """Make the state of every parameter that trains, unless there is some already.

    Args:
        program: Built, and about to take a step; its first one, or one after a checkpoint was
            loaded, which brings the state.
    """
    optimizer = own_optimizer(program)
    is_there = any(optimizer.state.values())
    if is_there or program.strategy.engine == "deepspeed" or not _keeps_any(optimizer):
        return
    with phase(STATE, program):
        try:
            _fill(optimizer, early=program.early, device=program.device)
        except BaseException:
            optimizer.state.clear()  # all of it or nothing: a later try begins anew
            raise


def _keeps_any(optimizer: torch.optim.Optimizer) -> bool:
    if isinstance(optimizer, HostOptimizer):
        return _keeps_any(optimizer.inner)
    if isinstance(optimizer, MasterWeights):
        return True
    if isinstance(optimizer, LowBitAdamW):
        return True
    momenta = (group.get("momentum", 1) for group in optimizer.param_groups)
    return type(optimizer) in _FIRST and any(momenta)


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def _fill(
    optimizer: torch.optim.Optimizer,
    *,
    early: EarlyUpdate | None = None,
    device: torch.device | None = None,
) -> None:
    if isinstance(optimizer, HostOptimizer | MasterWeights):
        optimizer.make_state(_fill)
        return
    first = _FIRST.get(type(optimizer))
    if isinstance(optimizer, LowBitAdamW):
        first = _of_low_bit(optimizer)
    if first is None:
        return
    away = frozenset() if early is None else early.away
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            where = _stand_in(parameter, device) if parameter in away else parameter
            state = first(where, group)
            if early is not None and parameter in away:
                state = early.kept(state)
            if state:
                optimizer.state[parameter].update(state)


def _stand_in(parameter: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """Return a tensor of a parameter's shape and type on another device, without its memory."""
    return torch.empty((), dtype=parameter.dtype, device=device).expand(parameter.shape)


def _of_adamw(parameter: torch.Tensor, group: Group) -> State:
    """Return moments of zero; ``Adam._init_group`` in ``torch/optim/adam.py``.

    The step count is the device's where one kernel reads it, else the host's.
    """
    is_read_there = group["fused"] or group["capturable"]
    return {
        "step": torch.tensor(0.0, device=parameter.device if is_read_there else None),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


def _of_adamw_8bit(parameter: torch.Tensor, _group: Group) -> State:
    return initial_state(parameter)


def _of_low_bit(optimizer: LowBitAdamW) -> Callable[[torch.Tensor, Group], State]:
    return lambda parameter, _group: optimizer.initial_state(parameter)


def _of_sgd(parameter: torch.Tensor, group: Group) -> State:
    """Return a buffer of zero where there is momentum.

    The first update of ``torch/optim/sgd.py`` copies the gradient; momentum x 0 + gradient is that.
    """
    return {"momentum_buffer": torch.zeros_like(parameter)} if group["momentum"] else {}


def _of_adafactor(parameter: torch.Tensor, _group: Group) -> State:
    """Return means of zero; ``Adafactor._init_group`` in ``torch/optim/_adafactor.py``."""
    state = {"step": torch.tensor(0.0)}
    if parameter.ndim <= 1:
        return {**state, "variance": torch.zeros_like(parameter)}
    rows, columns = list(parameter.shape), list(parameter.shape)
    rows[-1], columns[-2] = 1, 1
    detached = parameter.detach()
    return {
        **state,
        "row_var": detached.new_zeros(rows),
        "col_var": detached.new_zeros(columns),
    }


_FIRST: dict[type[torch.optim.Optimizer], Callable[[torch.Tensor, Group], State]] = {
    torch.optim.AdamW: _of_adamw,
    AdamW8bit: _of_adamw_8bit,
    torch.optim.SGD: _of_sgd,
    torch.optim.Adafactor: _of_adafactor,
}
