"""Blocks that send to the host what they keep for backward, or have their frozen base there.

One that does is of another kind than one that does not, so that a trace of them is one of blocks of
several kinds (``sequences.py``). A base is traced where its coming and going was not derived
(``away_base.py``): of some blocks, of several kinds, or cast by autocast.

Source: ``build/offload/activations.py`` and ``build/offload/parameters.py``.
"""

from typing import NamedTuple

import numpy as np

from brimful.cost.base_copies import tells_reads
from brimful.cost.family import Family
from brimful.cost.programs import HALF
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.trained import frozen_element
from brimful.models.sequence import numbered, shown_by
from brimful.models.traced import BuiltModel
from brimful.techniques.offload import Away, num_sent
from brimful.values.job import Job


class Sending(NamedTuple):
    """Blocks that send to the host what they keep for their backward pass, or are brought from it.

    Attributes:
        num: How many of a model's blocks send, from the first on.
        num_again: How many are checkpointed, from the first on, where any send or are brought.
        num_brought: Of how many blocks the frozen base is on the host, where that is traced.
    """

    num: int = 0
    num_again: int = 0
    num_brought: int = 0


NONE_SENDS = Sending()


def sending_of(job: Job, family: Family) -> Sending:
    """Return which blocks of one strategy send what they keep, and which are brought in a trace."""
    num = num_sent(family.away, job.model.num_layers)
    num_brought = family.away.parameters if traces_base(job, family.away) else 0
    if not num and not num_brought:
        return NONE_SENDS
    (num_again,) = np.atleast_1d(np.asarray(family.num_blocks))
    return Sending(num, int(num_again), num_brought)


def traces_base(job: Job, away: Away) -> bool:
    """Whether a frozen base of blocks is on the host, and is traced there.

    It is derived of LoRA and QLoRA on all layers of blocks that hold the same, if all of them are
    away. What autocast makes of a weight in fp32 is kept for backward in its place.
    """
    if not away.frozen:
        return False
    is_cast = frozen_element(job) == FP32_BYTES and job.precision in HALF
    is_whole = away.parameters == job.model.num_layers
    return is_cast or not is_whole or not tells_reads(job)


def kinds_sending(built: BuiltModel, sending: Sending) -> tuple[int, ...]:
    """Return the kinds of a model's blocks: one that sends what it keeps is of another.

    The first of these is of a kind of its own: the model itself holds what comes into it, so that
    the block behind it, too, does not free what others do. Of those that are brought the first two
    and the last are too: the first brings two in forward, the last in backward, and what the second
    brings there for the first goes with the pass.
    """
    num = len(set(built.kinds))
    return tuple(kind + num * _status(at, sending) for at, kind in enumerate(built.kinds))


def _status(place: int, sending: Sending) -> int:
    """Number what a block does: what it keeps it keeps, sends, or is the first to; how it comes."""
    is_sent = place < sending.num
    return (is_sent + (is_sent and not place)) + _NUM_SENDING * _brought(place, sending.num_brought)


_NUM_SENDING = 3


def _brought(place: int, num: int) -> int:
    """Number whether a block is brought, and as which: 0 is not."""
    if place >= num:
        return 0
    return 1 + (place == 0) + 2 * (place == 1) + 3 * (place == num - 1)


class Shown(NamedTuple):
    """A block of those that show what each does where some send what they keep.

    Attributes:
        place: Of it in the model.
        kind: As of ``kinds_sending``.
        is_sent: Whether it sends what it keeps.
        is_again: Whether it is checkpointed.
        is_brought: Whether its frozen base is brought, which its kind says too.
    """

    place: int
    kind: int
    is_sent: bool
    is_again: bool
    is_brought: bool = False


def shown_sending(built: BuiltModel, sending: Sending) -> tuple[Shown, ...]:
    """Return the blocks that show what each does where some send or are brought, in order."""
    if sending == NONE_SENDS:
        return ()
    every = [
        Shown(
            place, kind, place < sending.num, place < sending.num_again, place < sending.num_brought
        )
        for place, kind in enumerate(kinds_sending(built, sending))
    ]
    return tuple(every[place] for place in shown_by(numbered(each[1:] for each in every)))
