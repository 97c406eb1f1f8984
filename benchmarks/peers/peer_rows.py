"""What a comparison with peers keeps: a file per part, with how it was made beside its rows."""

import datetime as dt
import re
from pathlib import Path
from typing import Generic, Literal, TypeVar

import msgspec
from evidence import Provenance

from brimful.files.writing import write_bytes

RESULT_SCHEMA = "brimful.peers/1"
NEAR = 0.1
"""Within this share of the truth a figure counts as near."""
Part = Literal["simulator", "estimator", "search", "loop"]
MemoryClass = Literal["live", "reserved", "process"]
"""What a measured figure counts: live tensors, the allocator's segments, or the whole process."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One training run as every peer is told of it; sizes in bytes, of one device.

    Attributes:
        id: Of its row.
        hidden: Width of the residual stream.
        layers: Blocks.
        heads: Of queries.
        kv_heads: Of keys and values.
        intermediate: Width of the MLP.
        gated: Whether the MLP has three matrices.
        vocab: Rows of the embedding.
        max_seq: Longest sequence of the configuration.
        num_parameters: Of the whole model, tied weights once.
        largest_layer: Parameters of the largest module that has any of its own.
        gpu: By Brimful's name; ``cpu`` for a row that was measured on one.
        gpu_bytes: Memory of that GPU; None on a CPU.
        method: ``full`` or the name of an adapter method.
        precision: The recipe.
        optimizer: The update rule.
        weight_bytes: Of one parameter.
        gradient_bytes: Of one parameter's gradient.
        state_bytes: Of the optimizer for one parameter, an fp32 master among it; None: no constant.
        held_bytes: Parameters, gradients and optimizer state of adapters on one device; None where
            ``num_parameters`` says the same, or several devices share.
        attention: ``sdpa``, ``flash`` or ``eager``.
        seq_len: Tokens of a sequence.
        micro_batch: Sequences of a forward.
        accumulation: Forwards of a step.
        checkpointing: ``none``, ``full``, ``selective``; ``part`` for some of the blocks.
        zero: Stage.
        dp_shard: Devices that share what ``zero`` shards.
        dp_replicate: Groups of such devices.
        tp: Devices that share every matrix.
        pp: Stages of a pipeline.
    """

    id: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    gated: bool
    vocab: int
    max_seq: int
    num_parameters: int
    largest_layer: int
    gpu: str
    gpu_bytes: int | None
    method: str
    precision: str
    optimizer: str
    weight_bytes: int
    gradient_bytes: int
    state_bytes: float | None
    held_bytes: int | None
    attention: str
    seq_len: int
    micro_batch: int
    accumulation: int
    checkpointing: str
    zero: int
    dp_shard: int
    dp_replicate: int
    tp: int
    pp: int


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a peer says of a run: bytes and perhaps a speed, or why not.

    Attributes:
        peer: Which.
        peer_bytes: Its figure, of one device; None where it has none.
        peer_tokens_per_s: Of one device.
        reason: Why there is no figure.
        call_s: What the answer took, imports apart.
    """

    peer: str
    peer_bytes: float | None = None
    peer_tokens_per_s: float | None = None
    reason: str = ""
    call_s: float | None = None


class EstimatorRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A measured run, our prediction of it, and every peer's.

    Attributes:
        id: Its name.
        source: ``published``, or ``own`` for runs measured here on a CPU.
        family: The collection.
        memory: What the measured figure counts; empty where only a speed was published.
        measured_bytes: The truth.
        measured_tokens_per_s: The truth of its speed, one device's.
        predicted_bytes: Ours, arithmetic; the middle of our band where the figure is no live bytes.
        predicted_tokens_per_s: Ours.
        predicted_s: What ours took.
        reason: Why ours has no prediction.
        simulated_bytes: Of the second rung; in no score of the estimator.
        gpu_bytes: Memory of the GPU that it ran on.
        unlike: What of its program no switch of ours expresses, and no peer's either.
        answers: Of the peers.
    """

    id: str
    source: Literal["published", "own"]
    family: str
    memory: MemoryClass | Literal[""] = ""
    measured_bytes: float | None = None
    measured_tokens_per_s: float | None = None
    predicted_bytes: float | None = None
    predicted_tokens_per_s: float | None = None
    predicted_s: float | None = None
    reason: str = ""
    simulated_bytes: float | None = None
    gpu_bytes: int | None = None
    unlike: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()


class SimulatorRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One program under one tool, in fresh processes.

    Attributes:
        program: Which.
        tool: ``mem_tracker``, ``pretend``, ``simulate``, or ``real`` for the run itself.
        wall_s: Of every run, imports apart.
        cpu_s: The same in CPU seconds.
        rss_bytes: Largest resident size of the process, everything in it, of the first run.
        peak_bytes: What the tool says the peak is; None where it failed.
        reason: Why it failed.
    """

    program: str
    tool: Literal["mem_tracker", "pretend", "simulate", "real"]
    wall_s: tuple[float, ...] = ()
    cpu_s: tuple[float, ...] = ()
    rss_bytes: int | None = None
    peak_bytes: int | None = None
    reason: str = ""


class SearchRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One space, searched and, where that can be done, tried out one strategy at a time.

    Attributes:
        space: What was searched.
        num_devices: Of the cluster.
        num_costed: Strategies that the search considered.
        search_s: Wall seconds of the search, best of its runs.
        num_tried: Strategies that were estimated one by one; None where there are too many.
        exhaustive_s: Wall seconds of that.
        same_winner: Whether peak and step time of the winners agree.
        same_count: Whether both looked at as many.
    """

    space: str
    num_devices: int
    num_costed: int
    search_s: float
    num_tried: int | None = None
    exhaustive_s: float | None = None
    same_winner: bool | None = None
    same_count: bool | None = None


class LoopRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Our loop beside HF Trainer's at the same settings, in pairs of processes.

    Attributes:
        settings: What was trained and how, by name.
        case: The same in full.
        tokens_per_s: Ours, a run each.
        peer_tokens_per_s: Theirs.
        speed_ratio: Ours to theirs, median of the pairs.
        peak_ratio: Of live bytes, by one instrument.
        loss_error: Largest relative difference of a step's losses.
        others_load: Share of the CPU that other programs used meanwhile.
    """

    settings: str
    case: str
    tokens_per_s: tuple[float, ...]
    peer_tokens_per_s: tuple[float, ...]
    speed_ratio: float
    peak_ratio: float
    loss_error: float
    others_load: float


Row = TypeVar("Row", bound=msgspec.Struct)


class Result(msgspec.Struct, Generic[Row], frozen=True, kw_only=True):
    """A part: what was compared, how it was made, with which versions of the peers.

    Attributes:
        schema: ``RESULT_SCHEMA``.
        part: Which.
        quick: Whether it is the short variant, which proves nothing but that the code runs.
        provenance: How it was made, and what others used of the machine meanwhile.
        peer_versions: As ``name version``.
        rows: The figures.
        notes: What the part has to say beside its rows.
    """

    schema: str
    part: Part
    quick: bool
    provenance: Provenance
    peer_versions: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


ROWS: dict[Part, type[msgspec.Struct]] = {
    "simulator": SimulatorRow,
    "estimator": EstimatorRow,
    "search": SearchRow,
    "loop": LoopRow,
}


def result_path(folder: Path, part: Part, machine: str) -> Path:
    """Name a file by theme, machine and month."""
    plain = re.sub(r"\([^)]*\)", "", machine).lower()
    slug = "-".join(re.findall(r"[a-z0-9]+", plain))
    return folder / f"{part}-{slug}-{dt.datetime.now(dt.UTC):%Y-%m}.json"


def partial_path(folder: Path, part: Part) -> Path:
    """Name the file where a part that is not done keeps its rows, one a line."""
    return folder / f"{part}.partial.jsonl"


def write_result(folder: Path, result: Result[Row]) -> Path:
    """Write a part's file, one row a line."""
    path = result_path(folder, result.part, result.provenance.machine.cpu)
    head = msgspec.json.encode(msgspec.structs.replace(result, rows=()))
    assert b'"rows":[]' in head
    lines = b",\n".join(map(msgspec.json.encode, result.rows))
    write_bytes(path, head.replace(b'"rows":[]', b'"rows":[\n' + lines + b"\n]") + b"\n")
    return path


def read_result(folder: Path, part: Part) -> Result[msgspec.Struct] | None:
    """Read the newest file of a part; None where there is none.

    Raises:
        msgspec.ValidationError: It has another schema.
    """
    found = sorted(folder.glob(f"{part}-*.json"), key=lambda path: path.stem[-7:])
    if not found:
        return None
    result = msgspec.json.decode(found[-1].read_bytes(), type=Result[ROWS[part]])  # type: ignore[misc]
    if result.schema != RESULT_SCHEMA:
        raise msgspec.ValidationError(f"schema {result.schema!r} is not {RESULT_SCHEMA!r}")
    return result
