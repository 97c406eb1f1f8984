"""How the trainer saves and resumes, for a simulation: the same code, and no files.

What is saved lies where it is, and a file would hold it as it is; so of a saved tensor only its
size and type are carried over.
"""

from typing import NamedTuple

from brimful.build.program import Program
from brimful.simulate.phases import Keeping
from brimful.train.program_state import PlainState, adopt, capture, room_for
from brimful.train.tensor_files import TensorShape

__all__ = ["KEEPING", "Kept"]


class Kept(NamedTuple):
    """What a checkpoint would say of a program's state."""

    shapes: dict[str, TensorShape]
    plain: PlainState


def save(program: Program) -> Kept:
    """List a program's state, as every save does; no checksum of a frozen base is made."""
    state = capture(program, base_crc32=None)
    shapes = {name: TensorShape(x.size(), x.dtype) for name, x in state.tensors.items()}
    return Kept(shapes, state.plain)


def resume(program: Program, kept: Kept) -> None:
    """Make room for a state in a fresh program, and let the program adopt it."""
    room = room_for(program, kept.shapes, kept.plain)
    adopt(program, room, kept.plain)


KEEPING: Keeping[Kept] = Keeping(save, resume)
