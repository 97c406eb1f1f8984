"""Rows of evidence on groups of processes."""

import msgspec
from cases import Case

from brimful.rungs import Collective


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
