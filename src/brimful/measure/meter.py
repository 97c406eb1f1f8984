"""Meters: instruments that watch a real run's first steps, and know nothing of the tape.

On a CPU the profiler's allocation events (``profile_memory=True``) with their addresses; on CUDA
the caching allocator's own counters.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from brimful.build import phases
from brimful.build.loss import CHUNK
from brimful.build.program import Program, gradients, state_tensors
from brimful.measure.allocations import MARKER, read_allocations
from brimful.measure.reading import Reading
from brimful.plan import MemoryItem, PhasePeak
from brimful.rungs import BUFFERS, OPTIMIZER_STATE, PARAMETERS


class Meter(Protocol):
    """Started before the program is built, stopped after its second step."""

    reading: Reading | None

    def start(self) -> None:
        """Begin to watch."""

    def stop(self, program: Program) -> None:
        """Stop watching and read."""


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

    def start(self) -> None:
        """Start the profiler; nothing of the program exists yet."""
        self._profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        )
        self._stack.enter_context(self._profiler)
        self._stack.enter_context(phases.listening(self._listen))

    def stop(self, program: Program) -> None:
        """Stop the profiler and read its events."""
        self._stack.close()
        lasting = {
            PARAMETERS: addresses(program.model.parameters()),
            BUFFERS: addresses(program.model.buffers()),
            OPTIMIZER_STATE: addresses(state_tensors(program)),
        }
        events = self._profiler.profiler.kineto_results.experimental_event_tree()
        self.reading = read_allocations(events, lasting=lasting, gradients=self._gradients)

    def _listen(self, name: str, begins: bool, program: Program) -> None:  # noqa: FBT001
        if name == CHUNK:
            return
        if begins:
            self._ranges.append(torch.profiler.record_function(MARKER + self._counter.name(name)))
            self._ranges[-1].__enter__()
            return
        self._ranges.pop().__exit__(None, None, None)
        if name == "backward":
            self._gradients.append(addresses(gradients(program)))
        self._counter.ended(name)


@dataclass
class CudaMeter:
    """Reads the caching allocator's counters at the ends of phases."""

    reading: Reading | None = None
    _peaks: dict[str, PhasePeak] = field(default_factory=dict)
    _reserved: int = 0
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _counter: _StepCounter = field(default_factory=_StepCounter)

    def start(self) -> None:
        """Forget earlier peaks and begin to listen."""
        torch.cuda.reset_peak_memory_stats()
        self._stack.enter_context(phases.listening(self._listen))

    def stop(self, program: Program) -> None:
        """Read what lasts; what the counters cannot tell apart is left out."""
        self._stack.close()
        self.reading = Reading(
            method="CUDA caching allocator counters",
            items=tuple(
                _item(name, tensors)
                for name, tensors in (
                    (PARAMETERS, list(program.model.parameters())),
                    (BUFFERS, list(program.model.buffers())),
                    (OPTIMIZER_STATE, state_tensors(program)),
                )
            ),
            phases=tuple(self._peaks.values()),
            measured_peak_allocated_bytes=max(p.num_bytes for p in self._peaks.values()),
            measured_peak_reserved_bytes=self._reserved,
            timeline=None,
        )

    def _listen(self, name: str, begins: bool, program: Program) -> None:  # noqa: ARG002, FBT001
        if name == CHUNK:
            return
        if begins and not self._peaks:
            self._note("load", "load")
        if not begins:
            step = self._counter.name(name)
            self._note("step 1" if self._counter.step == 1 else "step 2+", step)
            self._counter.ended(name)

    def _note(self, phase: str, where: str) -> None:
        peak = torch.cuda.max_memory_allocated()
        self._reserved = max(self._reserved, torch.cuda.max_memory_reserved())
        torch.cuda.reset_peak_memory_stats()
        if phase not in self._peaks or peak > self._peaks[phase].num_bytes:
            self._peaks[phase] = PhasePeak(phase=phase, num_bytes=peak, where=where)


def addresses(tensors: Iterable[torch.Tensor]) -> set[int]:
    """Collect the addresses of the tensors' storages."""
    return {x.untyped_storage().data_ptr() for x in tensors}


def _item(name: str, tensors: list[torch.Tensor]) -> MemoryItem:
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return MemoryItem(
        name=name,
        phase="step 2+",
        num_bytes=sum(storages.values()),
        where="device",
        why="storages that exist after step 2",
    )
