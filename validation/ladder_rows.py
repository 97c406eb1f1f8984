"""Rows of evidence on runs whose memory ran out."""

import msgspec
from cases import Case

from brimful.values.run_files import TakeoverRow


class LadderRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run whose memory ran out, beside the same run in peace.

    Attributes:
        case: What was to be run.
        place: Where it ran out on purpose, ``forward:2``; ``limit``: a real one, enforced.
        limit_share: Of a limit: its part of the first plan's simulated peak; None: none was.
        takeovers: What failed, and what took over.
        num_steps: That were done in the end.
        loss_error: Largest of all steps, relative to the run in peace.
        heldout_error: Of the held-out loss after the last step, relative.
        weight_error: Of the final weights as a whole: norm of the difference by the norm.
        tensor_error: Largest of a single tensor, likewise. AdamW's first steps are as long for a
            gradient that is mere rounding as for any other.
    """

    case: Case
    place: str
    limit_share: float | None
    takeovers: tuple[TakeoverRow, ...]
    num_steps: int
    loss_error: float
    heldout_error: float
    weight_error: float
    tensor_error: float
