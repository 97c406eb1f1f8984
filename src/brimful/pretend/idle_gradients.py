"""Gradients that nothing uses: of parameters that no optimizer of the program updates.

A teacher, a reference or a reward model that runs without ``torch.no_grad()`` gets gradients as
large as itself, and its forward pass keeps what its backward pass needs.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from brimful.loop_phases import tensors_in
from brimful.pretend.not_updated import Part, RowsOf
from brimful.pretend.report_values import IdleGradients


class Pass(NamedTuple):
    """A call of an outermost module.

    Attributes:
        parameters: Those of the module, by ``id``.
        has_graph: Whether a backward pass could go through what it returned.
        end: Event of the first device's recording by which it has returned.
        rows: Where what it returned lies on that device.
    """

    parameters: frozenset[int]
    has_graph: bool
    end: int
    rows: tuple[int, ...]


class Trained:
    """Which parameters had gradients, and which were updated.

    Attributes:
        updated: Those that an optimizer has, by ``id``.
        updated_rows: Where they lie on the first device.
        parts: Of the modules that were called.
        shards: Of parameters that FSDP2 has whole for a while, the ``id`` of the shard that an
            optimizer has.
        passes: Of each phase that calls an outermost module, by the phase's number.
        num_updates: Of every optimizer; one that is gone is not taken for a later one.
        checkpointing: By class of each model that has it turned on, whether what has it trains.
    """

    def __init__(self) -> None:
        """Have seen none yet."""
        self._models: dict[int, tuple[str, int, int]] = {}
        self._gradients: dict[int, set[int]] = {}
        self._states: dict[int, set[int]] = {}
        self.checkpointing: dict[str, bool] = {}
        self.updated = set[int]()
        self.updated_rows = set[int]()
        self.parts: list[Part] = []
        self.shards = WeakTensorKeyDictionary()
        self.passes: dict[int, Pass] = {}
        self.num_updates = Counter[ref[torch.optim.Optimizer]]()

    def has_run(
        self, phase: int, module: torch.nn.Module, output: Any, end: int, rows_of: RowsOf
    ) -> None:
        """Note what a module returned whose call is a phase, and by which event."""
        leaves = [each for each in pytree.tree_leaves(output) if isinstance(each, torch.Tensor)]
        has_graph = any(each.requires_grad for each in leaves)
        parameters = frozenset(map(id, torch.nn.Module.parameters(module)))
        self.passes[phase] = Pass(parameters, has_graph, end, rows_of(leaves))
        inside = torch.nn.Module.modules(module)
        flagged = [x for x in inside if getattr(x, "gradient_checkpointing", False) is True]
        if has_graph and flagged:
            self.checkpointing[type(module).__name__] = any(each.training for each in flagged)

    def had_gradients(
        self, trained: Iterable[tuple[torch.nn.Module, torch.Tensor]], rows_of: RowsOf
    ) -> None:
        """Note parameters that have a gradient, each with the outermost module that it is of."""
        for module, parameter in trained:
            if parameter.grad is not None:
                grad = parameter.grad
                told = (type(module).__name__, grad.numel(), grad.numel() * grad.element_size())
                number = self.shards.get(parameter, id(parameter))
                self._models[number] = told
                self._gradients.setdefault(number, set()).update(rows_of([grad]))

    def was_updated(self, optimizer: torch.optim.Optimizer, rows_of: RowsOf) -> None:
        """Note the parameters that an optimizer has, and where they lie."""
        every = [each for group in optimizer.param_groups for each in group["params"]]
        self.num_updates[ref(optimizer)] += 1
        self.updated |= {*map(id, every)}
        self.updated_rows.update(rows_of(every))
        if sum(not part.path for part in self.parts) > 1:
            for each in every:
                state = list(tensors_in(optimizer.state.get(each)))
                self._states.setdefault(id(each), set()).update(rows_of(state))

    def rows_for(self, parameters: Collection[int]) -> list[int]:
        """Return where gradients and optimizer state of some parameters lie; both by ``id``."""
        both = (self._gradients, self._states)
        return [row for rows in both for each in parameters for row in rows.get(each, ())]

    @property
    def num_steps(self) -> int:
        """How often every optimizer that is still there has made an update; of none, that was."""
        there = [num for which, num in self.num_updates.items() if which() is not None]
        return min(there or self.num_updates.values(), default=0)

    def idle(self) -> tuple[IdleGradients, ...]:
        """Return by model the gradients that no update used, the largest first.

        Where none of what had gradients was updated there is none: an engine updates copies.
        """
        idle = [self._models[number] for number in self._idle()]
        every = [
            IdleGradients(
                model=model,
                num_parameters=sum(num for name, num, _ in idle if name == model),
                num_bytes=sum(size for name, _, size in idle if name == model),
            )
            for model in {name for name, _, _ in idle}
        ]
        return tuple(sorted(every, key=lambda each: -each.num_bytes))

    def idle_rows(self) -> list[int]:
        """Return where gradients lie that no update used."""
        idle = {*self._idle()}
        used = (rows for number, rows in self._gradients.items() if number not in idle)
        return sorted(set().union(*map(self._gradients.__getitem__, idle)).difference(*used))

    def idle_passes(self) -> list[int]:
        """Return the phases that call modules whose gradients no update uses."""
        idle = {*self._idle()}
        return [
            phase
            for phase, each in self.passes.items()
            if each.parameters & idle and not each.parameters & self.updated
        ]

    def returned(self) -> list[int]:
        """Return where lies what modules returned that phases call."""
        return [row for each in self.passes.values() for row in each.rows]

    def _idle(self) -> list[int]:
        """List the parameters that had gradients and are in no optimizer, by ``id``."""
        if not self.updated & {*self._models}:
            return []
        return [number for number in self._models if number not in self.updated]
