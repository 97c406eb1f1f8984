"""What a market holds, as values: what can be had, what it costs, what was left out and why."""

from typing import NamedTuple

import msgspec

from brimful.plan import Band
from brimful.strategy import Strategy

SHOP_SCHEMA = "brimful.shop/1"
DAY_S = 86400.0


class Option(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many GPUs of one kind, the fastest plan that fits them, and what the run costs there.

    Attributes:
        gpus: As it is typed: ``8xh100-80gb``.
        kind: The GPU.
        num_gpus: How many.
        strategy: How the job runs there.
        predicted_peak_bytes: Of one device.
        usable_bytes: What tensors may take of it.
        predicted_step_s: Seconds of an optimizer step.
        predicted_days: Of the whole run, without loading, evaluating and saving.
        predicted_days_band: The truth is expected between the two.
        tokens_per_s: Of all devices together.
        usd_per_gpu_hour: The rent; None for what the user owns.
        predicted_usd: Rent of the whole run, or electricity of what is owned; None: unknown.
        predicted_usd_band: By the band of the days.
        predicted_energy_kwh: Of the GPUs, with what a data centre takes for them where it is
            rented; None: the power limit is unknown.
    """

    gpus: str
    kind: str
    num_gpus: int
    strategy: Strategy
    predicted_peak_bytes: int
    usable_bytes: int
    predicted_step_s: float
    predicted_days: float
    predicted_days_band: Band
    tokens_per_s: float
    usd_per_gpu_hour: float | None
    predicted_usd: float | None
    predicted_usd_band: Band | None
    predicted_energy_kwh: float | None


class Alone(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU of a kind, by itself.

    Attributes:
        kind: The GPU.
        usd_per_gpu_hour: Its rent; None: unknown.
        fits: Whether any strategy fits on one.
        predicted_peak_bytes: The smallest peak of any; None where no formula says.
        usable_bytes: What tensors may take.
        at_best_usd: Less than this the run costs on no number of these; None: unknown.
        why_not: Why it is not compared with others; empty where it is.
    """

    kind: str
    usd_per_gpu_hour: float | None
    fits: bool
    predicted_peak_bytes: int | None
    usable_bytes: int
    at_best_usd: float | None
    why_not: str


class Dropped(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number of GPUs that is beaten, or cannot run the job.

    Attributes:
        gpus: As it is typed.
        why: Says which.
    """

    gpus: str
    why: str


class Market(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that was looked at.

    Attributes:
        options: What fits and was planned, cheapest first; dominated ones only as far as they were
            needed.
        frontier: Of those, what no other beats in both days and dollars, slowest first.
        alone: Every kind, one GPU of it.
        dropped: Numbers of GPUs that are not among the options.
        owned: What the user owns, as far as it fits.
        unfit: The rest of it, and why.
        num_cells: Kinds times numbers of GPUs.
        num_planned: How many of them were searched.
    """

    options: tuple[Option, ...]
    frontier: tuple[Option, ...]
    alone: tuple[Alone, ...]
    dropped: tuple[Dropped, ...]
    owned: tuple[Option, ...]
    unfit: tuple[Dropped, ...]
    num_cells: int
    num_planned: int


class Limits(NamedTuple):
    """What the user asks for; None: anything.

    Attributes:
        deadline_s: Seconds that the run may take.
        budget_usd: Dollars that it may cost.
    """

    deadline_s: float | None = None
    budget_usd: float | None = None
