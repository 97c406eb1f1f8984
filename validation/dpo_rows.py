"""Rows of evidence on preferences: our loss beside that of TRL."""

import msgspec
from cases import Case


class DpoRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One loss over the same pairs, weights and reference, by both.

    Attributes:
        case: What was run; its strategy says where our reference is.
        trl_version: Which TRL.
        trl_loss: Of its ``DPOTrainer``: ``sigmoid``; with label smoothing, which that ignores,
            ``aot`` of one pair after the other.
        trl_norm: Global norm of its gradients.
        loss: Ours.
        norm: Ours.
        loss_error: Signed, relative to TRL's.
        norm_error: Likewise.
    """

    case: Case
    trl_version: str
    trl_loss: float
    trl_norm: float
    loss: float
    norm: float
    loss_error: float
    norm_error: float
