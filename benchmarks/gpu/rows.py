"""What one case of the harness says: three rungs in fields of their own, and how far apart.

Owns the schema of ``validation/gpu/*.json``: reading, writing, and the checks that a row must
pass. Knows nothing of how a number was come by.
"""

import datetime as dt
import math
from collections.abc import Iterable
from pathlib import Path

import msgspec

from brimful.errors import FileFormatError
from brimful.files.writing import write_bytes
from brimful.hardware.cluster import Device
from brimful.values.plan import Band, MemoryItem, PhasePeak

ROW_SCHEMA = "brimful.gpu-row/3"
FILE_SCHEMA = "brimful.gpu/1"
DOES_NOT_FIT = "is simulated not to fit"
"""In the reason for what is not measured."""
LATER = "left to --complete"
"""The reason for what was only measured."""


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model and flags of ``brimful simulate``.

    Attributes:
        name: Short, and of no other case.
        family: What cases are summed up by.
        model: A name or a ``config.json``.
        layers: Blocks that are left of it; 0: all.
        flags: Of job and strategy.
    """

    name: str
    family: str
    model: str
    layers: int
    flags: tuple[str, ...]


class Predicted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first rung; step times with this machine's calibrated rates and with the datasheet's.

    ``predicted_replayed_bytes`` are reserved ones, by replaying the formula's requests.
    """

    predicted_peak_allocated_bytes: int
    predicted_phases: tuple[PhasePeak, ...]
    predicted_items: tuple[MemoryItem, ...]
    predicted_peak_reserved_bytes: Band | None
    predicted_process_bytes: Band | None
    predicted_step_s: float | None
    predicted_step_band_s: Band | None
    predicted_datasheet_step_s: float | None
    usable_bytes: int
    fits: bool
    predicted_replayed_bytes: int | None = None


class Simulated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The second rung: live bytes as asked for, not rounded, without kernels' own workspaces.

    Attributes:
        versions: Of the simulating process.
        kernels: Whose kernels were imitated.
        simulated_peak_allocated_bytes: The largest live total.
        simulated_phases: Peaks by phase: ``load``, ``step 1``, ``step 2+``.
        simulated_fine_phases: Peaks by part of a step: ``step 1 forward``, ...
        simulated_items: What is alive at the peak, by class.
        simulated_peak_block_bytes: Handed out at most in whole blocks, by the replay of the caching
            allocator: what ``max_memory_allocated`` counts; None on a CPU.
        simulated_peak_reserved_bytes: Held from the driver at most, by the replay; None on a CPU.
        simulated_outcome: Of the replay at capacity; empty on a CPU.
        simulated_peak_host_bytes: Kept on the host at most.
        num_events: Allocations and frees.
        simulate_s: Wall time without imports, in seconds.
    """

    versions: tuple[str, ...]
    kernels: str
    simulated_peak_allocated_bytes: int
    simulated_phases: tuple[PhasePeak, ...]
    simulated_fine_phases: tuple[PhasePeak, ...]
    simulated_items: tuple[MemoryItem, ...]
    simulated_peak_block_bytes: int | None
    simulated_peak_reserved_bytes: int | None
    simulated_outcome: str
    simulated_peak_host_bytes: int
    num_events: int
    simulate_s: float


class PhaseCounters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peaks of the caching allocator's counters in one part of a step, in bytes."""

    phase: str
    allocated_bytes: int
    requested_bytes: int
    active_bytes: int
    reserved_bytes: int


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The third rung.

    Attributes:
        versions: Of the measuring process.
        method: The instrument of the memory figures, in words.
        measured_peak_allocated_bytes: The largest live total, as the allocator rounds it.
        measured_peak_requested_bytes: The same as it was asked for: what compares with simulated.
        measured_peak_active_bytes: With what waits for another stream; None on a CPU.
        measured_peak_reserved_bytes: Held from the driver at most; None on a CPU.
        measured_phases: Peaks by phase.
        measured_counters: All counters by part of a step; none on a CPU.
        measured_items: What the instrument can tell apart.
        measured_leftover_bytes: Requested, and held after step 2 beyond parameters, buffers and
            optimizer state: cuBLAS workspaces above all. None on a CPU.
        measured_peak_host_bytes: Kept on the host at most, on CUDA in pinned blocks; None where
            nothing is.
        measured_process_bytes: Memory of the process outside and inside the allocator.
        process_method: Where that was read.
        measured_steps_s: Seconds of every step, the two metered ones first.
        measured_step_s: Median of the others; None where other cases ran on the same GPU.
        attention_ops: Names of the fused attention operators that ran; none where that was not
            looked at.
        num_alloc_retries: Times the allocator flushed its cache to go on.
    """

    versions: tuple[str, ...]
    method: str
    measured_peak_allocated_bytes: int
    measured_peak_requested_bytes: int
    measured_peak_active_bytes: int | None
    measured_peak_reserved_bytes: int | None
    measured_phases: tuple[PhasePeak, ...]
    measured_counters: tuple[PhaseCounters, ...]
    measured_items: tuple[MemoryItem, ...]
    measured_leftover_bytes: int | None
    measured_peak_host_bytes: int | None
    measured_process_bytes: int
    process_method: str
    measured_steps_s: tuple[float, ...]
    measured_step_s: float | None
    attention_ops: tuple[str, ...]
    num_alloc_retries: int


class PeerRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another trainer on the same work; the metered steps are those of ours.

    Attributes:
        trainer: ``hf``, ``hf-liger`` or ``trl``.
        versions: Of what it is made of.
        measured_peak_allocated_bytes: From its model on; of live tensors on a CPU.
        measured_peak_reserved_bytes: None on a CPU.
        measured_step_s: Median of the steps behind the metered ones.
    """

    trainer: str
    versions: tuple[str, ...]
    measured_peak_allocated_bytes: int
    measured_peak_reserved_bytes: int | None
    measured_step_s: float


class Errors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Signed relative errors, ``(said - truth) / truth``; None where a rung is missing.

    Attributes:
        simulated_to_requested: Like with like: live bytes as asked for.
        simulated_with_leftover_to_requested: The same with the measured workspaces added, which
            tells an error of the tape from bytes that it does not claim to know.
        simulated_to_allocated: Blocks of the replay, or live bytes on a CPU, against what the
            allocator counts.
        simulated_to_reserved: The replay's segments against the allocator's.
        predicted_to_simulated: The first rung against the second.
        predicted_to_allocated: The first against the third.
        predicted_to_reserved: The first's replay against the third.
        predicted_to_step_s: Step time, calibrated rates.
        datasheet_to_step_s: Step time, datasheet rates.
        reserved_in_band: Whether the predicted band holds the measured reserved bytes.
        process_in_band: Whether the predicted band holds the measured process bytes.
    """

    simulated_to_requested: float | None
    simulated_with_leftover_to_requested: float | None
    simulated_to_allocated: float | None
    simulated_to_reserved: float | None
    predicted_to_simulated: float | None
    predicted_to_allocated: float | None
    predicted_to_step_s: float | None
    datasheet_to_step_s: float | None
    reserved_in_band: bool | None
    process_in_band: bool | None
    predicted_to_reserved: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One case on one machine.

    Attributes:
        schema: ``ROW_SCHEMA``.
        case: What was run.
        predicted: First rung; None where it failed.
        simulated: Second rung; None where it failed.
        measured: Third rung; None where it failed.
        errors: Between them.
        failures: Why a rung is missing, one sentence each; empty where none is.
        peers: Other trainers on the same work.
        absent: Which of them did not run, and why.
        device: The machine with the rates that the prediction used, and where these come from.
        gpu: Its name as the driver, or the operating system, gives it.
        driver: Version of the GPU driver; empty on a CPU.
        system: Operating system and its kernel.
        command: What was typed.
        commit: Of the harness and the package that measured; ends in ``-dirty`` where files had
            changed.
        said_commit: Of the package that predicted last, where that was another; a simulation may be
            of one between both.
        date: Day, ISO 8601.
    """

    schema: str
    case: Case
    predicted: Predicted | None
    simulated: Simulated | None
    measured: Measured | None
    errors: Errors
    failures: tuple[str, ...]
    peers: tuple[PeerRun, ...]
    absent: tuple[str, ...]
    device: Device
    gpu: str
    driver: str
    system: str
    command: str
    commit: str
    date: str
    said_commit: str = ""


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The machine and what is installed on it.

    Attributes:
        gpu: Its name.
        memory: Of the GPU, as the driver says it.
        driver: Its version.
        clocks: Graphics and memory clock at most, power limit and ECC, as the driver says them.
        cuda: Version that torch was built for; empty on a CPU.
        cudnn: Version of cuDNN; empty on a CPU.
        allocator: ``PYTORCH_CUDA_ALLOC_CONF``.
        workspace: ``CUBLAS_WORKSPACE_CONFIG``.
        versions: Of python, torch, transformers and brimful, and of peers that are installed.
        num_cores: Of the host.
        ram_bytes: Of the host.
        system: Operating system and its kernel.
    """

    gpu: str
    memory: str
    driver: str
    clocks: str
    cuda: str
    cudnn: str
    allocator: str
    workspace: str
    versions: tuple[str, ...]
    num_cores: int
    ram_bytes: int
    system: str


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of rows, of one machine and month; ``environment`` is of its newest call."""

    schema: str
    environment: Environment | None
    rows: tuple[Row, ...]


def compare(
    predicted: Predicted | None, simulated: Simulated | None, measured: Measured | None
) -> Errors:
    """Say how far the rungs are apart."""
    said = predicted.predicted_peak_allocated_bytes if predicted else None
    live = simulated.simulated_peak_allocated_bytes if simulated else None
    allocated = measured.measured_peak_allocated_bytes if measured else None
    requested = measured.measured_peak_requested_bytes if measured else None
    leftover = measured.measured_leftover_bytes if measured else None
    step_s = measured.measured_step_s if measured else None
    reserved = measured.measured_peak_reserved_bytes if measured else None
    blocks = simulated.simulated_peak_block_bytes if simulated else None
    segments = simulated.simulated_peak_reserved_bytes if simulated else None
    replayed = predicted.predicted_replayed_bytes if predicted else None
    known = live is not None and leftover is not None
    return Errors(
        simulated_to_requested=_error(live, requested),
        simulated_with_leftover_to_requested=_error(
            (live or 0) + (leftover or 0) if known else None, requested
        ),
        simulated_to_allocated=_error(live if blocks is None else blocks, allocated),
        simulated_to_reserved=_error(segments, reserved),
        predicted_to_simulated=_error(said, live),
        predicted_to_allocated=_error(said, allocated),
        predicted_to_reserved=_error(replayed, reserved),
        predicted_to_step_s=_error(predicted.predicted_step_s if predicted else None, step_s),
        datasheet_to_step_s=_error(
            predicted.predicted_datasheet_step_s if predicted else None, step_s
        ),
        reserved_in_band=_within(
            measured.measured_peak_reserved_bytes if measured else None,
            predicted.predicted_peak_reserved_bytes if predicted else None,
        ),
        process_in_band=_within(
            measured.measured_process_bytes if measured else None,
            predicted.predicted_process_bytes if predicted else None,
        ),
    )


def _error(said: float | None, truth: float | None) -> float | None:
    return None if said is None or not truth else (said - truth) / truth


def _within(truth: float | None, band: Band | None) -> bool | None:
    return None if truth is None or band is None else band.low <= truth <= band.high


def check_row(row: Row) -> Row:
    """Return a row as it is, or say in what it contradicts itself.

    Raises:
        FileFormatError: Its schema, date, sums, orders or errors are not what they must be.
    """
    for wrong in (*_frame(row), *_rungs(row)):
        raise FileFormatError(f"row {row.case.name}: {wrong}; run the harness again")
    return row


def _frame(row: Row) -> Iterable[str]:
    if row.schema != ROW_SCHEMA:
        yield f"schema {row.schema!r} where {ROW_SCHEMA!r} is read"
    try:
        dt.date.fromisoformat(row.date)
    except ValueError:
        yield f"date {row.date!r} is not a day"
    missing = sum(rung is None for rung in (row.predicted, row.simulated, row.measured))
    if missing != len(row.failures):
        yield f"{missing} rungs are missing and {len(row.failures)} reasons given"
    if row.errors != compare(row.predicted, row.simulated, row.measured):
        yield "its errors are not those of its numbers"


def _rungs(row: Row) -> Iterable[str]:
    if row.predicted is not None:
        peak = row.predicted.predicted_peak_allocated_bytes
        yield from _sums("predicted", peak, row.predicted.predicted_items)
    if row.simulated is not None:
        peak = row.simulated.simulated_peak_allocated_bytes
        yield from _sums("simulated", peak, row.simulated.simulated_items)
        if peak != max(phase.num_bytes for phase in row.simulated.simulated_fine_phases):
            yield "the simulated peak is in none of its phases"
    if row.measured is not None:
        yield from _orders(row.measured)


def _sums(rung: str, peak: int, items: Iterable[MemoryItem]) -> Iterable[str]:
    total = sum(item.num_bytes for item in items)
    if total != peak:
        yield f"{rung} items sum to {total} and the peak is {peak}"


def _orders(measured: Measured) -> Iterable[str]:
    requested = measured.measured_peak_requested_bytes
    rising = [requested, measured.measured_peak_allocated_bytes]
    if measured.measured_peak_reserved_bytes is not None:
        rising += [measured.measured_peak_active_bytes or 0, measured.measured_peak_reserved_bytes]
    if sorted(rising) != rising or requested <= 0:
        yield f"requested, allocated, active, reserved do not rise: {rising}"
    if not all(math.isfinite(s) and s > 0 for s in measured.measured_steps_s):
        yield f"a step of {min(measured.measured_steps_s)} s"


def said_anew(row: Row, predicted: Predicted | str, simulated: Simulated | str, commit: str) -> Row:
    """Return a measured row with its first two rungs, or why they are missing, by another commit.

    Args:
        row: What was measured stays.
        predicted: The first rung.
        simulated: The second.
        commit: Of the package that said so.
    """
    rungs = {"predicted": predicted, "simulated": simulated}
    first = None if isinstance(predicted, str) else predicted
    second = None if isinstance(simulated, str) else simulated
    failures = tuple(f"{name}: {rung}" for name, rung in rungs.items() if isinstance(rung, str))
    kept = tuple(why for why in row.failures if why.startswith("measured:"))
    return check_row(
        msgspec.structs.replace(
            row,
            predicted=first,
            simulated=second,
            errors=compare(first, second, row.measured),
            failures=(*failures, *kept),
            said_commit=commit,
        )
    )


def read_document(path: Path) -> Document:
    """Read and check a file of rows.

    Raises:
        FileFormatError: It is not such a file, or a row contradicts itself.
    """
    try:
        document = msgspec.json.decode(path.read_bytes(), type=Document)
    except (OSError, msgspec.DecodeError) as error:
        raise FileFormatError(f"{path} holds no rows ({error}); move it away") from error
    if document.schema != FILE_SCHEMA:
        told = f"{path} has schema {document.schema!r} where {FILE_SCHEMA!r} is read; move it away"
        raise FileFormatError(told)
    for row in document.rows:
        check_row(row)
    return document


def read_rows(path: Path) -> list[Row]:
    """Read and check a file of rows; one that does not exist has none.

    Raises:
        FileFormatError: It is not such a file, or a row contradicts itself.
    """
    return list(read_document(path).rows) if path.exists() else []


def write_rows(path: Path, rows: Iterable[Row], environment: Environment | None = None) -> None:
    """Write rows atomically, in lines that a diff can be read of."""
    document = Document(schema=FILE_SCHEMA, environment=environment, rows=tuple(rows))
    write_bytes(path, msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def is_whole(row: Row) -> bool:
    """Whether nothing of a row is missing but what cannot be had: a formula, or room for it."""
    return row.measured is not None or any(DOES_NOT_FIT in why for why in row.failures)
