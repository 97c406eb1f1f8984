"""Rows of evidence on plans that hold: reserved bytes, plans near capacity, small spaces."""

import msgspec
from cases import Case

from brimful.values.plan import Word


class ReservedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the caching allocator reserves of a job by formulas, and by its simulation.

    Both sequences of requests are replayed on a card without end; of a pipeline the device that
    reserves most counts.

    Attributes:
        case: What was run.
        predicted_bytes: First rung, with PyTorch's settings.
        simulated_bytes: Second rung, alike.
        reserved_error: Signed, relative to simulated.
        expandable_error: The same with ``expandable_segments``.
    """

    case: Case
    predicted_bytes: int
    simulated_bytes: int
    reserved_error: float
    expandable_error: float


class PlannedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to ``brimful plan``, its answer by replay alone, and its simulation at capacity.

    Attributes:
        flags: What was asked.
        predicted: What the replay says; None: there is none, or no plan.
        simulated: What the simulation of the plan says; None: it was not simulated.
        holds: Whether that completes at capacity without a retry.
        capacity_share: Held by prediction, of the capacity; 0 where nothing is predicted.
        reserved_error: Predicted against simulated reserved bytes, signed; None as above.
    """

    flags: tuple[str, ...]
    predicted: Word | None = None
    simulated: Word | None = None
    holds: bool = False
    capacity_share: float = 0.0
    reserved_error: float | None = None


class SpaceRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A small space, every strategy of which was simulated, and the plan chosen by replay.

    Attributes:
        flags: What was asked.
        num_strategies: In its space.
        num_holding: Of them, those that hold when they are simulated.
        predicted: What the plan says of itself.
        slower: Its step over that of the fastest that holds; None: none does.
        holds: Whether it is among those that hold.
    """

    flags: tuple[str, ...]
    num_strategies: int
    num_holding: int
    predicted: Word | None
    slower: float | None
    holds: bool
