"""Meters for a loop that is not ours: they follow its first steps from outside.

The instruments are those of our own runs: the profiler's allocation events on a CPU, the caching
allocator's counters on CUDA. What the model held before is added by its own storages.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from brimful.loop_phases import Trained, following, state_of
from brimful.measure.allocations import MARKER, read_allocations
from brimful.measure.meter import CudaCounters, addresses, held_item
from brimful.measure.reading import Reading, with_held
from brimful.measure.seen_frees import frees_seen
from brimful.values.plan import MemoryItem
from brimful.values.results import BUFFERS, OPTIMIZER_STATE, PARAMETERS

NUM_STEPS = 2
"""Steps that are metered: the first makes things ready, the second is like all."""


@dataclass
class Subject:
    """What is watched.

    Attributes:
        model: It may have frozen parameters and tied ones.
        optimizer: Its state may not exist yet; a wrapper that has ``state`` will do.
    """

    model: torch.nn.Module
    optimizer: Any

    def lasting(self) -> list[tuple[str, list[torch.Tensor]]]:
        """List what outlives a step, by class."""
        return [
            (PARAMETERS, list(self.model.parameters())),
            (BUFFERS, list(self.model.buffers())),
            (OPTIMIZER_STATE, state_of(self.optimizer)),
        ]

    def items(self) -> tuple[MemoryItem, ...]:
        """Say what outlives a step, in bytes by class."""
        return tuple(held_item(name, tensors) for name, tensors in self.lasting())


class LoopMeter(Protocol):
    """Started before the first step, stopped after the last that is metered."""

    def start(self) -> None:
        """Begin to watch."""

    def stop(self) -> Reading | None:
        """Stop watching and read; None where no step was seen."""

    def abandon(self) -> None:
        """Stop watching and read nothing."""


def loop_meter(subject: Subject) -> LoopMeter:
    """Return the instrument for the device that the model is on."""
    parameter = next(iter(subject.model.parameters()), None)
    is_cuda = parameter is not None and parameter.device.type == "cuda"
    return CudaLoopMeter(subject) if is_cuda else CpuLoopMeter(subject)


@dataclass
class CpuLoopMeter:
    """Reads every allocation and free of the CPU allocator from the profiler."""

    subject: Subject
    _gradients: list[set[int]] = field(default_factory=list)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _held: dict[str, int] = field(default_factory=dict)
    _profiler: Any = None
    _has_begun: bool = False

    def start(self) -> None:
        """Remember what is held, and start the profiler."""
        self._held = {item.name: item.num_bytes for item in self.subject.items()}
        cpu = torch.profiler.ProfilerActivity.CPU
        self._profiler = torch.profiler.profile(activities=[cpu], profile_memory=True)
        self._stack.enter_context(frees_seen())
        self._stack.enter_context(self._profiler)
        self._stack.enter_context(following(self))

    def stop(self) -> Reading | None:
        """Stop the profiler and read its events."""
        self._stack.close()
        if not self._has_begun:
            return None
        lasting = {name: addresses(tensors) for name, tensors in self.subject.lasting()}
        events = self._profiler.profiler.kineto_results.experimental_event_tree()
        reading = read_allocations(
            events, lasting=lasting, gradients=self._gradients, until_next=True
        )
        return with_held(reading, self._held)

    def abandon(self) -> None:
        """Stop the profiler."""
        self._stack.close()

    def begin(self, phase: str) -> None:
        """Mark an instant: a phase lasts until the next one begins."""
        self._has_begun = True
        with torch.profiler.record_function(MARKER + phase):
            pass

    def adopt(self, module: torch.nn.Module) -> bool:
        """Follow any module's gradients; those of parts are addresses seen twice."""
        del module
        return True

    def after_forward(self, module: torch.nn.Module, output: Any) -> None:
        """Nothing: what is kept is read off addresses."""

    def after_backward(self, trained: Iterable[Trained]) -> None:
        """Keep the gradients' addresses."""
        self._gradients.append(addresses(x.grad for _, x in trained if x.grad is not None))

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Nothing: what lasts is asked for at the end."""


@dataclass
class CudaLoopMeter:
    """Reads the caching allocator's counters where one phase ends and the next begins."""

    subject: Subject
    counters: CudaCounters = field(default_factory=CudaCounters)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _phase: str = "load"
    _has_begun: bool = False

    def start(self) -> None:
        """Forget earlier peaks and begin to listen."""
        torch.cuda.reset_peak_memory_stats()
        self._stack.enter_context(following(self))

    def stop(self) -> Reading | None:
        """Read what lasts; what the counters cannot tell apart is left out."""
        self._stack.close()
        if not self._has_begun:
            return None
        self.counters.note(self._phase)
        return self.counters.reading(self.subject.items(), host_bytes=None)

    def abandon(self) -> None:
        """Stop listening."""
        self._stack.close()

    def begin(self, phase: str) -> None:
        """Read the counters of the phase that has ended."""
        self.counters.note(self._phase)
        self._phase, self._has_begun = phase, True

    def adopt(self, module: torch.nn.Module) -> bool:
        """Nothing to follow: the counters know it."""
        del module
        return False

    def after_forward(self, module: torch.nn.Module, output: Any) -> None:
        """Nothing: the counters know it."""

    def after_backward(self, trained: Iterable[Trained]) -> None:
        """Nothing: the counters know it."""

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Nothing: the counters know it."""
