"""The optimizer's state before the first step, as the first update would make it.

torch makes it lazily, in the middle of the first update: a run that has no room for it would find
out when some parameters are updated and others not. Made before the first forward pass, every step
looks like the second one, and whatever cannot be had is asked for while nothing has changed yet.

What it is the optimizer's record says. DeepSpeed's engine still makes it in the first update.
"""

from collections.abc import Callable
from functools import partial

import torch

from brimful.build.early_update import EarlyUpdate
from brimful.build.offload import HostOptimizer, rule_of
from brimful.build.optimizers.base import HIDDEN, first_state
from brimful.build.phases import phase
from brimful.build.precision.masters import MasterWeights
from brimful.build.program import Program, own_optimizer
from brimful.cost.update import Updater, settings_of
from brimful.techniques.optimizers import OPTIMIZERS, Updated

STATE = "state"
"""The phase in which it is made."""
Make = Callable[..., dict[str, torch.Tensor]]
"""Makes the state of one parameter (``first_state``)."""


def make_state(program: Program) -> None:
    """Make the state of every parameter that trains, unless there is some already.

    ``program``: built, and about to take a step; its first one, or one after a checkpoint was
    loaded, which brings the state.
    """
    optimizer = own_optimizer(program)
    is_there, job = any(optimizer.state.values()), program.job
    state = OPTIMIZERS[job.optimizer].state
    settings = settings_of(job, Updater(program.kernels))
    keeps_any = isinstance(rule_of(optimizer), MasterWeights) or state(Updated(()), settings)
    if is_there or program.strategy.engine == "deepspeed" or not keeps_any:
        return
    with phase(STATE, program):
        try:
            make = partial(first_state, state, settings=settings)
            _fill(optimizer, make, early=program.early, device=program.device)
        except BaseException:
            optimizer.state.clear()  # all of it or nothing: a later try begins anew
            raise


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def _fill(
    optimizer: torch.optim.Optimizer,
    make: Make,
    *,
    early: EarlyUpdate | None = None,
    device: torch.device | None = None,
) -> None:
    if isinstance(optimizer, HostOptimizer | MasterWeights):
        optimizer.make_state(partial(_fill, make=make))
        return
    away = frozenset() if early is None else early.away
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            where = _stand_in(parameter, device) if parameter in away else parameter
            state = make(where, is_hidden=group.get(HIDDEN, False))
            if early is not None and parameter in away:
                state = early.kept(state)
            if state:
                optimizer.state[parameter].update(state)


def _stand_in(parameter: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """Return a tensor of a parameter's shape and type on another device, without its memory."""
    return torch.empty((), dtype=parameter.dtype, device=device).expand(parameter.shape)
