"""A watcher for any training loop: statistics of every module's numbers on chosen steps.

::

    watcher = Watcher(model, optimizer, every=50)
    for step, batch in enumerate(batches, start=1):
        with watcher.step(step, loss_scale=scaler.get_scale()):
            ...  # forward, backward, update, as ever
    watched = watcher.watched()

On steps that are not watched nothing is installed. On the others every tensor is counted where it
appears (``measuring``) and let go; what is kept is counts. Gradients of parameters are seen as
autograd hands them over, which is each process's own, before DDP or FSDP2 sends anything.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from brimful.build.own import own_memory
from brimful.build.phases import in_backward
from brimful.doctor.measuring import Counted, count_magnitudes
from brimful.doctor.moments import look_at_moments
from brimful.doctor.records import (
    BATCH,
    GRADIENTS,
    FirstBad,
    Kind,
    Lost,
    Moments,
    Row,
    ScaleStep,
    Watched,
)
from brimful.doctor.spectrum import NUM_BINS, from_counts
from brimful.doctor.tensors import floats
from brimful.doctor.updates import Updates

KEPT_STEPS = 64
"""Watched steps that are kept; beyond, every second one but the last is let go."""
_BAD = slice(NUM_BINS - 2, NUM_BINS)
ALL_KINDS: frozenset[Kind] = frozenset(
    {"input", "weight", "activation", "output-gradient", "gradient", "update"}
)


def _is_norm(module: nn.Module) -> bool:
    """Whether a module squares what it is given: the range of that decides what it overflows in."""
    return "Norm" in type(module).__name__


class _Event(NamedTuple):
    """One tensor that was looked at; ``ends`` are of what is only searched for Inf and NaN."""

    name: str
    kind: Kind
    held: str
    counted: Counted | None
    ends: torch.Tensor | None
    given: torch.Tensor | None


class _Entered(NamedTuple):
    name: str
    given: torch.Tensor | None


class _Total:
    """What one module and kind has come to in the step so far."""

    def __init__(self, held: str) -> None:
        self.held = held
        self.counts = np.zeros(NUM_BINS, np.int64)
        self.largest_bits = 0


class Watcher:
    """Watches a model, and its optimizer where one is given."""

    def __init__(  # noqa: PLR0913 - what is watched, and how closely
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        every: int = 1,
        called: nn.Module | None = None,
        also: Mapping[str, nn.Module] | None = None,
        kinds: frozenset[Kind] = ALL_KINDS,
        with_ranges: bool = False,
        rank: int = 0,
    ) -> None:
        """Name every module; nothing is installed yet.

        Args:
            model: Whose modules and parameters are watched, under its own names.
            optimizer: Whose updates are.
            every: Steps from one that is watched to the next; step 1 is watched.
            called: What a micro-batch is called through, where that is not the model.
            also: Further modules by name, such as the loss.
            kinds: What is looked at.
            with_ranges: Whether to note what modules are given, for the first Inf or NaN.
            rank: Of this process.
        """
        self._model = model
        self._optimizer = optimizer
        self._every = every
        self._called = model if called is None else called
        self._kinds = kinds
        self._with_ranges = with_ranges
        self._rank = rank
        root = type(model).__name__
        named = {module: name or root for name, module in model.named_modules()}
        self._names = {**{m: name for name, m in (also or {}).items()}, **named}
        self._rows: dict[int, list[Row]] = {}
        self._bads: list[FirstBad] = []
        self._lost: list[Lost] = []
        self._moments: list[Moments] = []
        self._scales: list[ScaleStep] = []
        self._handles: list[Any] = []
        self._step = 0
        self._clear(0, 1.0)

    @property
    def is_watching(self) -> bool:
        """Whether a watched step is in progress."""
        return bool(self._step)

    @contextmanager
    def step(self, number: int, *, loss_scale: float = 1.0) -> Iterator[None]:
        """Watch one optimizer step, if it is its turn.

        Args:
            number: From 1.
            loss_scale: What its loss is multiplied by.
        """
        self.begin(number, loss_scale=loss_scale)
        try:
            yield
        finally:
            self.end()

    def begin(self, number: int, *, loss_scale: float = 1.0) -> None:
        """Begin a step; ``end`` must follow. For loops that have no place for ``step``."""
        if (number - 1) % self._every:
            return
        self.end()
        self._clear(number, loss_scale)
        self._install()

    def _clear(self, number: int, loss_scale: float) -> None:
        """Forget what a step before this one left."""
        self._step, self._scale = number, loss_scale
        self._events: list[_Event] = []
        self._totals: dict[tuple[str, Kind], _Total] = {}
        self._inside: list[_Entered] = []
        self._known: dict[int, weakref.ref[torch.Tensor]] = {}
        self._hooked: set[int] = set()
        self._micro_batch, self._order, self._has_begun = 0, 0, False
        self._first: FirstBad | None = None

    def end(self) -> None:
        """End a step: take away every hook and read what was counted."""
        if not self._step:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._flush()
        self._rows[self._step] = [self._row(key, t) for key, t in self._totals.items()]
        if self._first is not None:
            self._bads.append(self._first)
        self._clear(0, 1.0)
        if len(self._rows) <= KEPT_STEPS:
            return
        steps = list(self._rows)
        for step in steps[1:-1:2]:
            del self._rows[step]
        self._lost = [lost for lost in self._lost if lost.step in self._rows]
        self._moments = [held for held in self._moments if held.step in self._rows]

    def note_scale(self, step: int, scale: float, *, skipped: bool) -> None:
        """Note the loss scale of a step, watched or not, and whether the step was skipped."""
        self._scales.append(ScaleStep(step=step, scale=scale, skipped=skipped))

    def watched(self) -> Watched:
        """Return everything that was seen so far."""
        return Watched(
            rank=self._rank,
            steps=tuple(self._rows),
            rows=tuple(row for rows in self._rows.values() for row in rows),
            bads=tuple(self._bads),
            lost=tuple(self._lost),
            scales=tuple(self._scales),
            moments=tuple(self._moments),
        )

    def inside(self) -> str:
        """Name the module whose forward runs now; empty outside of all."""
        return self._inside[-1].name if self._inside else ""

    # Installing.

    def _install(self) -> None:
        keep = self._handles.append
        keep(
            self._called.register_forward_pre_hook(self._new_batch, with_kwargs=True, prepend=True)
        )
        for module in self._names:
            keep(module.register_forward_pre_hook(self._enter, with_kwargs=True))
            keep(module.register_forward_hook(self._leave))
        names = {p: name for name, p in self._model.named_parameters()}
        if "weight" in self._kinds:
            for parameter, name in names.items():
                self._count(name, "weight", parameter)
        if "gradient" in self._kinds:
            # What is sharded is not what computes: ``_enter`` finds that once it is gathered.
            for parameter, name in names.items():
                if not isinstance(parameter, DTensor):
                    self._hook_parameter(name, parameter)
        if self._optimizer is not None and "update" in self._kinds:
            self._install_updates(names)

    def _install_updates(self, names: Mapping[torch.Tensor, str]) -> None:
        assert self._optimizer is not None  # asked by the caller
        inner = getattr(self._optimizer, "optimizer", self._optimizer)  # of accelerate's wrapper
        updates, step = Updates(inner, names), self._step
        before: Callable[..., None] = lambda *_told: updates.before()  # noqa: E731

        def after(*_told: Any) -> None:
            self._lost += updates.after(step)
            self._moments += look_at_moments(inner, names, step)

        self._handles.append(inner.register_step_pre_hook(before))
        self._handles.append(inner.register_step_post_hook(after))

    def _hook_parameter(self, name: str, parameter: torch.Tensor) -> None:
        if id(parameter) in self._hooked or not parameter.requires_grad:
            return
        self._hooked.add(id(parameter))
        self._handles.append(
            parameter.register_hook(lambda gradient: self._count(name, "gradient", gradient))
        )

    # Looking.

    def _new_batch(self, _module: nn.Module, args: Any, kwargs: Any) -> None:
        """Begin a micro-batch: what the one before it came to is read."""
        if in_backward():
            return
        self._flush()
        if self._has_begun:
            self._micro_batch += 1
            self._order = 0
        self._has_begun = True
        self._inside = []
        if "input" in self._kinds:
            for tensor in floats((args, kwargs)):
                self._count(BATCH, "input", tensor)
                self._know(tensor)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if "gradient" in self._kinds:
            for name, parameter in module._parameters.items():  # noqa: SLF001 - as it is now
                if parameter is not None:
                    self._hook_parameter(f"{self._names[module]}.{name}", parameter)
        if in_backward():
            return
        given = list(floats((args, kwargs)))
        if self._inside:
            for tensor in given:
                if not self._is_known(tensor):
                    # Look for Inf and NaN in what the module around made itself, between its parts.
                    self._know(tensor)
                    piece = own_memory(tensor).detach()
                    if piece.numel():
                        entered = self._inside[-1]
                        ends = torch.stack(torch.aminmax(piece)).float()
                        event = _Event(entered.name, "activation", "", None, ends, entered.given)
                        self._events.append(event)
        if "input" in self._kinds and _is_norm(module) and given:
            self._count(self._names[module], "input", given[0])
        self._inside.append(_Entered(self._names[module], self._range(given)))

    def _leave(self, module: nn.Module, _args: Any, out: Any) -> None:
        again = in_backward()
        name = self._names[module]
        given = None
        if not again and self._inside:
            given = self._inside.pop().given
        for tensor in floats(out):
            if self._is_known(tensor):
                continue  # its part's own
            self._know(tensor)
            if not again and "activation" in self._kinds:
                self._count(name, "activation", tensor, given=given)
            if tensor.requires_grad and "output-gradient" in self._kinds:
                self._hook_output(name, tensor)

    def _hook_output(self, name: str, tensor: torch.Tensor) -> None:
        def seen(gradient: torch.Tensor) -> None:
            if self._step:
                self._count(name, "output-gradient", gradient)

        tensor.register_hook(seen)  # goes with the tensor

    def _count(
        self, name: str, kind: Kind, tensor: torch.Tensor, given: torch.Tensor | None = None
    ) -> None:
        held = str(tensor.dtype).removeprefix("torch.")
        self._events.append(_Event(name, kind, held, count_magnitudes(tensor), None, given))

    def _range(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return the smallest and the largest number of what a module is given: [2]."""
        pieces = [own_memory(x).detach() for x in tensors] if self._with_ranges else []
        ends = [torch.stack(torch.aminmax(x)).float() for x in pieces if x.numel()]
        if not ends:
            return None
        lows, highs = torch.stack(ends).unbind(1)
        return torch.stack([lows.amin(), highs.amax()])

    def _know(self, tensor: torch.Tensor) -> None:
        self._known[id(tensor)] = weakref.ref(tensor)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        known = self._known.get(id(tensor))
        return known is not None and known() is tensor

    # Reading.

    def _flush(self) -> None:
        """Read what the events of a micro-batch counted, at one time."""
        events, self._events = self._events, []
        self._known = {}
        counted = [event.counted for event in events if event.counted is not None]
        if counted:
            counts = torch.stack([c.counts for c in counted]).cpu().numpy()
            largest = torch.stack([c.largest_bits for c in counted]).tolist()
        ends = [event.ends for event in events if event.ends is not None]
        read_ends = torch.stack(ends).tolist() if ends else []
        taken_counts, taken_ends = 0, 0
        for event in events:
            if event.counted is None:
                low, high = read_ends[taken_ends]
                taken_ends += 1
                # Minus infinity is how masks are written.
                is_bad = not (low < np.inf and high < np.inf)
            else:
                row = counts[taken_counts]
                self._take(event, row, largest[taken_counts])
                taken_counts += 1
                is_bad = bool(row[_BAD].any())
            if is_bad and self._first is None:
                self._first = self._bad(event)
            self._order += 1

    def _take(self, event: _Event, counts: Any, largest_bits: int) -> None:
        key = (event.name, event.kind)
        total = self._totals.get(key)
        if total is None:
            total = self._totals[key] = _Total(event.held)
        total.counts += counts
        total.largest_bits = max(total.largest_bits, largest_bits)

    def _bad(self, event: _Event) -> FirstBad:
        low, high = (None, None) if event.given is None else event.given.tolist()
        return FirstBad(
            step=self._step,
            rank=self._rank,
            micro_batch=self._micro_batch,
            order=self._order,
            name=event.name,
            kind=event.kind,
            input_low=low,
            input_high=high,
        )

    def _row(self, key: tuple[str, Kind], total: _Total) -> Row:
        name, kind = key
        return Row(
            step=self._step,
            name=name,
            kind=kind,
            held=total.held,
            scale=self._scale if kind in GRADIENTS else 1.0,
            largest=float(np.int32(total.largest_bits).view(np.float32)),
            spectrum=from_counts(total.counts.tolist()),
        )
