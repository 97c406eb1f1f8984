"""The Plan and everything it is made of, with its versioned YAML that round-trips.

``Job + Cluster + Strategy -> Estimate -> Plan``. A Plan names every value in full, so that it can
be run on another day, on another machine, and checked against what happened.
"""

from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.files.writing import read_whole
from brimful.hardware.cluster import Cluster, check_cluster
from brimful.models.config import check_model
from brimful.techniques.runnable import check_strategy, placed
from brimful.text.escaping import Line, yaml_text
from brimful.text.mismatch import explain_mismatch
from brimful.values.job import Job, check_job
from brimful.values.strategy import Strategy

PLAN_SCHEMA = "brimful.plan/2"
MOST_YAML_BYTES = 2**20
"""Of a plan, a job or prices: a hundred times what the longest of them has."""


class Band(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An estimate that is not exact: the truth is expected between the two."""

    low: float
    high: float


class MemoryItem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Named bytes that are alive at one instant.

    Attributes:
        name: What they are: parameters, gradients, saved activations, ...
        phase: The phase whose peak they belong to: ``step 1``, ``step 2+``.
        num_bytes: How many.
        where: ``device`` or ``host``.
        why: The formula or the place they come from, in words.
    """

    name: Line
    phase: Line
    num_bytes: int
    where: Line
    why: Line


class PhasePeak(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The largest number of live bytes in one phase, and what was running then."""

    phase: Line
    num_bytes: int
    where: Line


class HostMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one node's host holds, all its processes together; no device memory, but on a CPU.

    Attributes:
        items: What is there at the highest phase; processes at the low end of their band.
        phases: Peak of every phase, the same way.
        predicted_host_bytes: Band for the highest peak.
        predicted_training_bytes: What of it is needed as long as nothing is saved or handed over,
            at the low end; 0: a file of an earlier version does not say.
        predicted_async_bytes: What saving in the background adds to it.
        predicted_checkpoint_bytes: Of one checkpoint's files, of all devices together.
        num_processes: On one node, one for each device.
        usable_bytes: What the node has; 0 where unknown.
        fits: Whether training lies within that, whatever saving takes on top; None where its band
            lies across, or that is unknown.
    """

    items: tuple[MemoryItem, ...]
    phases: tuple[PhasePeak, ...]
    predicted_host_bytes: Band
    predicted_async_bytes: int
    predicted_checkpoint_bytes: int
    num_processes: int
    usable_bytes: int
    fits: bool | None
    predicted_training_bytes: int = 0


class StepTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the seconds of one optimizer step go; the total is their sum.

    Attributes:
        matrix_s: Matrix products and attention.
        memory_s: Everything else that reads and writes.
        launch_s: Launching, beyond both.
        exposed_s: Collectives, as far as they do not run beside the rest; likewise copies to the
            host and back, and what that updates.
    """

    matrix_s: float
    memory_s: float
    launch_s: float
    exposed_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds of one optimizer step."""
        return self.matrix_s + self.memory_s + self.launch_s + self.exposed_s


Word = Literal["fits", "tight", "no"]
"""Whether a plan holds: without a retry of the allocator, with some, or not."""


class PredictedReserved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What PyTorch's caching allocator makes of a prediction, by replay at capacity.

    Attributes:
        allocator: Its settings, as ``PYTORCH_CUDA_ALLOC_CONF`` spells them; empty: the defaults.
        capacity_bytes: What it may take of the device where what lies outside takes the least.
        firm_bytes: The same where that takes the most.
        limit_bytes: What it may hold of that, where the plan has a limit of its own.
        predicted_peak_reserved_bytes: The most it held; up to its end, where it runs out.
        predicted_unhindered_bytes: The most it would hold of a card without end.
        num_retries: How often it gave back all it had cached and tried again (slow).
        short_bytes: By how much the request that failed was too large, or the limit was passed.
        predicted_process_bytes: What the driver would most likely say of its process: the most it
            held, and the middle of what lies outside; None in a plan of a version that did not say.
    """

    allocator: str
    capacity_bytes: int
    firm_bytes: int
    limit_bytes: int | None
    predicted_peak_reserved_bytes: int
    predicted_unhindered_bytes: int
    num_retries: int
    short_bytes: int
    predicted_process_bytes: int | None = None

    @property
    def word(self) -> Word:
        """Whether a plan holds of which this is said."""
        if self.short_bytes:
            return "no"
        return "fits" if self.is_firm else "tight"

    @property
    def told_bytes(self) -> int:
        """The most it held; what it would of a card without end, where it runs out."""
        whole, held = self.predicted_unhindered_bytes, self.predicted_peak_reserved_bytes
        return whole if self.short_bytes else held

    @property
    def is_firm(self) -> bool:
        """Whether it completes without giving anything back, whatever lies outside."""
        return self.predicted_unhindered_bytes <= self.firm_bytes

    @property
    def excess_bytes(self) -> int:
        """What it would hold beyond what it surely may, if nothing were given back; 0: it fits."""
        firm, limit = self.firm_bytes, self.limit_bytes
        most = firm if limit is None else min(firm, limit)
        return max(0, self.predicted_unhindered_bytes - most)


class Estimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first rung: what arithmetic says.

    Attributes:
        items: What is alive at the highest peak, by class; their sum is that peak.
        phases: The peak of every phase.
        predicted_peak_allocated_bytes: The largest of the phase peaks.
        predicted_peak_reserved_bytes: Band for the caching allocator; None on a CPU.
        predicted_process_bytes: Band for the whole process as the driver or the OS shows it.
        predicted_step_s: Seconds per optimizer step; None where the device's rates are unknown.
        predicted_step_band_s: Band for the same.
        predicted_step_time: Its parts.
        step_flops: Floating-point operations of the matrix products of one step, recomputation too.
        usable_bytes: What the device offers to tensors: less the context outside the allocator.
        fits: Whether the peak stays within that.
        assumptions: Every assumed value that the numbers above rest on, as ``name = value (why)``.
        tokens_per_s: Of all devices together, padding included; None where the time is unknown.
        mfu: Model FLOPs (no recomputation, attention whole) of a step over what the devices could
            do in its time by their dense rate; None where that is unknown.
        hfu: The same with recomputation.
        host: What a node's host holds; None in a plan of a version that did not say.
        predicted_reserved: What its allocator makes of it, by replay; None where that was not
            asked, or its sequence of requests is not known.
    """

    items: tuple[MemoryItem, ...]
    phases: tuple[PhasePeak, ...]
    predicted_peak_allocated_bytes: int
    predicted_peak_reserved_bytes: Band | None
    predicted_process_bytes: Band | None
    predicted_step_s: float | None
    predicted_step_band_s: Band | None
    predicted_step_time: StepTime | None
    step_flops: float
    usable_bytes: int
    fits: bool
    assumptions: tuple[Line, ...]
    tokens_per_s: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    host: HostMemory | None = None
    predicted_reserved: PredictedReserved | None = None

    @property
    def told_peak(self) -> tuple[int, int]:
        """What it takes of a device and what there is for it: by its replay where that says."""
        reserved = self.predicted_reserved
        if reserved is None or not self.fits:
            return self.predicted_peak_allocated_bytes, self.usable_bytes
        limit = reserved.limit_bytes
        return reserved.told_bytes, reserved.capacity_bytes if limit is None else limit


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything needed to run, and what is expected to happen.

    Attributes:
        schema: ``PLAN_SCHEMA``.
        job: What is trained.
        cluster: What it runs on.
        strategy: How it is run.
        estimate: What arithmetic says; None where no formula covers the job, and its peak and step
            time are unknown until they are simulated.
        typed_model: The hub's name of a model as somebody typed it, which exports name; empty:
            where the model of that shape was published.
        is_length_given: Whether somebody said how long it is; else ``num_steps`` is a default that
            exports do not pass on.
        asked_tokens: Of the run, where its length was said in tokens, which ``num_steps`` takes for
            those of full rows; 0: it was not.
    """

    schema: Line
    job: Job
    cluster: Cluster
    strategy: Strategy
    estimate: Estimate | None
    typed_model: Line = ""
    is_length_given: bool = True
    asked_tokens: int = 0


Value = TypeVar("Value")


def write_yaml(value: msgspec.Struct, path: Path) -> None:
    """Write a value as YAML, atomically: the old file stays whole until the new one is."""
    from brimful.files.writing import write_text

    write_text(path, to_yaml(value))


def to_yaml(value: msgspec.Struct) -> str:
    """Spell a value as YAML, fields in the order of its class."""
    return yaml_text(msgspec.to_builtins(value))


def read_yaml(path: Path, kind: type[Value]) -> Value:
    """Read a value from YAML.

    ``kind``: the class it must be. Returns the value, its fields checked for type and name. Raises
    FileFormatError: it cannot be read, is not YAML, or has an unknown or missing field.
    """
    raw = load_yaml(path)
    if kind is Plan:
        # Refuse another version before its fields are looked at: they would all seem wrong.
        schema = raw.get("schema", PLAN_SCHEMA) if isinstance(raw, dict) else PLAN_SCHEMA
        if schema != PLAN_SCHEMA:
            raise FileFormatError(
                f"{path} has schema {schema!r} and this version reads {PLAN_SCHEMA!r}; plan again"
            )
    return convert(raw, kind, source=str(path))


def load_yaml(path: Path, *, last_counts: bool = False) -> Any:
    """Read a YAML file into plain dicts and lists.

    ``last_counts``: whether of a key that is given twice the last one counts, as of flags.
    """
    try:
        text = read_whole(path, most_bytes=MOST_YAML_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{path} is not UTF-8 text (byte {error.start}); give a YAML file"
        ) from error
    except FileFormatError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or error
        raise FileFormatError(f"{path} cannot be read ({reason}); check the path") from error
    import yaml

    from brimful.text.yaml_loader import loader

    try:
        return yaml.load(text, loader(last_counts=last_counts))  # noqa: S506 - a SafeLoader with two more rules
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1}: {getattr(error, 'problem', error)})" if where else ""
        raise FileFormatError(f"{path} is not YAML{line}; mend it or plan again") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise FileFormatError(
            f"{path} is not a plan (a date that never was, a number of thousands of digits, a key "
            f"that is a list, or thousands of brackets); plan again"
        ) from error


def convert(raw: Any, kind: type[Value], *, source: str) -> Value:
    """Turn plain dicts and lists into a value, or say which field is wrong."""
    if raw is None:
        raise FileFormatError(f"{source} is empty; plan again or give another file")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise FileFormatError(f"{source}: {explain_mismatch(error, kind)}") from error


def read_plan(path: Path) -> Plan:
    """Read a plan and check it as if it had been typed in today.

    Raises:
        FileFormatError: It is not a plan of this schema.
        InputError: It was edited into something that cannot run.
        UnsupportedError: It is for more devices than this version runs on.
    """
    plan = read_yaml(path, Plan)
    try:
        check_model(plan.job.model)
        check_job(plan.job)
        check_cluster(plan.cluster)
        placed(check_strategy(plan.job, plan.strategy), plan.cluster.num_devices)
    except (InputError, UnsupportedError) as error:
        raise type(error)(f"{path}: {error}") from error
    return plan
