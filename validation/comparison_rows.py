"""Rows of the parts that compare ways of training: cheaper with plain, ours with a peer's."""

from typing import Literal

import msgspec
from cases import Case

Purpose = Literal["rate", "compared"]
Settings = Literal["same", "best"]


class QualityRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fine-tuning run; its job's weights are the start, which any machine makes for itself.

    Attributes:
        case: What was run, its ``weights`` left out.
        way: How it was trained, e.g. ``QLoRA``.
        reference: The plain way that it is compared with; its own name where it is one.
        purpose: Whether it chose a learning rate or is part of the comparison.
        start: Of the SHA-256 of the start's weights.
        start_loss: Held-out loss of the start, in nats per token.
        heldout_loss: The same after the last step.
        gap: Of ``heldout_loss`` to that of the reference with the same seed, signed, relative;
            None for a reference.
        wall_s: Of the run.
    """

    case: Case
    way: str
    reference: str
    purpose: Purpose
    start: str
    start_loss: float
    heldout_loss: float
    gap: float | None
    wall_s: float


class PeerTry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One setting of a peer's grid.

    Attributes:
        micro_batch: Sequences per forward pass.
        checkpointing: Whether it recomputes activations.
        measured_peak_bytes: Peak of a metered run.
        tokens_per_s: Of a run that was timed; None where the peak is above the limit.
    """

    micro_batch: int
    checkpointing: bool
    measured_peak_bytes: int
    tokens_per_s: float | None


class PeerRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Our trainer beside a peer's, in pairs of runs that alternate who comes first.

    Attributes:
        case: What was run here.
        settings: ``same``: both the same settings. ``best``: under one limit of memory, our plan
            and the fastest of the peer's grid.
        peer: The peer's settings, in words.
        limit_bytes: The limit; None where there was none.
        num_threads: Of each run.
        tokens_per_s: Ours, a run each: tokens of a step by the median of the steps after the
            first two.
        peer_tokens_per_s: The peer's, in the same order.
        speed_ratio: Ours to the peer's, median of the pairs.
        measured_peak_bytes: Peak of live bytes in the first steps, of the profiler's allocation
            events.
        peer_peak_bytes: The peer's, by the same instrument.
        peak_ratio: Ours to the peer's.
        process_bytes: Largest resident size of our process, everything in it.
        peer_process_bytes: The peer's.
        loss_error: Largest difference of a step's losses, relative to the peer's.
        norm_error: Largest difference of a step's gradient norms, relative to the peer's.
        others_load: Share of the machine's CPU that other programs used meanwhile, 0 to 1.
        grid: The peer's settings that were tried.
    """

    case: Case
    settings: Settings
    peer: str
    limit_bytes: int | None
    num_threads: int
    tokens_per_s: tuple[float, ...]
    peer_tokens_per_s: tuple[float, ...]
    speed_ratio: float
    measured_peak_bytes: int
    peer_peak_bytes: int
    peak_ratio: float
    process_bytes: int
    peer_process_bytes: int
    loss_error: float
    norm_error: float
    others_load: float
    grid: tuple[PeerTry, ...]
