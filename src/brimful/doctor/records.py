"""What the doctor has seen, as values. No torch."""

from typing import Literal

import msgspec

from brimful.doctor.formats import FORMATS, FORMATS_BY_TYPE, Format, FormatName
from brimful.doctor.spectrum import Spectrum, headroom

Kind = Literal["input", "weight", "activation", "output-gradient", "gradient", "update"]
"""What is looked at: what the model (and each norm) is given, parameters before the step, what
modules return, the gradient that arrives there, each micro-batch's own gradient of a parameter
before anything adds it up or sends it, and what the optimizer changed."""
GRADIENTS: frozenset[Kind] = frozenset({"output-gradient", "gradient"})
"""Kinds that a loss scale multiplies."""
BATCH = "batch"
"""Names what the model is given."""
LOSS = "loss"
"""Names the loss, which is no module of the model."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one module and kind in one step, over its micro-batches.

    Attributes:
        step: From 1.
        name: Of the module, or of the parameter.
        kind: See ``Kind``.
        held: torch's name of the type that they are held in.
        scale: What a gradient was multiplied by; 1 for other kinds.
        largest: Largest finite magnitude, scaled as it was.
        spectrum: All magnitudes, scaled as they were.
    """

    step: int
    name: str
    kind: Kind
    held: str
    scale: float
    largest: float
    spectrum: Spectrum

    @property
    def format(self) -> Format | None:
        """What it is held in; None where that is none of ``FORMATS``."""
        return FORMATS_BY_TYPE.get(self.held)

    @property
    def num_bad(self) -> int:
        """Infinities and what is no number."""
        return self.spectrum.num_inf + self.spectrum.num_nan

    @property
    def zero_share(self) -> float:
        """Zeros among all numbers."""
        return self.spectrum.num_zeros / max(self.spectrum.num, 1)

    @property
    def subnormal_share(self) -> float:
        """Numbers among all that its own format holds with fewer digits than it has."""
        if self.format is None:
            return 0.0
        return self.spectrum.subnormal(self.format) / max(self.spectrum.num, 1)

    def headroom(self, name: FormatName) -> float | None:
        """Return the doublings to a format's largest number; None where all are 0."""
        return headroom(self.largest, FORMATS[name])

    def vanishing_share(self, name: FormatName, *, shift: int = 0) -> float:
        """Return the share that is not 0 and that a format rounds to 0, as ``Spectrum`` does."""
        count = self.spectrum.vanishing(FORMATS[name], shift=shift)
        return count / max(self.spectrum.num, 1)


class FirstBad(msgspec.Struct, frozen=True, kw_only=True):
    """Where the first Inf or NaN of a step was seen.

    Attributes:
        step: From 1.
        rank: Of the process.
        micro_batch: Of this process in the step, from 0.
        order: Place among all that was looked at in the micro-batch; alike on all processes.
        name: Of the module, or of the parameter.
        kind: What of it.
        op: torch's name of the operation, where it was looked for.
        input_low: Smallest number that the module was given; None where nobody looked.
        input_high: Largest.
    """

    step: int
    rank: int
    micro_batch: int
    order: int
    name: str
    kind: Kind
    op: str | None = None
    input_low: float | None = None
    input_high: float | None = None


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the updates of a parameter in one step.

    Of a large parameter numbers at even distances are looked at (``updates.SAMPLE``).

    Attributes:
        step: From 1.
        name: Of the parameter.
        held: torch's name of the type that the optimizer updates: of the master where there is one.
        num: Numbers looked at whose gradient was not 0.
        num_lost: Of these, those that the step left as they were: the update was below the
            resolution of the type.
        num_moved: Numbers that were changed.
        num_lost_in: By format, how many of those that were changed would not have been, had weight
            and update been in it: round(round(weight) + update) = round(weight).
        largest: Largest magnitude of a change.
    """

    step: int
    name: str
    held: str
    num: int
    num_lost: int
    num_moved: int
    num_lost_in: dict[FormatName, int]
    largest: float

    @property
    def share(self) -> float:
        """Lost updates among those that there should have been."""
        return self.num_lost / max(self.num, 1)


class Moments(msgspec.Struct, frozen=True, kw_only=True):
    """What AdamW's moments of a parameter hold after one step.

    Attributes:
        step: From 1.
        name: Of the parameter.
        held: torch's name of the type of the second moments.
        num: Numbers looked at whose first moment is not 0.
        num_vanished: Of these, those whose second moment is 0.
        epsilon: What is added to the root of the second moment, and is then all there is.
    """

    step: int
    name: str
    held: str
    num: int
    num_vanished: int
    epsilon: float


class ScaleStep(msgspec.Struct, frozen=True, kw_only=True):
    """The loss scale of one step, and whether the step was skipped."""

    step: int
    scale: float
    skipped: bool


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a watcher has seen in its process.

    Attributes:
        rank: Of the process.
        steps: That were watched and are kept, increasing.
        rows: In the order in which they were first met, step by step.
        bads: Of each step that had an Inf or NaN, the first one.
        lost: Updates.
        scales: Of every step that was told of, watched or not.
        moments: Of the optimizer, where it is AdamW.
    """

    rank: int
    steps: tuple[int, ...]
    rows: tuple[Row, ...]
    bads: tuple[FirstBad, ...]
    lost: tuple[Lost, ...]
    scales: tuple[ScaleStep, ...]
    moments: tuple[Moments, ...] = ()

    def of_kind(self, *kinds: Kind) -> list[Row]:
        """List the rows of some kinds."""
        return [row for row in self.rows if row.kind in kinds]


def earliest(bads: list[FirstBad]) -> FirstBad | None:
    """Return the one that came first; where several processes have it, that of the lowest rank."""
    return min(bads, key=lambda b: (b.step, b.micro_batch, b.order, b.rank), default=None)
