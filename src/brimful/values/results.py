"""The second and third rung as values: what a simulation and a measurement say.

Both are JSON files in a run's folder. They share item and phase names with ``plan.Estimate``, and
never a field: a simulated number is called simulated, a measured one measured.
"""

from typing import Literal

import msgspec

from brimful.values.plan import MemoryItem, PhasePeak, Word

Outcome = Literal["fits", "fits with retries", "over the limit", "out of memory"]
"""``fits``: completes and never gives back what it cached. ``tight``: completes, with retries.
``no``: does not complete, or only beyond its limit."""
SIMULATION_SCHEMA = "brimful.simulation/1"
MEASUREMENT_SCHEMA = "brimful.measurement/1"

LOAD, STEP_1, STEP_2, EVAL, SAVE, RESUME = "load", "step 1", "step 2+", "eval", "save", "resume"
"""Phases of a run, as every rung names them."""

PARAMETERS = "parameters"
BUFFERS = "buffers"
GRADIENTS = "gradients"
OPTIMIZER_STATE = "optimizer state"
AUTOCAST_CACHE = "autocast cache"
SAVED_ACTIVATIONS = "saved activations"
LOGITS = "logits and loss"
TRANSIENTS = "transients"
WORKSPACES = "kernel workspaces"
GATHERED = "gathered parameters"
REDUCED = "reduce buffers"
REFERENCE = "reference"
ITEM_NAMES = (
    PARAMETERS,
    BUFFERS,
    GRADIENTS,
    OPTIMIZER_STATE,
    AUTOCAST_CACHE,
    SAVED_ACTIVATIONS,
    LOGITS,
    TRANSIENTS,
    WORKSPACES,
    GATHERED,
    REDUCED,
    REFERENCE,
)
"""Every class of device bytes, in the order in which people ask for them; profiles refer to them by
their place."""
PAGED_STATE = "paged optimizer state"
"""Of memory that CUDA manages, as an item of the host, where it is when a GPU is full."""
WHOLE_GRADIENTS = "whole gradients"
NOT_UPDATED = "copies not updated"
"""Classes of other people's programs alone, which no profile has."""


class PhaseOwners(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose most of the bytes are at the highest instant of the phases of one name.

    Attributes:
        phase: Their name, e.g. ``step 2 backward``.
        num_bytes: Alive then.
        owners: Module pattern and item, and their bytes, largest first, a few only.
    """

    phase: str
    num_bytes: int
    owners: tuple[tuple[str, int], ...]


class Timeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Live bytes over a run's first steps, thinned so that every local maximum of note stays.

    Attributes:
        event: Position of each sample in the sequence of allocations and frees.
        live_bytes: Bytes alive after that event.
        phase_starts: Event at which each phase begins.
        phases: Name of each phase, e.g. ``step 1 forward``.
        owners: By name of phase, whose the bytes are; empty where modules are not known.
    """

    event: tuple[int, ...]
    live_bytes: tuple[int, ...]
    phase_starts: tuple[int, ...]
    phases: tuple[str, ...]
    owners: tuple[PhaseOwners, ...] = ()


class Owner(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One allocation that is alive at the peak.

    Attributes:
        num_bytes: Its size.
        item: Which item it counts in.
        module: Path of the module that allocated it, e.g. ``model.layers.3.mlp``.
        op: The operation that made it, e.g. ``aten.mm.default``.
        shape: Its shape as text.
        dtype: Its element type.
    """

    num_bytes: int
    item: str
    module: str
    op: str
    shape: str
    dtype: str


class Reserved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What PyTorch's caching allocator makes of a simulation, by replay at capacity.

    Attributes:
        allocator: Its settings, as ``PYTORCH_CUDA_ALLOC_CONF`` spells them; empty: the defaults.
        capacity_bytes: What it may take of the device where what lies outside takes the least.
        firm_bytes: The same where that takes the most.
        outcome: Whether the run completes, completes after flushing its cache, completes with more
            than the limit, or does not.
        simulated_peak_reserved_bytes: The most it held; up to its end, where it runs out.
        simulated_unhindered_bytes: The most it would hold of a card without end: the least with
            which nothing is ever given back.
        simulated_peak_block_bytes: The most that was handed out, in whole blocks: what
            ``torch.cuda.max_memory_allocated`` says. A large block is not split where 1 MiB or less
            would be left.
        num_retries: How often it gave back all it had cached and tried again (slow).
        short_bytes: By how much the request that failed was too large, or the limit was passed; 0
            where neither happened.
        where: Phase and owner of that request, in words; empty where none failed.
        limit_bytes: What it may hold of that capacity, where the plan has a limit of its own.
    """

    allocator: str
    capacity_bytes: int
    firm_bytes: int
    outcome: Outcome
    simulated_peak_reserved_bytes: int
    simulated_unhindered_bytes: int
    simulated_peak_block_bytes: int
    num_retries: int
    short_bytes: int
    where: str
    limit_bytes: int | None = None

    @property
    def word(self) -> Word:
        """Whether a plan holds of which this is said."""
        if self.outcome in {"out of memory", "over the limit"}:
            return "no"
        return "fits" if self.is_firm else "tight"

    @property
    def is_firm(self) -> bool:
        """Whether it completes without giving anything back, whatever lies outside."""
        return self.simulated_unhindered_bytes <= self.firm_bytes

    @property
    def excess_bytes(self) -> int:
        """What it would hold beyond what it surely may, if nothing were given back; 0: it fits."""
        firm, limit = self.firm_bytes, self.limit_bytes
        most = firm if limit is None else min(firm, limit)
        return max(0, self.simulated_unhindered_bytes - most)


class PhaseContent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is alive at the peak of one phase.

    Attributes:
        phase: Its name.
        items: By class; their sum is the phase's peak.
        owners: The largest allocations, largest first.
    """

    phase: str
    items: tuple[MemoryItem, ...]
    owners: tuple[Owner, ...]


class Collective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one device and others tell each other in one optimizer step, of one kind.

    Attributes:
        kind: ``all-gather``, ``reduce-scatter``, ``all-reduce``, ``broadcast``, or the name of
            another operator.
        num_calls: How often.
        num_bytes: Of whole tensors, all calls together: what all-gathers make, and what the others
            are given.
    """

    kind: str
    num_calls: int
    num_bytes: int


class Simulation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The second rung: the code that trains, run on the pretend GPU.

    Attributes:
        schema: ``SIMULATION_SCHEMA``.
        versions: Versions of python, torch, transformers and brimful, as ``name version``.
        kernels: Whose kernels were assumed: ``cuda`` or ``cpu``.
        items: What is alive at the peak, by class; their sum is the peak.
        phases: Peak of every phase.
        simulated_peak_allocated_bytes: The largest live total.
        reserved: What the caching allocator makes of it; None on a CPU, which has none.
        owners: The largest allocations at the peak, largest first.
        num_events: Allocations and frees recorded.
        simulate_s: Wall time of the simulation without imports, in seconds.
        timeline: Live bytes over time.
        contents: Of the phases that were asked for besides the steps: judging, saving, resuming.
        collectives: Of one optimizer step, by kind; empty on one device.
        host: What is offloaded, at its highest, by purpose; empty where nothing is.
        simulated_peak_host_bytes: Their sum.
        simulated_host_block_bytes: The same in the blocks of powers of two that PyTorch pins on a
            GPU's host and keeps for later ones of that size; None on a CPU, which pins nothing.
        unknown_ops: Operations whose kernels may take memory that is not in here: with any, the
            peak is at least what is simulated.
    """

    schema: str
    versions: tuple[str, ...]
    kernels: str
    items: tuple[MemoryItem, ...]
    phases: tuple[PhasePeak, ...]
    simulated_peak_allocated_bytes: int
    reserved: Reserved | None
    owners: tuple[Owner, ...]
    num_events: int
    simulate_s: float
    timeline: Timeline
    contents: tuple[PhaseContent, ...] = ()
    collectives: tuple[Collective, ...] = ()
    host: tuple[MemoryItem, ...] = ()
    simulated_peak_host_bytes: int = 0
    simulated_host_block_bytes: int | None = None
    unknown_ops: tuple[str, ...] = ()


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The third rung: what the real run did.

    Attributes:
        schema: ``MEASUREMENT_SCHEMA``.
        versions: As in ``Simulation``.
        method: The instrument, in words.
        items: What was alive at the peak, by class.
        phases: Peak of every phase.
        measured_peak_allocated_bytes: The largest live total.
        measured_peak_reserved_bytes: The caching allocator's largest total; None on a CPU.
        measured_process_bytes: Largest resident memory of the process (CPU) or NVML's figure.
        measured_step_s: Median seconds per optimizer step, outside the metered first two.
        timeline: Live bytes over the metered steps; None where the instrument has no events.
        host: What was offloaded, at its highest, by purpose; empty where that cannot be told.
        measured_peak_host_bytes: On a CPU their sum, on a GPU what was pinned; None where nothing
            is offloaded.
    """

    schema: str
    versions: tuple[str, ...]
    method: str
    items: tuple[MemoryItem, ...]
    phases: tuple[PhasePeak, ...]
    measured_peak_allocated_bytes: int
    measured_peak_reserved_bytes: int | None
    measured_process_bytes: int
    measured_step_s: float | None
    timeline: Timeline | None
    host: tuple[MemoryItem, ...] = ()
    measured_peak_host_bytes: int | None = None
