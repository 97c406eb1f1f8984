"""Gradients that nothing uses: of parameters that no optimizer of the program updates.

A teacher, a reference or a reward model that runs without ``torch.no_grad()`` gets gradients as
large as itself, and its forward pass keeps what its backward pass needs.
"""

from collections import Counter
from collections.abc import Iterable
from weakref import ref

import torch

from brimful.pretend.not_updated import Part, RowsOf
from brimful.pretend.report_values import IdleGradients


class Trained:
    """Which parameters had gradients, and which were updated.

    Attributes:
        updated: Those that an optimizer has, by ``id``.
        updated_rows: Where they lie on the first device.
        parts: Of the modules that were called.
        num_updates: Of every optimizer; one that is gone is not taken for a later one.
    """

    def __init__(self) -> None:
        """Have seen none yet."""
        self._models: dict[int, tuple[str, int, int]] = {}
        self.updated = set[int]()
        self.updated_rows = set[int]()
        self.parts: list[Part] = []
        self.num_updates = Counter[ref[torch.optim.Optimizer]]()

    def had_gradients(self, trained: Iterable[tuple[torch.nn.Module, torch.Tensor]]) -> None:
        """Note parameters that have a gradient, each with the outermost module that it is of."""
        for module, parameter in trained:
            if parameter.grad is not None:
                grad = parameter.grad
                told = (type(module).__name__, grad.numel(), grad.numel() * grad.element_size())
                self._models[id(parameter)] = told

    def was_updated(self, optimizer: torch.optim.Optimizer, rows_of: RowsOf) -> None:
        """Note the parameters that an optimizer has, and where they lie."""
        every = [each for group in optimizer.param_groups for each in group["params"]]
        self.num_updates[ref(optimizer)] += 1
        self.updated |= {*map(id, every)}
        self.updated_rows.update(rows_of(every))

    @property
    def num_steps(self) -> int:
        """How often every optimizer that is still there has made an update; of none, that was."""
        there = [num for which, num in self.num_updates.items() if which() is not None]
        return min(there or self.num_updates.values(), default=0)

    def idle(self) -> tuple[IdleGradients, ...]:
        """Return by model the gradients that no update used, the largest first.

        Where none of what had gradients was updated there is none: an engine updates copies.
        """
        if not self.updated & {*self._models}:
            return ()
        idle = [told for number, told in self._models.items() if number not in self.updated]
        every = [
            IdleGradients(
                model=model,
                num_parameters=sum(num for name, num, _ in idle if name == model),
                num_bytes=sum(size for name, _, size in idle if name == model),
            )
            for model in {name for name, _, _ in idle}
        ]
        return tuple(sorted(every, key=lambda each: -each.num_bytes))
