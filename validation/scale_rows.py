"""Rows of evidence on one job over 1 to 16,384 GPUs, on paper."""

import msgspec
from rehearsal_rows import LayoutCost

from brimful.values.strategy import Strategy


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


class ExpertScaleRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A layout of a model with parted experts on a number of GPUs; nothing was run.

    Attributes:
        model: Of the registry, or of whose layout it is.
        gpus: As ``--gpus`` takes them.
        num_gpus: How many those are.
        fits: Whether every place that was simulated does.
        strategy: The layout.
        simulated_peak_allocated_bytes: Second rung, balanced routing: of the fullest place that was
            simulated.
        least_bytes: What those take on each GPU, whatever the layout; in closed form.
        cost: Where a step's seconds go; ``exchange_s`` are messages to experts.
        ideal_s: What the model's own FLOPs take at the data sheet's rate.
        num_layouts: That were costed.
        num_simulated: That were simulated, the fastest first.
    """

    model: str
    gpus: str
    num_gpus: int
    fits: bool
    strategy: Strategy
    simulated_peak_allocated_bytes: int
    least_bytes: int
    cost: LayoutCost
    ideal_s: float
    num_layouts: int
    num_simulated: int
