"""What an evidence file holds: rows, what they sum up to, and how they were made. One schema."""

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec
from architecture_rows import ArchitectureRow
from cases import Case
from cells import ONE, axis_of
from comparison_rows import PeerRow, QualityRow
from compiled_rows import CompiledRow
from deepspeed_rows import DeepSpeedPeak, DeepSpeedPrediction, DeepSpeedRow
from dpo_rows import DpoRow
from exporters_rows import ExporterRow
from fuzz_rows import FuzzRow
from group_rows import BubbleRow, LostRow, RankRow, ReshardRow, RoutingRow
from holding_rows import PlannedRow, ReservedRow, SpaceRow
from ladder_rows import LadderRow
from laws_rows import LawRow
from moonshot_rows import MoonshotRows
from offload_rows import OffloadRow
from precision_rows import PrecisionRow
from product_rows import ProductRow
from program_rows import ProgramRow, RecordRow, SpeedRow, TitanRow
from recipe_rows import ComparedRow
from rehearsal_rows import MixtureRow, RehearsalRow
from scale_rows import ExpertScaleRow, ScaleRow
from site_rows import PackageRow, WatchedRow
from soak_rows import SoakRow
from technique_rows import TechniqueRow

from brimful.errors import FileFormatError
from brimful.files.writing import write_bytes
from brimful.hardware.calibration import Calibration
from brimful.published.compare import Compared
from brimful.values.plan import MemoryItem
from brimful.values.results import GRADIENTS, OPTIMIZER_STATE, PARAMETERS
from brimful.values.strategy import Strategy, num_micro_batches, world_size

EVIDENCE_SCHEMA = "brimful.evidence/1"
_STATES = frozenset({PARAMETERS, GRADIENTS, OPTIMIZER_STATE})
SaveMode = Literal["sync", "async"]
Part = Literal[
    "predicted_vs_simulated",
    "simulated_vs_measured",
    "step_time",
    "resume",
    "pretend_examples",
    "published",
    "published_predicted",
    "parity",
    "techniques",
    "quality",
    "hf_trainer",
    "deepspeed",
    "deepspeed_simulated",
    "deepspeed_predicted",
    "parallel_parity",
    "ranks",
    "reshard",
    "lost_workers",
    "precision",
    "recipes",
    "bubbles",
    "routing",
    "rehearsals",
    "mixtures",
    "offload",
    "dpo",
    "ladder",
    "watched",
    "packages",
    "exporters",
    "scale",
    "scale_experts",
    "moonshot",
    "fuzz",
    "soak",
    "laws",
    "reserved",
    "plans_hold",
    "small_spaces",
    "products",
    "architectures",
    "programs",
    "megatron_records",
    "bridge_speeds",
    "torchtitan",
    "compiled",
]


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where evidence was made; ``num_threads`` is what torch used."""

    cpu: str
    num_cores: int
    num_threads: int
    ram_bytes: int


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How evidence was made.

    Attributes:
        commit: ``git rev-parse HEAD``.
        is_dirty: Whether tracked files had changed since.
        versions: Versions of python, torch, transformers and brimful, as ``name version``.
        date: Day, ISO 8601.
        machine: Where.
        seed: Of the draw.
        command: What was typed.
        wall_s: How long it took.
        others_load: Share of the machine's CPU that other programs used meanwhile, 0 to 1.
    """

    commit: str
    is_dirty: bool
    versions: tuple[str, ...]
    date: str
    machine: Machine
    seed: int
    command: str
    wall_s: float
    others_load: float


class PredictedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First rung against second; *other* bytes are no parameters, gradients or optimizer state.

    Attributes:
        case: What was run.
        predicted_peak_allocated_bytes: First rung.
        simulated_peak_allocated_bytes: Second rung.
        predicted_other_bytes: Of the first rung's peak.
        simulated_other_bytes: Of the second rung's peak.
        where: The part of a step in which the simulated peak lies.
        peak_error: Signed, relative to simulated.
        other_error: Signed, relative to simulated; None where these are less than
            ``LEAST_OTHER_SHARE`` of the peak, which then lies in the update.
    """

    case: Case
    predicted_peak_allocated_bytes: int
    simulated_peak_allocated_bytes: int
    predicted_other_bytes: int
    simulated_other_bytes: int
    where: str
    peak_error: float
    other_error: float | None


class MeasuredRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Three rungs of a real run; ``difference_bytes`` is simulated less measured peak."""

    case: Case
    predicted_peak_allocated_bytes: int
    simulated_peak_allocated_bytes: int
    measured_peak_allocated_bytes: int
    predicted_other_bytes: int
    simulated_other_bytes: int
    measured_other_bytes: int
    difference_bytes: int
    allowed_bytes: int
    peak_error: float
    other_error: float
    predicted_error: float


class TimedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Step time, predicted with this machine's calibration and measured.

    Attributes:
        case: What was run.
        predicted_step_s: First rung.
        measured_steps_s: Every timed step, after the first two.
        measured_step_s: Their median.
        measured_low_s: Lower end of the interval that holds the true median with 95 %.
        measured_high_s: Its higher end.
        step_error: Signed, relative to measured.
        others_load: Share of the machine's CPU that other programs used meanwhile, 0 to 1.
    """

    case: Case
    predicted_step_s: float
    measured_steps_s: tuple[float, ...]
    measured_step_s: float
    measured_low_s: float
    measured_high_s: float
    step_error: float
    others_load: float


class KilledRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that died by SIGKILL and was resumed.

    Attributes:
        case: What was run.
        killed_after_s: Seconds from the first row of the curve to the kill.
        killed_at_step: Last step whose row had been written.
        was_saving: Whether a half-written checkpoint was found.
        resumed_from: Step of the checkpoint that it went on from; 0 where there was none.
        num_rows: Rows of its curve at the end.
        is_bit_equal: Whether they, and the final weights, are those of the run that nobody
            disturbed, to the last bit.
        checkpoint: Whether training waited for its checkpoints or went on.
        was_aimed: Whether the kill waited for a save to begin.
        num_unreadable: Checkpoints under their final name that were not whole after the kill.
    """

    case: Case
    killed_after_s: float
    killed_at_step: int
    was_saving: bool
    resumed_from: int
    num_rows: int
    is_bit_equal: bool
    # Evidence of before has none of these.
    checkpoint: SaveMode = "sync"
    was_aimed: bool = False
    num_unreadable: int = 0


class ParityRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A switch that claims to be exact, beside the plain fp32 loop.

    Attributes:
        case: What was run.
        num_steps: Steps that were compared.
        loss_error: Largest difference of a step's losses, relative to the plain one.
        norm_error: Largest difference of a step's gradient norms, relative to the plain one.
        change_error: Distance of the weights from the plain run's behind the last step, relative to
            how far those came; None where it was not looked at.
    """

    case: Case
    num_steps: int
    loss_error: float
    norm_error: float
    change_error: float | None = None


class ExampleRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An unmodified script, on the pretend GPU and for real.

    Attributes:
        script: File in ``examples``.
        arguments: Its arguments.
        mode: What ``cuda`` meant, and whose kernels were imitated.
        simulated_peak_allocated_bytes: Of the GPU, as ``brimful pretend`` says it.
        measured_peak_allocated_bytes: Of the same script on this machine's CPU.
        simulated_other_bytes: Of the simulated peak: no parameters, gradients, optimizer state.
        peak_error: Signed, relative to measured.
    """

    script: str
    arguments: tuple[str, ...]
    mode: str
    simulated_peak_allocated_bytes: int
    measured_peak_allocated_bytes: int
    simulated_other_bytes: int
    peak_error: float


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published peak, and that of the same program on the pretend GPU.

    Attributes:
        id: Its name.
        family: The program, a file in ``published``.
        mem_class: What was published: allocated, reserved, active, or the driver's figure.
        published_gib: Of one GPU.
        simulated_gib: The replay's figure of that class; None: it could not be simulated.
        peak_error: Signed, relative to published.
        is_eligible: Whether it counts: complete settings, no fused third-party kernels.
        explanation: Where it is off by more than 5 %, or not simulated: which bytes, or why.
        source: Where it was published.
        versions: Of the libraries that ran it.
    """

    id: str
    family: str
    mem_class: str
    published_gib: float
    simulated_gib: float | None
    peak_error: float | None
    is_eligible: bool
    explanation: str
    source: str
    versions: str


class Spread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Relative errors of one stratum.

    Attributes:
        of: What the errors are of, e.g. ``peak``.
        factor: What the cases are told apart by; ``all`` for all of them.
        value: Which of it.
        num_cases: How many.
        median: Of the absolute errors.
        p90: Of the absolute errors.
        worst: Of the absolute errors.
        bias: Mean of the signed errors.
    """

    of: str
    factor: str
    value: str
    num_cases: int
    median: float
    p90: float
    worst: float
    bias: float


class Refusal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why draws were refused as invalid, and how many; each was drawn again."""

    reason: str
    num_draws: int


class Summary(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What the rows say together.

    Attributes:
        num_drawn: Draws, refused ones too.
        refusals: Why some were refused.
        num_cases: Rows.
        num_rich: Rows of which more than 40 % of the peak is activations and transients.
        spreads: Errors, in all and per stratum.
        bars: What must hold, in words.
        missed: Which cases or figures do not hold, one sentence each; empty where all do.
        findings: What else the rows say together, a line each.
    """

    num_drawn: int
    refusals: tuple[Refusal, ...]
    num_cases: int
    num_rich: int
    spreads: tuple[Spread, ...]
    bars: tuple[str, ...]
    missed: tuple[str, ...]
    findings: tuple[str, ...] = ()


RowT = TypeVar("RowT")


class Evidence(
    msgspec.Struct, Generic[RowT], frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """One evidence file; ``calibration`` is what step times were predicted with, else None."""

    schema: str
    part: Part
    provenance: Provenance
    summary: Summary
    calibration: Calibration | None
    rows: tuple[RowT, ...]


ROW_TYPES: dict[Part, type[msgspec.Struct]] = {
    "predicted_vs_simulated": PredictedRow,
    "simulated_vs_measured": MeasuredRow,
    "step_time": TimedRow,
    "resume": KilledRow,
    "pretend_examples": ExampleRow,
    "published": PublishedRow,
    "published_predicted": Compared,
    "parity": ParityRow,
    "techniques": TechniqueRow,
    "quality": QualityRow,
    "hf_trainer": PeerRow,
    "deepspeed": DeepSpeedRow,
    "deepspeed_simulated": DeepSpeedPeak,
    "deepspeed_predicted": DeepSpeedPrediction,
    "parallel_parity": ParityRow,
    "ranks": RankRow,
    "reshard": ReshardRow,
    "lost_workers": LostRow,
    "precision": PrecisionRow,
    "recipes": ComparedRow,
    "bubbles": BubbleRow,
    "routing": RoutingRow,
    "rehearsals": RehearsalRow,
    "mixtures": MixtureRow,
    "offload": OffloadRow,
    "dpo": DpoRow,
    "ladder": LadderRow,
    "watched": WatchedRow,
    "packages": PackageRow,
    "exporters": ExporterRow,
    "scale": ScaleRow,
    "scale_experts": ExpertScaleRow,
    "moonshot": MoonshotRows,
    "fuzz": FuzzRow,
    "soak": SoakRow,
    "laws": LawRow,
    "reserved": ReservedRow,
    "plans_hold": PlannedRow,
    "small_spaces": SpaceRow,
    "products": ProductRow,
    "architectures": ArchitectureRow,
    "programs": ProgramRow,
    "megatron_records": RecordRow,
    "bridge_speeds": SpeedRow,
    "torchtitan": TitanRow,
    "compiled": CompiledRow,
}
PARTS: tuple[Part, ...] = tuple(ROW_TYPES)
LEAST_OTHER_SHARE = 0.01
RICH_SHARE = 0.4


def path_of(part: Part, folder: Path) -> Path:
    """Return where a part's evidence is kept."""
    return folder / f"{part}.json"


def write_evidence(evidence: "Evidence[RowT]", folder: Path) -> Path:
    """Write an evidence file atomically, a row per line, and return its path."""
    fields = []
    for name in evidence.__struct_fields__:
        value = getattr(evidence, name)
        if name == "rows":
            rows = b",\n".join(msgspec.json.encode(row) for row in value)
            fields.append(b'"rows": [\n' + rows + b"\n]")
        else:
            shown = msgspec.json.format(msgspec.json.encode(value), indent=1)
            fields.append(f'"{name}": '.encode() + shown)
    path = path_of(evidence.part, folder)
    write_bytes(path, b"{\n" + b",\n".join(fields) + b"\n}\n")
    return path


def read_evidence(part: Part, folder: Path) -> "Evidence[msgspec.Struct]":
    """Read an evidence file.

    Raises:
        FileFormatError: It cannot be read, is of another schema, or of another part.
    """
    path = path_of(part, folder)
    # The row type is chosen at run time, which a static type cannot say.
    generic: Any = Evidence
    kind = generic[ROW_TYPES[part]]
    try:
        evidence: Evidence[msgspec.Struct] = msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise FileFormatError(f"{path} is not evidence ({error}); run make prove again") from error
    if (evidence.schema, evidence.part) != (EVIDENCE_SCHEMA, part):
        raise FileFormatError(
            f"{path} is {evidence.part} in schema {evidence.schema!r} and should be {part} in "
            f"{EVIDENCE_SCHEMA!r}; run make prove again"
        )
    return evidence


def other_bytes(items: Iterable[MemoryItem]) -> int:
    """Add up what is neither parameters nor gradients nor optimizer state."""
    return sum(item.num_bytes for item in items if item.name not in _STATES)


def relative(value: float, truth: float) -> float:
    """Return the signed relative error of ``value``."""
    return (value - truth) / truth


def strata(case: Case) -> dict[str, str]:
    """Say which value of every factor a case has."""
    job, strategy = case.job, case.strategy
    num_micro = num_micro_batches(job, strategy)
    return {
        "architecture": job.model.model_type + ("-tied" if job.model.tied_embeddings else ""),
        "method": job.method,
        "precision": job.precision,
        "checkpointing": re.sub(r"\d+$", "K", strategy.activation_checkpointing),
        "loss": "whole" if strategy.loss_chunks == 1 else "chunked",
        "attention": strategy.attention,
        "accumulation": "1" if num_micro == 1 else "more",
        "optimizer": job.optimizer,
        "kernels": case.kernels,
    }


def all_strata(case: Case) -> dict[str, str]:
    """Say which value of every factor a case has, those of many devices too."""
    found, axis = strata(case), axis_of(case.strategy)
    holds = case.strategy.accumulate == "hold" and axis != ONE
    if holds and found["accumulation"] == "more":
        found["accumulation"] = "held"
    return {**found, "axis": axis}


def spreads(
    of: str,
    rows: Sequence[RowT],
    *,
    case: Callable[[RowT], Case],
    error: Callable[[RowT], float],
    factors: Callable[[Case], dict[str, str]] = strata,
) -> list[Spread]:
    """Sum up errors, in all and per value of every factor.

    Args:
        of: What the errors are of.
        rows: At least one.
        case: Takes the case out of a row.
        error: Takes the signed relative error out of a row.
        factors: Says what a case is told apart by.
    """
    groups: dict[tuple[str, str], list[float]] = {("all", ""): [error(row) for row in rows]}
    for row in rows:
        for key in factors(case(row)).items():
            groups.setdefault(key, []).append(error(row))
    ordered = sorted(groups.items(), key=lambda group: (group[0][0] != "all", group[0]))
    return [_spread(of, factor, value, errors) for (factor, value), errors in ordered]


def _spread(of: str, factor: str, value: str, errors: list[float]) -> Spread:
    sizes = sorted(map(abs, errors))
    return Spread(
        of=of,
        factor=factor,
        value=value,
        num_cases=len(sizes),
        median=statistics.median(sizes),
        # The smallest size that 90 % of the cases do not exceed.
        p90=sizes[-(-9 * len(sizes) // 10) - 1],
        worst=sizes[-1],
        bias=statistics.fmean(errors),
    )


def spread_of(of: str, errors: list[float], *, factor: str = "all", value: str = "") -> Spread:
    """Sum up signed relative errors of cases that nothing tells apart, or one factor."""
    return _spread(of, factor, value, errors)


def in_all(summary: Summary, of: str) -> Spread | None:
    """Return the spread over all cases; None where there are no such errors."""
    return next((s for s in summary.spreads if s.of == of and s.factor == "all"), None)


def describe_case(case: Case) -> str:
    """Name a case in a line."""
    job, strategy = case.job, case.strategy
    model = job.model
    return (
        f"{model.name} L{model.num_layers} H{model.hidden_size} A{model.num_heads}/"
        f"{model.num_kv_heads} V{model.vocab_size} {job.method} {job.precision} seq {job.seq_len} "
        f"batch {job.global_batch}/{strategy.micro_batch} {strategy.activation_checkpointing} "
        f"chunks {strategy.loss_chunks} {strategy.attention} {case.kernels}{_spread_text(strategy)}"
    )


def _spread_text(strategy: Strategy) -> str:
    if world_size(strategy) == 1:
        return ""
    degrees = f"{strategy.dp_replicate}x{strategy.dp_shard}"
    return f" zero {strategy.zero} on {degrees} {strategy.accumulate}"
