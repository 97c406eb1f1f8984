"""Rows of the parts that run cases by DeepSpeed."""

import msgspec
from cases import Case
from deepspeed_cases import SimulatedCase


class DeepSpeedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case that DeepSpeed ran, beside the torch engine's on as many devices, and one device's.

    Attributes:
        case: What was run, with ``engine: deepspeed``.
        peer: The torch engine's case; None where it does not run this one.
        deepspeed_version: Of DeepSpeed.
        num_steps: Steps that were compared.
        loss_error: Largest difference of a step's losses to one device's, relative.
        norm_error: The same of gradient norms before the clip.
        peer_loss_error: Largest difference of a step's losses to the peer's, relative.
        heldout_error: Difference of the loss after the last step to one device's, relative.
        handed_over_error: Difference of the loss of the model that was handed over, loaded by
            another process, to that of the program before; relative.
        is_config_read: Whether DeepSpeed's own parser read the JSON as it was meant.
        measured_peak_bytes: Of each process in the first two steps, loading included.
        peer_peak_bytes: The same of the peer.
        items: What was alive at the peak of the first process, by class.
        peer_items: The same of the peer.
    """

    case: Case
    peer: Case | None
    deepspeed_version: str
    num_steps: int
    loss_error: float
    norm_error: float
    peer_loss_error: float | None
    heldout_error: float
    handed_over_error: float
    is_config_read: bool
    measured_peak_bytes: tuple[int, ...]
    peer_peak_bytes: tuple[int, ...] | None
    items: dict[str, int]
    peer_items: dict[str, int] | None


class DeepSpeedPeak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A script that trains by DeepSpeed, on the pretend GPU and for real.

    Attributes:
        case: What was run.
        deepspeed_version: Of DeepSpeed.
        simulated_peak_allocated_bytes: Of the first process, with the kernels of a CPU.
        measured_peak_allocated_bytes: Of the same process for real, the lowest of some tries.
        peak_error: Signed, relative to measured.
    """

    case: SimulatedCase
    deepspeed_version: str
    simulated_peak_allocated_bytes: int
    measured_peak_allocated_bytes: int
    peak_error: float


class DeepSpeedPrediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What DeepSpeed's engine takes by formula, and by its own code on the pretend GPU.

    Attributes:
        flags: Of ``brimful estimate``, with ``--engine deepspeed``.
        deepspeed_version: Of DeepSpeed.
        rank: Of the process that was run, which holds most.
        predicted_peak_allocated_bytes: By formula.
        simulated_peak_allocated_bytes: By its own code.
        peak_error: Signed, relative to simulated.
    """

    flags: str
    deepspeed_version: str
    rank: int
    predicted_peak_allocated_bytes: int
    simulated_peak_allocated_bytes: int
    peak_error: float
