"""Rows of evidence on groups of processes."""

import msgspec
from cases import Case

from brimful.values.results import Collective


class RankRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process of a group: what it took, and what the simulation of its rank says.

    Attributes:
        case: What was run.
        rank: Which process.
        simulated_peak_allocated_bytes: Second rung, of this rank.
        measured_peak_allocated_bytes: Of this process.
        peak_error: Signed, relative to measured.
        simulated_collectives: Of a step, by kind; second rung, of this rank.
        measured_collectives: Of the third step of this process.
    """

    case: Case
    rank: int
    simulated_peak_allocated_bytes: int
    measured_peak_allocated_bytes: int
    peak_error: float
    simulated_collectives: tuple[Collective, ...]
    measured_collectives: tuple[Collective, ...]


class RoutingRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One process of a group with parted experts, some of which tokens were made to prefer.

    Attributes:
        case: What was run.
        rank: Which process.
        planted_block: Where; None: nothing was planted.
        planted_experts: Which.
        planted_share: Part of the tokens that chose them.
        received: Rows that its experts got when they got most, [sparse blocks][passes].
        troubles: What was found, and in which block.
        alarms: What was said.
        simulated_peak_allocated_bytes: Second rung, of this rank with these rows.
        simulated_balanced_bytes: Likewise with balanced routing.
        measured_peak_allocated_bytes: Of this process.
        peak_error: Signed, relative to measured.
    """

    case: Case
    rank: int
    planted_block: int | None
    planted_experts: tuple[int, ...]
    planted_share: float
    received: tuple[tuple[int, ...], ...]
    troubles: tuple[str, ...]
    alarms: tuple[str, ...]
    simulated_peak_allocated_bytes: int
    simulated_balanced_bytes: int
    measured_peak_allocated_bytes: int
    peak_error: float


class BubbleRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline whose stages were slowed down, beside the replay of its schedule.

    Attributes:
        case: What was run.
        slowed_s: Seconds of one micro-batch's forward and backward on each device.
        message_s: What a message took beforehand, which the replay is told.
        predicted_bubble_share: Idle share of the devices' time; first rung.
        measured_bubble_share: Likewise, of real processes.
        share_error: Signed, relative to measured.
        predicted_step_s: Until the last device is done; first rung.
        measured_step_s: Likewise, of real processes.
        has_same_order: Whether every device did what the replay says, in its order.
    """

    case: Case
    slowed_s: tuple[tuple[float, float], ...]
    message_s: float
    predicted_bubble_share: float
    measured_bubble_share: float
    share_error: float
    predicted_step_s: float
    measured_step_s: float
    has_same_order: bool


class ReshardRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint of one layout that another went on from, beside the one that was not stopped.

    Attributes:
        case: What saved it.
        then: What loaded it.
        num_steps: Steps after it that were compared.
        loss_error: Largest difference of a step's losses, relative to the run that went on.
        norm_error: Likewise, of gradient norms.
    """

    case: Case
    then: Case
    num_steps: int
    loss_error: float
    norm_error: float


class LostRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process of a group that was killed, and where the group went on.

    Attributes:
        rank: Whose process.
        killed_at_step: Last step whose row had been written.
        newest_checkpoint: Step of the newest whole checkpoint at that moment; 0: none.
        resumed_at_step: First step that the group repeated or did next.
        num_lost: Steps that had to be done again.
    """

    rank: int
    killed_at_step: int
    newest_checkpoint: int
    resumed_at_step: int
    num_lost: int
