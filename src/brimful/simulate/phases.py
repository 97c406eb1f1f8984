"""What a run does besides its steps: judging held-out batches, saving, going on from a save.

Each is a continuation of a simulated program, announced as a phase of the tape. Judging is the
build path's own; what saves and resumes belongs to the trainer, who comes later, so that it is
handed in (``Keeping``).
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from brimful.build import phases
from brimful.build.batch import Batch
from brimful.build.first_state import make_state
from brimful.build.loss import CHUNK
from brimful.build.program import Program, state_tensors
from brimful.build.step import evaluate
from brimful.pretend.tape import Tape
from brimful.values.results import EVAL, OPTIMIZER_STATE, RESUME, SAVE
from brimful.values.strategy import data_parallel

NUM_EVALUATED = 2
"""Batches that each device judges: what the first leaves behind is there in every later one."""

Continuation = Callable[[Tape, Program, Batch], None]
"""Goes on with a program that has taken its steps; given its sample on the host as well."""


K = TypeVar("K")


class Keeping(NamedTuple, Generic[K]):
    """The trainer's own code for saving and resuming.

    Attributes:
        save: Does what a save does between two steps; returns what it saved.
        resume: Gives what was saved to a program that was freshly built.
    """

    save: Callable[[Program], K]
    resume: Callable[[Program, K], None]


def judged(
    tape: Tape, program: Program, sample: Batch, *, num_batches: int = NUM_EVALUATED
) -> None:
    """Judge a held-out sample that gives every device ``num_batches`` batches."""
    batches = [sample] * (num_batches * data_parallel(program.strategy))
    with phases.listening(_announce(tape)):
        evaluate(program, batches)


def _announce(tape: Tape) -> phases.Listener:
    """Begin the tape's phase with the first batch, to which all belong; mark chunks of the loss."""
    begun: list[str] = []

    def listen(name: str, begins: bool, _program: Program) -> None:  # noqa: FBT001
        if name == CHUNK and begins:
            tape.mark()
        if name == EVAL and begins and not begun:
            begun.append(name)
            tape.begin_phase(EVAL)

    return listen


def state_made(_tape: Tape, program: Program, _sample: Batch) -> None:
    """Make the optimizer's state, as the first step would."""
    make_state(program)


def saved(keeping: Keeping[K], kept: dict[int, K]) -> Continuation:
    """Save, and put what was saved into ``kept`` by the model's number of blocks."""

    def go_on(tape: Tape, program: Program, _sample: Batch) -> None:
        tape.begin_phase(SAVE)
        kept[program.job.model.num_layers] = keeping.save(program)

    return go_on


def resumed(keeping: Keeping[K], kept: K) -> Continuation:
    """Go on from what was saved."""

    def go_on(tape: Tape, program: Program, _sample: Batch) -> None:
        tape.begin_phase(RESUME)
        keeping.resume(program, kept)
        tape.tag(state_tensors(program), OPTIMIZER_STATE)

    return go_on
