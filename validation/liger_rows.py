"""Rows of evidence on Liger's kernels in our own trainer."""

from typing import Literal

import msgspec


class LigerRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program with Liger's kernels, beside what it is compared with.

    Attributes:
        name: The program in one line.
        what: ``trained`` against the plain loop, or ``predicted`` against the simulation.
        cause: Why a drawn strategy has no prediction; empty where it has one, or was trained.
        loss_error: Largest of some steps, relative; None: not trained.
        norm_error: The same of the gradients' norms.
        predicted_peak_allocated_bytes: First rung; None: not predicted.
        simulated_peak_allocated_bytes: Second rung; None: not compared.
        peak_error: Signed, relative to simulated.
        reserved_error: Of reserved bytes on a card without end, both replayed; signed likewise.
    """

    name: str
    what: Literal["trained", "predicted"]
    cause: str = ""
    loss_error: float | None = None
    norm_error: float | None = None
    predicted_peak_allocated_bytes: int | None = None
    simulated_peak_allocated_bytes: int | None = None
    peak_error: float | None = None
    reserved_error: float | None = None
