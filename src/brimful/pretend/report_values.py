"""What a program's run on the pretend GPU says, as values: ``PretendReport`` and its parts.

Everything here was simulated, and says so by its name where it is a peak. How it is read off a
recording stands in ``report.py``.
"""

import msgspec

from brimful.pretend.model_values import Already, ModelBytes, NotUpdated
from brimful.pretend.step_values import Cut, Without
from brimful.pretend.unit_values import WholeGradients, WholeUnit
from brimful.units import format_bytes
from brimful.values.plan import MemoryItem, PhasePeak
from brimful.values.results import Outcome, Timeline
from brimful.values.unknown_memory import UnknownOp

PRETEND_SCHEMA = "brimful.pretend/1"
_NUM_PRINTED = 10
"""Parts of a program that a printed report lists."""


class Tensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One allocation, and everything that is known of it.

    Attributes:
        num_bytes: Its size.
        item: Which class it counts in.
        module: Path of the module that owns it; empty: none.
        op: The operation that made it.
        node: The autograd node that was running; empty in a forward pass.
        line: The source line outside PyTorch, ``file:number``; empty: not known.
        shape: Its shape as text.
        dtype: Its element type.
        stream: The stream that it was made on; 0 is the default stream.
        phase: The phase in which it was made.
    """

    num_bytes: int
    item: str
    module: str
    op: str
    node: str
    line: str
    shape: str
    dtype: str
    stream: int
    phase: str


class Alike(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Allocations of one class, operation, line, shape and type, in modules of one pattern.

    Attributes:
        module: Path with ``*`` for numbers.
        num_tensors: How many there are.
        num_bytes: Of all of them.
        one: One of them.
    """

    module: str
    num_tensors: int
    num_bytes: int
    one: Tensor


class ItemBytes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes of one class."""

    name: str
    num_bytes: int


class StateBytes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes of one class of states, of one type of element."""

    name: str
    dtype: str
    num_bytes: int


class ModuleBytes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What modules of one pattern hold together.

    Attributes:
        module: Path with ``*`` for numbers, e.g. ``model.layers.*.mlp``; empty: no module.
        num_modules: How many modules it stands for.
        num_allocations: How many allocations they hold.
        num_bytes: Their bytes.
    """

    module: str
    num_modules: int
    num_allocations: int
    num_bytes: int


class OwnerBytes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one part of a program holds at the peak.

    Attributes:
        whole: The part, cut after the first number of its path, e.g. ``model.layers.*``.
        items: Its bytes by class, in the order of ``ITEM_NAMES``.
        parts: Its bytes by module pattern, largest first.
    """

    whole: ModuleBytes
    items: tuple[ItemBytes, ...]
    parts: tuple[ModuleBytes, ...]


class PoolBytes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one pool of the caching allocator held when most was reserved."""

    stream: int
    is_small: bool
    num_bytes: int


class Outside(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Device memory that never passes the allocator, as a band; assumed, not simulated."""

    name: str
    low_bytes: int
    high_bytes: int
    source: str


class Failure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request at which the device ran out, after everything cached was given back.

    Attributes:
        event: Which event of the recording it was.
        num_events: How many there are.
        short_bytes: How much more the device would have had to give.
        reserved_bytes: What the allocator held then.
        allocated_bytes: What the program held then.
        tensor: What was asked for, by whom and where.
        called_at: The script's own line that called what asked, ``file:number``; empty: not known.
        called_in: The function that it stands in; empty: none.
    """

    event: int
    num_events: int
    short_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    tensor: Tensor
    called_at: str = ""
    called_in: str = ""


class AtCapacity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The replay of the caching allocator with no more than it can have.

    Attributes:
        card_bytes: What the driver offers of the card.
        outside_bytes: What was taken off for memory outside the allocator: its lowest figure.
        budget_bytes: The limit that was asked for; None: none.
        capacity_bytes: The smaller of the budget and of the card less what is outside.
        outcome: Whether the run completes, completes after flushing its cache, or does not.
        simulated_peak_reserved_bytes: The most it held; up to its end, where it runs out.
        num_retries: How often everything cached was given back for want of memory (slow).
        failure: The request that failed; None: none did.
    """

    card_bytes: int
    outside_bytes: int
    budget_bytes: int | None
    capacity_bytes: int
    outcome: Outcome
    simulated_peak_reserved_bytes: int
    num_retries: int
    failure: Failure | None


class Reserved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the caching allocator would hold if the device gave it anything.

    Attributes:
        simulated_peak_reserved_bytes: With the settings that were asked for.
        simulated_peak_reserved_native_bytes: With PyTorch's defaults.
        simulated_peak_reserved_expandable_bytes: With ``expandable_segments:True`` and no more.
        simulated_peak_inactive_split_bytes: Free parts of segments partly in use, at most.
        pools: What each pool held when most was reserved, with the settings that were asked for.
    """

    simulated_peak_reserved_bytes: int
    simulated_peak_reserved_native_bytes: int
    simulated_peak_reserved_expandable_bytes: int
    simulated_peak_inactive_split_bytes: int
    pools: tuple[PoolBytes, ...]


class Attention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tensors with one entry per pair of positions: ``[batch, heads, n, n]``.

    Attributes:
        simulated_peak_mask_bytes: Most bytes at once of those that look like masks: boolean, or
            of one head.
        simulated_peak_score_bytes: Most bytes at once of the others: scores and weights.
        largest: The largest one; None: there is none.
    """

    simulated_peak_mask_bytes: int
    simulated_peak_score_bytes: int
    largest: Tensor | None


class Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What forward passes leave behind for backward.

    Attributes:
        phase: The forward pass at whose end most was kept.
        num_bytes: How much.
        modules: By whom, largest first.
    """

    phase: str
    num_bytes: int
    modules: tuple[ModuleBytes, ...]


class Grows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every step leaves behind, so that a longer run takes more.

    Attributes:
        num_bytes: Of a step, at least.
        num_steps: In which that was seen.
        largest: The largest tensor that one of them leaves.
        full_step: In which the card would be full, by proportion.
        num_more: So many steps on.
    """

    num_bytes: int
    num_steps: int
    largest: Tensor
    full_step: int = 0
    num_more: int = 0


class UnusedGraphs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What forward passes keep at the peak for a backward pass that does not come.

    Attributes:
        num_bytes: Of it.
        num_forwards: How many forward passes it is of.
        called_at: The script's own line that called most of it; empty: not known.
    """

    num_bytes: int
    num_forwards: int
    called_at: str = ""


class IdleGradients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gradients of a model's parameters that no optimizer updates, though others it does.

    Attributes:
        model: The class of the outermost module.
        num_parameters: Those that are not updated.
        num_bytes: Of their gradients.
    """

    model: str
    num_parameters: int
    num_bytes: int


class StepTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a step takes of which the work of every operation was summed up.

    Attributes:
        step: Which one.
        simulated_s: Seconds.
        low_s: Of the band around it.
        high_s: Likewise.
    """

    step: int
    simulated_s: float
    low_s: float
    high_s: float


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the same program held in the host's memory, as tensors.

    Attributes:
        simulated_peak_bytes: The most of it at once.
        tensors: The largest of those.
        items: All of those by class.
        paged_bytes: The most of optimizer state in managed memory at once, which is here as far as
            the GPU has no room.
    """

    simulated_peak_bytes: int
    tensors: tuple[Tensor, ...]
    items: tuple[ItemBytes, ...] = ()
    paged_bytes: int = 0


class Launched(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kernel that is not PyTorch's own, and how often it was launched."""

    kernel: str
    num_launches: int


class Missed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A package of kernels that the program looked for and that is not installed.

    Attributes:
        package: Under which name it would be installed.
        lines: Where it was looked for, ``file:number``, once for each library that did.
        libraries: Which did; of the program's own file ``__main__``.
        comes_with_torch: Whether PyTorch's wheels for CUDA bring it, so that it is there where the
            program trains.
        can_be_assumed: Whether it can be stood in for here.
    """

    package: str
    lines: tuple[str, ...]
    libraries: tuple[str, ...]
    comes_with_torch: bool
    can_be_assumed: bool


class BesideTorch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Kernels that are not PyTorch's own.

    Attributes:
        launched: Which were launched, most launches first.
        missed: Packages of kernels that were looked for in vain: with them the program may take
            other kernels than it took here.
        stood_in: What stood for packages that are not installed, a sentence each.
    """

    launched: tuple[Launched, ...] = ()
    missed: tuple[Missed, ...] = ()
    stood_in: tuple[str, ...] = ()


class Logits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a head makes over a vocabulary, and its copies, alive at the peak.

    Attributes:
        num_tensors: How many there are.
        num_bytes: Of all of them.
        shape: Of the largest, as text.
        dtype: Of the largest.
        num_chunks: Parts in which the loss is taken where ``in_chunks`` says what that would do.
        in_chunks_reserved_bytes: What the allocator would hold then if it is never refused.
        in_chunks_fits: Whether its replay at capacity completes then.
    """

    num_tensors: int
    num_bytes: int
    shape: str
    dtype: str
    num_chunks: int
    in_chunks_reserved_bytes: int
    in_chunks_fits: bool


class PretendReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program's memory on a GPU that does not exist.

    Attributes:
        statement: The peak in a sentence: what is simulated, or that it is at least that, and of
            which operations it is not known what their kernels take.
        schema: ``PRETEND_SCHEMA``.
        versions: Versions of python, torch, transformers and brimful, as ``name version``.
        card: The card that was pretended.
        allocator: Settings as ``PYTORCH_CUDA_ALLOC_CONF`` spells them; empty: the defaults.
        fits: Whether the program completes at capacity; None: its time was over before that was
            known.
        at_capacity: The replay that says so.
        simulated_peak_allocated_bytes: The largest live total, as the program asked for it.
        simulated_peak_block_bytes: The same in blocks of the allocator, which round up
            (``torch.cuda.max_memory_allocated``).
        peak_event: After which event the live total is largest.
        peak_phase: In which phase that is.
        reserved: The replay without a limit.
        outside: Device memory outside the allocator.
        simulated_process_bytes: Of the process, as ``nvidia-smi`` shows it: what is reserved, with
            the middle of what lies outside.
        items: What is alive at the peak, by class; their sum is the peak.
        states: Parameters, gradients and optimizer state where they take most together: no batch
            makes these smaller.
        phases: Largest live total of every phase; like phases from step 2 on are one.
        owners: What is alive at the peak, by part of the program, largest first.
        alike: What is alive at the peak, like allocations together, largest first.
        tensors: The largest single allocations alive at the peak.
        logits: What a head makes over a vocabulary, if some of it is alive at the peak; its bytes
            are those of the class of this name in ``items``.
        kept: What forward passes leave for backward, by module.
        grows: What every step leaves behind; None: nothing, or of fewer steps than tell.
        unused_graphs: What no backward pass goes through; None: little of the peak.
        idle_gradients: Of parameters that no optimizer updates, by model.
        attention: Masks and attention scores.
        host: Host memory.
        timeline: Live bytes over time.
        num_events: Allocations and frees recorded.
        unknown_ops: Operations whose kernels may take memory that is not in here.
        beside_torch: Kernels that are not PyTorch's own.
        assumptions: What the numbers rest on, a sentence each.
        cut: Where the program was ended before its own end; None: it was not.
        whole_gradients: Those that are kept whole until they are reduced; None: there are none.
        already: What the program does already.
        step_time: Of the step that is the middle of the whole ones; None: not known.
        untimed: Why it is not known; empty: it is, or nothing trains.
        not_updated: Models and copies of models that no optimizer has, the largest first.
        models: What each of several models has at the peak, the largest first.
        whole_unit: A unit of FSDP that is most of a model; None: there is none.
        before_evaluation_bytes: What the allocator holds at most before the evaluation in which the
            program fails; None: it does not fail in one.
        without: What is left where unused graphs and idle gradients are not made; None: there are
            none.
        is_between_steps: Whether it fails, or is at its peak, in a pass between steps of training,
            whose rows are others than those of a batch.
    """

    statement: str
    schema: str
    versions: tuple[str, ...]
    card: str
    allocator: str
    fits: bool | None
    at_capacity: AtCapacity
    simulated_peak_allocated_bytes: int
    simulated_peak_block_bytes: int
    peak_event: int
    peak_phase: str
    reserved: Reserved
    outside: tuple[Outside, ...]
    simulated_process_bytes: int
    items: tuple[MemoryItem, ...]
    states: tuple[StateBytes, ...]
    phases: tuple[PhasePeak, ...]
    owners: tuple[OwnerBytes, ...]
    alike: tuple[Alike, ...]
    tensors: tuple[Tensor, ...]
    logits: Logits | None
    kept: Kept | None
    grows: Grows | None
    idle_gradients: tuple[IdleGradients, ...]
    attention: Attention
    host: Host
    timeline: Timeline
    num_events: int
    unknown_ops: tuple[UnknownOp, ...]
    beside_torch: BesideTorch
    assumptions: tuple[str, ...]
    cut: Cut | None = None
    whole_gradients: WholeGradients | None = None
    already: Already = Already()
    step_time: StepTime | None = None
    untimed: str = ""
    not_updated: tuple[NotUpdated, ...] = ()
    models: tuple[ModelBytes, ...] = ()
    whole_unit: WholeUnit | None = None
    unused_graphs: UnusedGraphs | None = None
    before_evaluation_bytes: int | None = None
    without: Without | None = None
    is_between_steps: bool = False

    def __repr__(self) -> str:
        """Say what it is of, and its peak."""
        return f"<PretendReport of {self.card}: {self.statement}>"

    def __str__(self) -> str:
        """Lay out the peak: by class of bytes, by model, and by part of the program."""
        at, whole = self.at_capacity, self.simulated_peak_allocated_bytes
        held = format_bytes(self.reserved.simulated_peak_reserved_bytes)
        capacity = format_bytes(at.capacity_bytes)
        parts = [(each.whole.module, each.whole.num_bytes) for each in self.owners]
        tables = {
            f"At the peak, in {self.peak_phase}": [(x.name, x.num_bytes) for x in self.items],
            "By model": [(each.name, each.num_bytes) for each in self.models],
            "By part of the program": [(name or "outside all modules", n) for name, n in parts],
        }
        lines = [self.statement, f"{self.card}: {at.outcome}; {held} of {capacity} reserved"]
        for title, rows in tables.items():
            most = sorted(rows, key=lambda row: -row[1])[:_NUM_PRINTED]
            lines += [title] * bool(rows)
            lines += [f"  {format_bytes(n):>10} {n / whole:6.1%}  {name}" for name, n in most]
        return "\n".join(lines)
