"""Rows of evidence on the largest model that one GPU and its host train whole."""

from typing import Literal

import msgspec
from cases import Case


class MoonshotRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder every parameter of which is trained on one device, simulated.

    Attributes:
        kind: ``largest``: the deepest of its shape that fits. ``known``: a model of the registry,
            with the fewest blocks on the host.
        gpu: Of the table of GPUs.
        host_bytes: Memory of its host.
        host_limit_bytes: Of it, what may be pinned; the rest is for processes and the system.
        case: The job and strategy.
        num_parameters: All of which train.
        simulated_peak_allocated_bytes: Of the device; second rung.
        simulated_peak_reserved_bytes: Of the device, by the replay of the caching allocator.
        capacity_bytes: What the allocator may take.
        simulated_peak_host_bytes: Kept on the host.
        simulated_host_block_bytes: The same in the blocks that PyTorch pins, powers of two.
        outcome: Of the replay at capacity.
        fits: Whether both memories do.
        limit: Why not one block more, or why it does not fit.
        predicted_step_s: Work with SGD's update, and the copies beyond it; None: no formula.
        simulate_s: How long the simulation took.
    """

    kind: Literal["largest", "known"]
    gpu: str
    host_bytes: int
    host_limit_bytes: int
    case: Case
    num_parameters: int
    simulated_peak_allocated_bytes: int
    simulated_peak_reserved_bytes: int
    capacity_bytes: int
    simulated_peak_host_bytes: int
    simulated_host_block_bytes: int
    outcome: str
    fits: bool
    limit: str
    predicted_step_s: float | None
    simulate_s: float


class RehearsedMoonshot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same way of training, small enough for a CPU, run for real.

    Attributes:
        case: The job and strategy.
        num_steps: That were run.
        num_tensors: Of the model.
        num_changed: Of them, those that training has changed.
        first_loss: Of the first step, in nats.
        last_loss: Of the last one.
        simulated_peak_allocated_bytes: Of the device; second rung.
        measured_peak_allocated_bytes: Of the device.
        simulated_peak_host_bytes: On the host; second rung.
        measured_peak_host_bytes: On the host.
    """

    case: Case
    num_steps: int
    num_tensors: int
    num_changed: int
    first_loss: float
    last_loss: float
    simulated_peak_allocated_bytes: int
    measured_peak_allocated_bytes: int
    simulated_peak_host_bytes: int
    measured_peak_host_bytes: int


class MoonshotRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the file: a model that was simulated, or one that was run; the other is None."""

    case: Case
    simulated: MoonshotRow | None
    run: RehearsedMoonshot | None


def rule_words(case: Case) -> str:
    """Name a row's update rule, and that its state travels, in a few words."""
    travels = case.strategy.offload.startswith("optimizer")
    return f"{case.job.optimizer}, state travels" if travels else case.job.optimizer
