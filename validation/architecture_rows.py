"""Rows of evidence on architectures: what is predicted of each after one trace, and how well."""

import msgspec


class ComparedPeaks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A drawn strategy, by formulas and by its simulation.

    Attributes:
        words: The strategy.
        predicted_peak_allocated_bytes: First rung.
        simulated_peak_allocated_bytes: Second rung.
        peak_error: Signed, relative to simulated.
        reserved_error: Of reserved bytes on a card without end, both replayed; signed likewise.
            None: what is asked of the allocator was not derived.
    """

    words: str
    predicted_peak_allocated_bytes: int
    simulated_peak_allocated_bytes: int
    peak_error: float
    reserved_error: float | None


class ArchitectureRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An architecture of transformers.

    Attributes:
        model_type: Its name.
        cause: Why it has no prediction; empty where it has one.
        peaks: Of the strategies drawn, as far as it came.
        spent_s: CPU seconds that all of it took.
        left_out: Shapes that were drawn first, with what its class ends in there by itself.
    """

    model_type: str
    cause: str
    peaks: tuple[ComparedPeaks, ...] = ()
    spent_s: float = 0.0
    left_out: tuple[str, ...] = ()
