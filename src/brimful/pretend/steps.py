"""Telling the tape the phases of a training loop, and what its tensors have become by their ends.

At the ends of backward passes and updates, what is a parameter, a gradient or optimizer state by
then gets its tag.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

from brimful import loop_phases
from brimful.pretend import guard
from brimful.pretend.idle_gradients import Trained
from brimful.pretend.not_updated import parts_of
from brimful.pretend.recording import PAGED
from brimful.pretend.script_lines import ScriptLine, script_line, variable_of
from brimful.pretend.tape import Tape
from brimful.values.results import BUFFERS, GRADIENTS, OPTIMIZER_STATE, PARAMETERS


class _ToTape:
    """Writes what it is told on the tape."""

    def __init__(self, tape: Tape, trained: Trained, places: list[ScriptLine]) -> None:
        self._tape, self._trained, self._places = tape, trained, places

    def begin(self, phase: str) -> None:
        self._places.append(script_line())
        self._tape.begin_phase(phase)

    def adopt(self, module: torch.nn.Module) -> bool:
        """Name an outermost module's parts; one that was named as part of another stays that."""
        if self._tape.owners.knows(module):
            return False
        self._tape.name_modules(module)
        self._tape.tag(module.parameters(), PARAMETERS)
        # By the class's method: a program may have a list of that name.
        self._tape.tag(torch.nn.Module.buffers(module), BUFFERS)
        self._trained.parts += parts_of(module, self._tape.rows_of, variable_of(module))
        return True

    def after_forward(self, module: torch.nn.Module, output: Any) -> None:
        end = self._tape.main.spot().event
        self._trained.has_run(len(self._places), module, output, end, self._tape.rows_of)

    def after_backward(self, trained: Iterable[loop_phases.Trained]) -> None:
        every = list(trained)
        self._trained.had_gradients(every, self._tape.rows_of)
        self._tape.tag((x.grad for _, x in every if x.grad is not None), GRADIENTS)

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        self._trained.was_updated(optimizer, self._tape.rows_of)
        states = list(loop_phases.state_of(optimizer))
        self._tape.tag((x for x in states if getattr(x, "is_paged", False)), PAGED)
        self._tape.tag(states, OPTIMIZER_STATE)


def following(
    tape: Tape, trained: Trained, places: list[ScriptLine]
) -> AbstractContextManager[None]:
    """Follow whatever trains inside the block.

    ``places``: gets the script's line of each phase but the first, which is loading.
    """
    return loop_phases.following(
        _ToTape(tape, trained, places), around_backward=guard.errors_come_through
    )
