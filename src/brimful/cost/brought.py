"""Blocks whose parameters are on the host: what bringing them makes of a profile's runs.

A block is brought before it runs, and the one that runs next with it. In forward it goes when it
has run. In backward a plain block goes when the next one begins; of one that is computed again each
weight goes with the operation that read it last. Where all of a model trains in the type in which
it is held, a copy is as large as its gradient: kinds of gradients say what is brought.

Source: ``build/offload/parameters.py``.
"""

from collections.abc import Sequence
from typing import NamedTuple

from brimful.cost.additions import Neighbours, is_block, neighbours
from brimful.cost.profiles import EventKind, Run
from brimful.cost.spread import negated_terms
from brimful.rungs import ITEM_NAMES, PARAMETERS

OLDEST = 10**9
"""Of equal copies the one that came first goes first: more than there ever are."""
_PARAMETER = ITEM_NAMES.index(PARAMETERS)
Gradients = dict[str, tuple[int, ...]]
"""Kinds of the gradients that a block's backward makes, by the block's group."""


class Brought(NamedTuple):
    """What is added to a run: kinds of gradients, as large as the copies that come and go.

    Attributes:
        gone_first: Copies that go before it.
        come: That come before it, behind those.
        gone_last: That go behind it.
        one_by_one: Whether its own go as their gradients are made.
    """

    gone_first: tuple[int, ...] = ()
    come: tuple[int, ...] = ()
    gone_last: tuple[int, ...] = ()
    one_by_one: bool = False


def copy_kinds(own: Sequence[EventKind]) -> tuple[EventKind, ...]:
    """Return kinds of copies as large as tensors of other kinds, coming, then going."""
    come = (EventKind(kind.terms, _PARAMETER, "") for kind in own)
    gone = (EventKind(negated_terms(kind.terms), _PARAMETER, "", OLDEST) for kind in own)
    return (*come, *gone)


def brought(runs: Sequence[Run], gradients: Gradients) -> list[Brought]:
    """Say of every run which copies come and go.

    Args:
        runs: Of a micro-batch.
        gradients: Of its blocks.
    """
    found, blocks = list[Brought](), [run for run in runs if is_block(run)]
    ends_plain = not _is_again(blocks[-1])
    place = 0
    for number, (run, at) in enumerate(zip(runs, neighbours(runs), strict=True)):
        is_end = number == len(runs) - 1
        last = gradients[blocks[-1].group] if is_end and ends_plain else ()
        if not is_block(run):
            found.append(Brought(gone_last=last))
            continue
        before = blocks[place - 1] if place else run
        behind = blocks[place + 1] if place + 1 < len(blocks) else run
        place += 1
        made = _of_block(run, at, (before, behind), gradients)
        found.append(made._replace(gone_last=(*made.gone_last, *last)))
    return found


def _of_block(run: Run, at: Neighbours, beside: tuple[Run, Run], gradients: Gradients) -> Brought:
    before, behind = beside
    own = gradients[run.group]
    ahead = () if at.last_block else gradients[behind.group if run.role == "last" else run.group]
    come = (*own, *ahead) if at.first_block else ahead
    if run.phase == "forward":
        return Brought(come=come, gone_last=own)
    stays = not at.first_block and not _is_again(before)
    gone = gradients[before.group] if stays else ()
    return Brought(gone_first=gone, come=come, one_by_one=_is_again(run))


def _is_again(run: Run) -> bool:
    return run.group.startswith("checkpointed")
