"""Meters: instruments that watch a real run's first steps, and know nothing of the tape.

On a CPU the profiler's allocation events (``profile_memory=True``) with their addresses; on CUDA
the caching allocator's own counters.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
import torch

from brimful.build import phases
from brimful.build.loss import CHUNK
from brimful.build.offload import HostOptimizer, host
from brimful.build.own import own_memory
from brimful.build.program import Program, gradients, parameters, state_tensors
from brimful.build.reference import state_of
from brimful.measure.allocations import HOST_MARKER, MARKER, read_allocations
from brimful.measure.reading import Reading, with_held
from brimful.measure.seen_frees import frees_seen, let_go
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.train import metering
from brimful.values.plan import MemoryItem, PhasePeak
from brimful.values.results import BUFFERS, OPTIMIZER_STATE, PARAMETERS, REFERENCE


class Meter(metering.Meter, Protocol):
    """Started before the program is built, stopped after its second step, and then read."""

    reading: Reading | None


def meter_for(kernels: str) -> Meter:
    """Return the instrument for a device of these kernels."""
    return CudaMeter() if kernels == "cuda" else CpuMeter()


@dataclass
class _StepCounter:
    """Names phases by step: ``step 1 forward``; the optimizer's phase ends a step."""

    step: int = 1

    def name(self, phase: str) -> str:
        return f"step {self.step} {phase}"

    def ended(self, phase: str) -> None:
        self.step += phase == "optimizer"


@dataclass
class CpuMeter:
    """Reads every allocation and free of the CPU allocator from the profiler."""

    reading: Reading | None = None
    _gradients: list[set[int]] = field(default_factory=list)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _ranges: list[Any] = field(default_factory=list)
    _counter: _StepCounter = field(default_factory=_StepCounter)
    _profiler: Any = None
    _held: dict[str, int] = field(default_factory=dict)

    def start(self) -> None:
        """Start the profiler; nothing of the program exists yet."""
        self._profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        self._stack.enter_context(frees_seen())
        self._stack.enter_context(self._profiler)
        self._stack.enter_context(phases.listening(self._listen))
        self._stack.enter_context(host.listening(self._hear_of_host))

    def begin_again(self, program: Program) -> None:
        """Start the profiler beside a program that is there, and remember what it holds."""
        held = {name: held_item(name, tensors).num_bytes for name, tensors in _lasting(program)}
        self._gradients, self._counter, self._held = [], _StepCounter(), held
        self.reading = None
        self.start()

    def stop(self, program: Program) -> None:
        """Stop the profiler and read its events."""
        self._stack.close()
        lasting = {name: addresses(tensors) for name, tensors in _lasting(program)}
        events = self._profiler.profiler.kineto_results.experimental_event_tree()
        reading = read_allocations(events, lasting=lasting, gradients=self._gradients)
        if self._held:  # neither loading was seen, nor what was on the host by then
            seen = tuple(peak for peak in reading.phases if peak.phase != "load")
            reading = msgspec.structs.replace(
                reading, phases=seen, host=(), measured_peak_host_bytes=None
            )
        self.reading = with_held(reading, self._held)

    def abandon(self) -> None:
        """Leave what is open; a profiler left running would break the next one."""
        while self._ranges:
            self._ranges.pop().__exit__(None, None, None)
        self._stack.close()

    def _hear_of_host(self, purpose: str, begins: bool) -> None:  # noqa: FBT001
        if begins:
            self._enter(HOST_MARKER + purpose)
        else:
            self._ranges.pop().__exit__(None, None, None)

    def _enter(self, name: str) -> None:
        self._ranges.append(torch.profiler.record_function(name))
        self._ranges[-1].__enter__()

    def _listen(self, name: str, begins: bool, program: Program) -> None:  # noqa: FBT001
        if name == CHUNK:
            return
        if begins:
            self._enter(MARKER + self._counter.name(name))
            return
        self._ranges.pop().__exit__(None, None, None)
        if name == "backward":
            let_go()
            self._gradients.append(addresses(gradients(program)))
        self._counter.ended(name)


class CudaPeaks(NamedTuple):
    """Peaks of the caching allocator's counters in one part of a step.

    Attributes:
        allocated_bytes: Given out, every request rounded up (to 512 bytes, or by settings).
        requested_bytes: Given out, as asked for: what compares with simulated live bytes.
        active_bytes: Given out, or freed while another stream may still use it.
        reserved_bytes: Held from the driver.
    """

    allocated_bytes: int
    requested_bytes: int
    active_bytes: int
    reserved_bytes: int


@dataclass
class CudaCounters:
    """The caching allocator's counters, read where parts of a step end.

    Attributes:
        peaks: Counters by part of a step: ``load``, ``step 1 forward``, ...; of several
            micro-batches the highest.
    """

    peaks: dict[str, CudaPeaks] = field(default_factory=dict)

    def note(self, part: str) -> None:
        """Keep the peaks since the last note; resetting starts every counter's peak anew."""
        stats = torch.cuda.memory_stats()
        now = CudaPeaks(*(stats[f"{name}.all.peak"] for name in CudaPeaks._fields))
        torch.cuda.reset_peak_memory_stats()
        self.peaks[part] = CudaPeaks(*map(max, now, self.peaks.get(part, now)))

    def reading(self, items: tuple[MemoryItem, ...], *, host_bytes: int | None) -> Reading:
        """Sum up.

        ``host_bytes``: what was pinned at most; None where nothing is offloaded.
        """
        return Reading(
            method="CUDA caching allocator counters",
            items=items,
            phases=self._coarse(),
            measured_peak_allocated_bytes=max(p.allocated_bytes for p in self.peaks.values()),
            measured_peak_reserved_bytes=max(p.reserved_bytes for p in self.peaks.values()),
            timeline=None,
            measured_peak_host_bytes=host_bytes,
        )

    def _coarse(self) -> tuple[PhasePeak, ...]:
        """Return the highest part of ``load``, ``step 1`` and ``step 2+``."""
        highest: dict[str, PhasePeak] = {}
        for part, peaks in self.peaks.items():
            phase = "load" if part == "load" else "step 2+"
            phase = "step 1" if part.startswith("step 1 ") else phase
            if phase not in highest or peaks.allocated_bytes > highest[phase].num_bytes:
                highest[phase] = PhasePeak(phase=phase, num_bytes=peaks.allocated_bytes, where=part)
        return tuple(highest.values())


@dataclass
class CudaMeter:
    """Reads the caching allocator's counters at the ends of phases.

    Workspaces that cuBLAS takes from the allocator are in every counter.

    Attributes:
        reading: What was read, after ``stop``.
        counters: The allocator's, by part of a step.
        held_bytes: Requested and still held after the last metered step.
        num_alloc_retries: Times the allocator flushed its cache to go on, since the process began.
    """

    reading: Reading | None = None
    counters: CudaCounters = field(default_factory=CudaCounters)
    held_bytes: int = 0
    num_alloc_retries: int = 0
    _has_loaded: bool = False
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _counter: _StepCounter = field(default_factory=_StepCounter)

    @property
    def peaks(self) -> dict[str, CudaPeaks]:
        """The counters by part of a step."""
        return self.counters.peaks

    def start(self) -> None:
        """Forget earlier peaks and begin to listen."""
        torch.cuda.reset_peak_memory_stats()
        self._stack.enter_context(phases.listening(self._listen))

    def begin_again(self, program: Program) -> None:  # noqa: ARG002 - the counters know it
        """Forget earlier peaks, what is held apart, and begin anew."""
        self.counters, self._counter, self.reading = CudaCounters(), _StepCounter(), None
        self._has_loaded = True
        self.start()

    def stop(self, program: Program) -> None:
        """Read what lasts; what the counters cannot tell apart is left out."""
        self._stack.close()
        stats = torch.cuda.memory_stats()
        self.held_bytes = stats["requested_bytes.all.current"]
        self.num_alloc_retries = stats["num_alloc_retries"]
        items = tuple(held_item(name, tensors) for name, tensors in _lasting(program))
        self.reading = self.counters.reading(items, host_bytes=_pinned_bytes(program))

    def abandon(self) -> None:
        """Stop listening."""
        self._stack.close()

    def _listen(self, name: str, begins: bool, program: Program) -> None:  # noqa: ARG002, FBT001
        if name == CHUNK:
            return
        if begins and not self.peaks and not self._has_loaded:
            self.counters.note("load")
        if not begins:
            self.counters.note(self._counter.name(name))
            self._counter.ended(name)


def _pinned_bytes(program: Program) -> int | None:
    """Return what PyTorch pinned at most, in its blocks; None where nothing is offloaded.

    State that is never copied, as the optimizer's on the host, is not pinned and not in it.
    """
    if program.strategy.offload == NO_OFFLOAD:
        return None
    return int(torch.cuda.host_memory_stats()["allocated_bytes.peak"])


def _lasting(program: Program) -> list[tuple[str, list[torch.Tensor]]]:
    """List what outlives a step on the device, by class."""
    every = [
        (PARAMETERS, parameters(program)),
        (BUFFERS, list(program.model.buffers())),
        (OPTIMIZER_STATE, state_tensors(program)),
        (REFERENCE, _reference(program)),
    ]
    away = _on_host(program)
    found = [(name, [t for t in tensors if not addresses([t]) & away]) for name, tensors in every]
    return [(name, tensors) for name, tensors in found if tensors or name != REFERENCE]


def _on_host(program: Program) -> set[int]:
    """Return where what is offloaded lies: on a CPU nothing else tells it from the device's."""
    blocks = program.offloaded.parameters
    away = set() if blocks is None else addresses(blocks.parameters)
    if isinstance(program.optimizer, HostOptimizer):
        away |= addresses([*program.optimizer.homes.values(), *state_tensors(program)])
    return away


def _reference(program: Program) -> list[torch.Tensor]:
    """List what a second model holds that is on the device; nothing without one."""
    held = [] if program.reference is None else state_of(program.reference)
    return [tensor for tensor in held if tensor.device.type == program.device.type]


def addresses(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Collect the addresses of the tensors' storages; of a sharded one of this device's part."""
    return {own_memory(x).untyped_storage().data_ptr() for x in tensors}


def held_item(name: str, tensors: list[torch.Tensor]) -> MemoryItem:
    """Sum up the storages of one class, each counted once."""
    held = [own_memory(x).untyped_storage() for x in tensors]
    storages = {storage.data_ptr(): storage.nbytes() for storage in held}
    return MemoryItem(
        name=name,
        phase="step 2+",
        num_bytes=sum(storages.values()),
        where="device",
        why="storages that exist after step 2",
    )
