"""Rows of evidence on one job over 1 to 16,384 GPUs, on paper."""

import msgspec
from rehearsal_rows import LayoutCost

from brimful.strategy import Strategy


class ScaleRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fastest plan of a model on a number of GPUs; first rung, nothing was run.

    Attributes:
        model: Of the registry.
        num_gpus: H100 SXM, 8 in a node from 8 on.
        fits: Whether any plan does; where none does, the one with the smallest peak is in the row.
        strategy: The plan.
        predicted_peak_allocated_bytes: Of its fullest GPU.
        cost: Where a step's seconds go.
        ideal_s: What the model's own FLOPs take at the data sheet's rate.
    """

    model: str
    num_gpus: int
    fits: bool
    strategy: Strategy
    predicted_peak_allocated_bytes: int
    cost: LayoutCost
    ideal_s: float


class MixtureCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the seconds of a step go, of work that was counted on tapes; first rung.

    Attributes:
        work_s: Products, attention, memory, launching, of all micro-batches.
        again_s: Of that, what checkpointing computes a second time.
        experts_s: Rows on their way to experts and back, which everybody waits for.
        exposed_s: Gathering parameters and reducing gradients, beyond what runs beside the rest.
        update_s: Clip and optimizer.
        step_s: All of it.
    """

    work_s: float
    again_s: float
    experts_s: float
    exposed_s: float
    update_s: float
    step_s: float


class MixtureScaleRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fastest layout of a mixture on a number of GPUs that fits; nothing was run.

    Attributes:
        model: Of the registry.
        num_gpus: H100 SXM, 8 in a node.
        num_layouts: That were costed.
        num_simulated: Of which so many were simulated, the fastest first, until one fitted.
        strategy: The layout; None: none of them fits.
        simulated_peak_allocated_bytes: Its peak; second rung, tokens routed evenly.
        simulated_experts_bytes: That it sends to experts and back in a step; second rung.
        predicted_experts_bytes: The same as it was costed.
        predicted_cost: Where a step's seconds go.
        ideal_s: What the model's own FLOPs take at the data sheet's rate.
    """

    model: str
    num_gpus: int
    num_layouts: int
    num_simulated: int
    strategy: Strategy | None
    simulated_peak_allocated_bytes: int | None
    simulated_experts_bytes: int | None
    predicted_experts_bytes: int | None
    predicted_cost: MixtureCost | None
    ideal_s: float
