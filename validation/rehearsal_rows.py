"""Rows of evidence on full-size layouts that were published, rehearsed without a GPU."""

import msgspec
from cases import Case

from brimful.values.plan import MemoryItem
from brimful.values.strategy import Strategy


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was written about a layout.

    Attributes:
        source: Where.
        says: The layout, as it was written.
        tokens_per_s: Of one GPU; None: not said.
        mfu: Model FLOPs utilisation, 0 to 1; None: not said.
        peak_gib: Of the fullest GPU, reserved; None: not said.
        chosen: What it does not say and what was taken instead, or what is run differently here.
    """

    source: str
    says: str
    tokens_per_s: float | None
    mfu: float | None
    peak_gib: float | None
    chosen: str


class Place(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device of the row, simulated.

    Attributes:
        device: Its place in the row, from 0.
        num_blocks: That it has.
        simulated_peak_allocated_bytes: Second rung.
        items: What is alive at that peak, by class.
        outcome: Of the caching allocator's replay at capacity.
        simulate_s: How long it took.
    """

    device: int
    num_blocks: int
    simulated_peak_allocated_bytes: int
    items: tuple[MemoryItem, ...]
    outcome: str
    simulate_s: float


class LayoutCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the seconds of a step go, on the device that works longest; first rung.

    Attributes:
        work_s: Products, attention, memory, launching, of all micro-batches.
        again_s: Of that, what checkpointing computes a second time.
        exchange_s: Messages of tensor parallelism, which everybody waits for.
        bubble_s: Waiting for other stages.
        exposed_s: Gathering parameters and reducing gradients, beyond what runs beside the rest.
        update_s: Clip and optimizer.
        bubble_share: The idle share of all devices' time while micro-batches run, 0 to 1.
        step_s: Their sum, ``again_s`` apart.
        tokens_per_s: Of one GPU.
        mfu: Model FLOPs utilisation, 0 to 1; None where the model's FLOPs are unknown.
    """

    work_s: float
    again_s: float
    exchange_s: float
    bubble_s: float
    exposed_s: float
    update_s: float
    bubble_share: float
    step_s: float
    tokens_per_s: float
    mfu: float | None


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A layout, simulated and costed.

    Attributes:
        case: What is run.
        num_classes: Classes of devices that differ in blocks or in micro-batches kept.
        places: The first, a middle one and the last; of one stage the only one.
        cost: Its time.
        fits: Whether every device that was simulated fits.
    """

    case: Case
    num_classes: int
    places: tuple[Place, ...]
    cost: LayoutCost
    fits: bool


class RehearsalRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published layout beside our plan for the same job on the same GPUs.

    Attributes:
        name: Short.
        gpus: As ``--gpus`` takes them.
        case: The published layout; the same as ``theirs.case``.
        published: What was written.
        theirs: The published layout.
        ours: The plan that the search returns.
        searched: Strategies that the search evaluated.
        predicted_peak_allocated_bytes: Of our plan; first rung.
    """

    name: str
    gpus: str
    case: Case
    published: Published
    theirs: Rehearsed
    ours: Rehearsed
    searched: int
    predicted_peak_allocated_bytes: int


class MixturePlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device of a mixture's row, simulated.

    Attributes:
        device: Its place in the row, from 0.
        simulated_peak_allocated_bytes: Second rung.
        items: What is alive at that peak, by class.
        outcome: Of the caching allocator's replay at capacity.
        all_to_all_bytes: That it sends to the devices with other experts in a step.
        simulate_s: How long it took.
    """

    device: int
    simulated_peak_allocated_bytes: int
    items: tuple[MemoryItem, ...]
    outcome: str
    all_to_all_bytes: int
    simulate_s: float


class SearchedPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan that the search returns.

    Attributes:
        strategy: How it runs.
        predicted_peak_allocated_bytes: First rung.
        predicted_step_s: First rung; None: unknown.
        simulated_peak_allocated_bytes: Second rung.
    """

    strategy: Strategy
    predicted_peak_allocated_bytes: int
    predicted_step_s: float | None
    simulated_peak_allocated_bytes: int


class MixtureRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A layout of a mixture of experts at full size.

    Attributes:
        name: Short.
        gpus: As ``--gpus`` takes them.
        case: The layout.
        source: Where it was written.
        says: The layout, as it was written.
        chosen: What is not said there, or run differently here.
        worst_share: Rows that a device gets at worst, for each that it sends.
        balanced: The first device of the row, a middle one and the last; of one stage the only one.
        worst: The same with every token preferring the device's experts.
        ours: What the search returns for the same job and GPUs, which parts no experts; None: no
            formula covers the model.
    """

    name: str
    gpus: str
    case: Case
    source: str
    says: str
    chosen: str
    worst_share: float
    balanced: tuple[MixturePlace, ...]
    worst: tuple[MixturePlace, ...]
    ours: SearchedPlan | None
