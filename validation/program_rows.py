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


class RecordRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that was recorded, by formula.

    Attributes:
        name: Kind of model, test and machine.
        gpu: A card of ``brimful gpus``.
        world_size: Processes.
        has_recipe: Whether a recipe runs it still.
        refused: Why it has no formula; empty: it has one.
        predicted_peak_allocated_bytes: Of the last process; None: no formula.
        published_peak_allocated_bytes: The most that it had.
        peak_error: Signed, relative to published.
        predicted_between_steps_bytes: Between steps.
        published_between_steps_bytes: When the last step had ended.
    """

    name: str
    gpu: str
    world_size: int
    has_recipe: bool
    refused: str
    predicted_peak_allocated_bytes: int | None
    published_peak_allocated_bytes: int
    peak_error: float | None
    predicted_between_steps_bytes: int | None
    published_between_steps_bytes: int | None


class TitanRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published run of torchtitan, and the same command line on the pretend GPU.

    Attributes:
        id: Its name among the published runs.
        commit: Of torchtitan's code, which ran.
        command: As it was given.
        gpu: A card of ``brimful gpus``.
        world_size: Processes.
        refused: Why nothing was simulated; empty: it was.
        published_reserved_gib: What the fullest process reserved at most.
        simulated_reserved_gib: The same, of the process that reserves most of those that were run.
        simulated_allocated_gib: Of live tensors, in that process.
        reserved_error: Signed, relative to published.
        explanation: Which bytes differ, where they are known and nothing was done about them.
    """

    id: str
    commit: str
    command: str
    gpu: str
    world_size: int
    refused: str
    published_reserved_gib: float
    simulated_reserved_gib: float | None
    simulated_allocated_gib: float | None
    reserved_error: float | None
    explanation: str = ""


class SpeedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published speed, and the formula's.

    Attributes:
        name: Container and task.
        model: As the table calls it.
        precision: BF16, or a recipe of FP8 or FP4.
        is_fitted: Whether a rate was fitted to it.
        command: That was predicted; empty: none could be said.
        gpu: A card of ``brimful gpus``.
        world_size: Processes.
        refused: Why it has no number; empty: it has one.
        predicted_tokens_per_s: Of a GPU; None: no number.
        published_tokens_per_s: The same.
        speed_error: Signed, relative to published.
    """

    name: str
    model: str
    precision: str
    is_fitted: bool
    command: str
    gpu: str
    world_size: int
    refused: str
    predicted_tokens_per_s: float | None
    published_tokens_per_s: float
    speed_error: float | None
