"""What a group of processes is asked to run, and what each tells."""

import msgspec
from cases import Case


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What to run.

    Attributes:
        cases: One after another; all of as many devices as there are processes.
        folder: Where trained models are written, one per case by its number; None: nowhere.
    """

    cases: tuple[Case, ...]
    folder: str | None


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What one process saw of one case.

    Attributes:
        losses: Of every step, of all processes together.
        norms: Gradient norms before the clip; None where the step was skipped.
        heldout: The loss of the first step's samples after the last step.
        peak_bytes: Peak of live bytes in the first two steps, loading included.
        items: What was alive at the peak, by class.
        misread: What DeepSpeed's parser made of the JSON other than was meant; empty where nothing,
            or where the torch engine ran.
    """

    losses: tuple[float, ...]
    norms: tuple[float | None, ...]
    heldout: float
    peak_bytes: int
    items: dict[str, int]
    misread: tuple[str, ...]
