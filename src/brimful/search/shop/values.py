"""What a market holds, as values: what can be had, what it costs, what was left out and why."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from brimful.cost.money import Prices
from brimful.hardware.cluster import Cluster
from brimful.values.job import Job, Precision
from brimful.values.plan import Band
from brimful.values.strategy import Attention, Strategy

SHOP_SCHEMA = "brimful.shop/1"
DAY_S = 86400.0


class Limits(NamedTuple):
    """What the user asks for; None: anything.

    Attributes:
        deadline_s: Seconds that the run may take.
        budget_usd: Dollars that it may cost.
    """

    deadline_s: float | None = None
    budget_usd: float | None = None

    @property
    def are_none(self) -> bool:
        """Whether nothing is asked that a choice has to meet."""
        return self.deadline_s is None and self.budget_usd is None


class Recipe(NamedTuple):
    """The job and how its model attends, as they run on a kind of GPU."""

    job: Job
    attention: Attention


class Request(NamedTuple):
    """What a market is made for.

    Attributes:
        job: What is trained.
        attention: How the model attends.
        kinds: Names of GPUs.
        prices: Of an hour.
        max_gpus: No more than these.
        max_nodes: No more machines than these, and one where a machine has one GPU; None: any.
        network: Between nodes; empty: that of the maker's own systems.
        usd_per_kwh: Electricity of what is owned; None: unknown.
        owned: What the user owns.
        others: Whether a fused kernel is taken where the attention writes scores out
            (``attending``) and it has a formula.
        limits: What is asked, where it is enough to know what to take, the fastest and what lies
            between; None: the whole frontier.
        every: Whether cells are planned that something else beats.
        fewest: Whether the fewest GPUs of each kind that hold the job are looked for and planned.
        each: Whether the best of each kind is looked for, whatever beats it.
        recipes: Of kinds that cannot run the job or its attention as they are: what is taken there.
        machines: What is compared of the kinds that are named with a number, and nothing else.
    """

    job: Job
    attention: Attention
    kinds: tuple[str, ...]
    prices: Prices
    max_gpus: int
    max_nodes: int | None = None
    network: str = ""
    usd_per_kwh: float | None = None
    owned: tuple[Cluster, ...] = ()
    others: bool = False
    limits: Limits | None = None
    every: bool = False
    fewest: bool = False
    each: bool = False
    recipes: Mapping[str, Recipe] = {}
    machines: tuple[Cluster, ...] = ()

    def on(self, kind: str) -> Recipe:
        """Return what runs on a kind of GPU."""
        return self.recipes.get(kind) or Recipe(self.job, self.attention)


class Option(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many GPUs of one kind, the fastest plan that fits them, and what the run costs there.

    Attributes:
        gpus: As it is typed: ``8xh100-80gb``.
        kind: The GPU.
        num_gpus: How many.
        precision: The recipe there.
        strategy: How the job runs there.
        predicted_peak_bytes: Of one device.
        usable_bytes: What tensors may take of it.
        predicted_host_bytes: What offloading needs of a node's host; 0: nothing is offloaded.
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
    precision: Precision
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
    predicted_host_bytes: int = 0


class Alone(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU of a kind, by itself.

    Attributes:
        kind: The GPU.
        usd_per_gpu_hour: Its rent; None: unknown.
        fits: Whether the strategy with the smallest peak holds on one, by its replay.
        predicted_peak_bytes: That peak, of live tensors; None where no formula says, or
            it was not looked for.
        usable_bytes: What tensors may take.
        fewest: How many hold the job, at least, of the numbers that are compared; None: none does,
            or fewer of another kind do and it was not looked for.
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
    fewest: int | None = None


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
        options: What holds by its replay, cheapest first; dominated ones only as far as they were
            looked at.
        frontier: Of those, what no other beats in both days and dollars, slowest first.
        likely: What might be on the frontier too, by live bytes alone: what holds by its
            replay may be slower. Empty where the whole frontier was asked for.
        alone: Every kind, one GPU of it.
        fewest: The fewest GPUs of each kind that hold the job, where that was asked for.
        by_kind: What each kind does best of what was asked, where that was asked for; of one that
            was named with a number, each of these.
        fewer: Of these kinds the fewest that do what was asked for as good as the same money.
        smallest: The fewest of any that hold it within what was asked, as far as was looked.
        second: The best of another kind than what is taken, where not each kind's is asked for.
        one_node: The best of one machine that does, where what is taken has several.
        dropped: Numbers of GPUs that are not among the options.
        owned: What the user owns, as far as it fits.
        unfit: The rest of it, and why.
        num_cells: Kinds times numbers of GPUs.
        num_planned: How many of them were searched.
        machines: What was named with a number.
    """

    options: tuple[Option, ...]
    frontier: tuple[Option, ...]
    alone: tuple[Alone, ...]
    fewest: tuple[Option, ...] = ()
    by_kind: tuple[Option, ...] = ()
    fewer: tuple[Option, ...] = ()
    smallest: Option | None = None
    second: Option | None = None
    one_node: Option | None = None
    likely: tuple[Option, ...] = ()
    dropped: tuple[Dropped, ...]
    owned: tuple[Option, ...]
    unfit: tuple[Dropped, ...]
    num_cells: int
    num_planned: int
    machines: tuple[str, ...] = ()
