"""Rows of evidence on programs of others that ran unmodified on the pretend GPU."""

import msgspec


class DerivedItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensors that are in memory at the peak, by arithmetic."""

    name: str
    num_bytes: int


class ProgramRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program whose peak was derived by hand before it was run here.

    Attributes:
        program: Name of the derivation in ``programs_by_hand.py``.
        script: In ``programs/``.
        arguments: What the script was told.
        card: The pretended GPU.
        packages: What it ran with, as ``name version``.
        derived: What is in memory at the peak, by hand.
        derived_peak_bytes: Their sum.
        simulated_peak_allocated_bytes: With Triton's own wheel.
        stand_in_peak_allocated_bytes: With what stands for Triton where it is not installed.
        without_peak_allocated_bytes: As the program runs without Triton; None: it does not.
        assumed: Packages that were stood in for in every run.
        peak_error: Of the simulation with the wheel, signed, relative to what was derived.
        launched: Kernels beside PyTorch's that were launched, as ``name count``.
        overlooked: What the derivation overlooked; empty: nothing.
    """

    program: str
    script: str
    arguments: tuple[str, ...]
    card: str
    packages: tuple[str, ...]
    derived: tuple[DerivedItem, ...]
    derived_peak_bytes: int
    simulated_peak_allocated_bytes: int
    stand_in_peak_allocated_bytes: int
    without_peak_allocated_bytes: int | None
    assumed: tuple[str, ...]
    peak_error: float
    launched: tuple[str, ...]
    overlooked: str
