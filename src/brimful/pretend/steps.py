"""Telling the tape the phases of a training loop, and what its tensors have become by their ends.

At the ends of backward passes and updates, what is a parameter, a gradient or optimizer state by
then gets its tag.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch

from brimful import loop_phases
from brimful.pretend import guard
from brimful.pretend.tape import Tape
from brimful.values.results import BUFFERS, GRADIENTS, OPTIMIZER_STATE, PARAMETERS


class _ToTape:
    """Writes what it is told on the tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def begin(self, phase: str) -> None:
        self._tape.begin_phase(phase)

    def adopt(self, module: torch.nn.Module) -> bool:
        """Name an outermost module's parts; one that was named as part of another stays that."""
        if self._tape.owners.knows(module):
            return False
        self._tape.name_modules(module)
        self._tape.tag(module.parameters(), PARAMETERS)
        # By the class's method: a program may have a list of that name.
        self._tape.tag(torch.nn.Module.buffers(module), BUFFERS)
        return True

    def after_backward(self, gradients: Iterable[torch.Tensor]) -> None:
        self._tape.tag(gradients, GRADIENTS)

    def after_update(self, state: list[torch.Tensor]) -> None:
        self._tape.tag(state, OPTIMIZER_STATE)


def following(tape: Tape) -> AbstractContextManager[None]:
    """Tell ``tape`` the phases of whatever trains inside the block."""
    return loop_phases.following(_ToTape(tape), around_backward=guard.errors_come_through)
