"""A program: model, loss and optimizer ready to step."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from brimful.build.deepspeed import held
from brimful.build.early_update import EarlyUpdate
from brimful.build.offload import HostOptimizer, Offloaded
from brimful.build.parallel.flat import plain_path, unwrapped
from brimful.build.parallel.pipeline import Pipeline
from brimful.build.precision.loss_scaling import LossScaler
from brimful.values.job import Job
from brimful.values.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Everything that a training step touches; ``scaler`` is None where no loss is scaled.

    ``root`` is what a micro-batch is called through: it holds the model and nothing else. ``mesh``
    is None on one device. ``reference`` is the second model of a preference task, where it has one.
    Where the model is cut into stages ``pipeline`` runs a step's micro-batches through this
    device's, and ``root`` is a list of them. ``offloaded`` is what of its blocks is on the host,
    ``early`` what updates inside the backward pass. ``kernels`` are a CPU's or CUDA's, of which a
    pretend device has either.
    """

    job: Job
    strategy: Strategy
    root: nn.Module
    model: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: LossScaler | None
    device: torch.device
    mesh: DeviceMesh | None = None
    reference: nn.Module | None = None
    pipeline: Pipeline | None = None
    early: EarlyUpdate | None = None
    offloaded: Offloaded = Offloaded(None, None)  # noqa: RUF009 - frozen, of nothing
    kernels: str = "cpu"


def parameters(program: Program) -> list[torch.Tensor]:
    """List the parameters as this device holds them."""
    if program.strategy.engine == "deepspeed":
        return held.parameters(program.model)
    return list(program.model.parameters())


def named_parameters(program: Program) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the parameters as this device holds them, under their names in the whole model.

    A copy of a tied weight at the end of a pipeline has the embedding's name.
    """
    tied = None if program.pipeline is None else program.pipeline.tied
    for name, parameter in program.model.named_parameters():
        is_copy = tied is not None and parameter is tied.weight
        yield tied.name if tied is not None and is_copy else plain_path(name), parameter


def named_state(program: Program) -> dict[str, torch.Tensor]:
    """Name all that a model keeps, buffers that persist too; what is tied under all its names."""
    with unwrapped(program.model):
        named: dict[str, torch.Tensor] = program.model.state_dict(keep_vars=True)
    return named


def gradients(program: Program) -> list[torch.Tensor]:
    """List the gradients that exist now."""
    if program.strategy.engine == "deepspeed":
        return held.gradients(program.root, program.model)
    if isinstance(program.optimizer, HostOptimizer):
        homes = program.optimizer.homes.values()
        return [home.grad for home in homes if home.grad is not None]
    return [p.grad for p in program.model.parameters() if p.grad is not None]


def own_optimizer(program: Program) -> torch.optim.Optimizer:
    """Return the optimizer that holds this device's state: under ZeRO-1 that of its part."""
    optimizer: torch.optim.Optimizer = getattr(program.optimizer, "optim", program.optimizer)
    return optimizer


def state_tensors(program: Program) -> list[torch.Tensor]:
    """List the tensors of the optimizer's state that exist now."""
    states = own_optimizer(program).state.values()
    found = [x for state in states for x in state.values() if isinstance(x, torch.Tensor)]
    if program.strategy.engine == "deepspeed":
        return [*held.flat_pieces(program.root), *found]
    return found
