"""How near predictions of published runs come, as values: by family and program, never pooled."""

import msgspec

from brimful.published.rows import Split

MAX_MEDIAN, MAX_P90, MIN_COVERAGE = 0.03, 0.08, 0.9
MAX_SPEED_MEDIAN, MIN_TAU = 0.12, 0.7
MAX_NO = 0.05
"""Bars: errors of allocated bytes and share of figures within a band; errors of speeds, order;
share of runs that ran and are said not to hold."""
NEAR = 0.1
MIN_SWEPT = 3


class Errors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Signed relative errors of a group of runs: predicted less published.

    Attributes:
        family: The collection.
        label: Whose program.
        has_bar: Whether the bar counts for it.
        num_runs: Runs with such a figure.
        num_predicted: Those of them with a prediction.
        median: Of the signed errors; None where there are none, as below.
        median_size: Of the absolute errors.
        p90_size: The smallest size that 90 % of them do not exceed.
        worst: The error that is largest in size.
        worst_id: Whose it is.
        near_share: Share of the predicted runs within ``NEAR``.
    """

    family: str
    label: str
    has_bar: bool
    num_runs: int
    num_predicted: int
    median: float | None
    median_size: float | None
    p90_size: float | None
    worst: float | None
    worst_id: str
    near_share: float | None


class Coverage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many published figures lie within their predicted band.

    Attributes:
        family: The collection.
        label: Whose program.
        has_bar: Whether the bar counts for it.
        figure: ``reserved`` or ``process``.
        split: What its sources were used for.
        num_figures: Figures with a band.
        num_below: Figures below it.
        num_above: Figures above it.
        median_width: Of the bands, relative to the figure.
    """

    family: str
    label: str
    has_bar: bool
    figure: str
    split: Split
    num_figures: int
    num_below: int
    num_above: int
    median_width: float

    @property
    def num_within(self) -> int:
        """Figures within it."""
        return self.num_figures - self.num_below - self.num_above


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether strategies that were swept come out in the measured order.

    Attributes:
        family: The collection.
        label: Whose program.
        num_sweeps: Sets of at least ``MIN_SWEPT`` runs that differ in strategy only.
        num_pairs: Pairs within them that were not equally fast.
        tau: Kendall's: ordered less disordered pairs, over all.
    """

    family: str
    label: str
    num_sweeps: int
    num_pairs: int
    tau: float


class Holds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of published runs, which did run, how many were predicted to hold.

    Attributes:
        family: The collection.
        label: Whose program.
        has_bar: Whether the bar counts for it.
        num_runs: Runs that were replayed.
        num_tight: Those said to hold only if little lies outside the allocator.
        no: Names of those said not to.
    """

    family: str
    label: str
    has_bar: bool
    num_runs: int
    num_tight: int
    no: tuple[str, ...]


class Missing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why runs have no prediction."""

    reason: str
    num_runs: int


class Scoreboard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it.

    Attributes:
        num_runs: Runs that are carried.
        num_predicted: Those of them with a prediction.
        memory: Errors of peak allocated bytes.
        bands: Coverage of reserved and process bytes.
        speeds: Errors of tokens per second.
        orders: Of swept strategies.
        holds: Of runs that were replayed.
        missing: What has no prediction, the most frequent reason first.
    """

    num_runs: int
    num_predicted: int
    memory: tuple[Errors, ...]
    bands: tuple[Coverage, ...]
    speeds: tuple[Errors, ...]
    orders: tuple[Order, ...]
    holds: tuple[Holds, ...]
    missing: tuple[Missing, ...]
