"""Blocks that send to the host what they keep for backward: which they are, and what shows them.

One that sends is of another kind than one that does not, so that a trace of them is one of blocks
of several kinds (``sequences.py``).

Source: ``build/offload/activations.py``.
"""

from typing import NamedTuple

import numpy as np

from brimful.cost.family import Family
from brimful.models.sequence import numbered, shown_by
from brimful.models.traced import BuiltModel
from brimful.techniques.offload import num_sent
from brimful.values.job import Job


class Sending(NamedTuple):
    """Blocks that send to the host what they keep for their backward pass.

    Attributes:
        num: How many of a model's blocks do, from the first on.
        num_again: How many are checkpointed, from the first on, where any do.
    """

    num: int = 0
    num_again: int = 0


NONE_SENDS = Sending()


def sending_of(job: Job, family: Family) -> Sending:
    """Return which blocks of one strategy send what they keep."""
    num = num_sent(family.away, job.model.num_layers)
    if not num:
        return NONE_SENDS
    (num_again,) = np.atleast_1d(np.asarray(family.num_blocks))
    return Sending(num, int(num_again))


def kinds_sending(built: BuiltModel, sending: Sending) -> tuple[int, ...]:
    """Return the kinds of a model's blocks: one that sends what it keeps is of another.

    The first of these is of a kind of its own: the model itself holds what comes into it, so that
    the block behind it, too, does not free what others do.
    """
    num = len(set(built.kinds))
    return tuple(kind + num * _status(at, sending) for at, kind in enumerate(built.kinds))


def _status(place: int, sending: Sending) -> int:
    """Number what a block does with what it keeps: 0 keeps it, 1 sends it, 2 is the first to."""
    if place >= sending.num:
        return 0
    return 1 if place else 2


class Shown(NamedTuple):
    """A block of those that show what each does where some send what they keep.

    Attributes:
        place: Of it in the model.
        kind: As of ``kinds_sending``.
        is_sent: Whether it sends what it keeps.
        is_again: Whether it is checkpointed.
    """

    place: int
    kind: int
    is_sent: bool
    is_again: bool


def shown_sending(built: BuiltModel, sending: Sending) -> tuple[Shown, ...]:
    """Return the blocks that show what each does where some send what they keep, in order."""
    if sending == NONE_SENDS:
        return ()
    every = [
        Shown(place, kind, place < sending.num, place < sending.num_again)
        for place, kind in enumerate(kinds_sending(built, sending))
    ]
    return tuple(every[place] for place in shown_by(numbered(each[1:] for each in every)))
