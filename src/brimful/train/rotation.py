"""Which checkpoints of a run are kept.

A checkpoint goes only after a newer one has been written whole, and never the last that is.
"""

import re
import shutil
from pathlib import Path

import msgspec

from brimful.train.checkpoint import is_complete, list_checkpoints, read_checkpoint

_LEFTOVER = re.compile(r"\.step-\d{8,}\.tmp")


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoints are kept.

    Attributes:
        num_newest: So many of the newest; at least 1.
        best: Also the one with the lowest held-out loss of all that were judged, however old.
    """

    num_newest: int
    best: bool


def best_checkpoint(root: Path) -> Path | None:
    """Find the complete checkpoint with the lowest held-out loss; the older one of equals."""
    judged = []
    for folder in list_checkpoints(root):
        if is_complete(folder):
            loss = read_checkpoint(folder).heldout_loss
            judged += [] if loss is None else [(loss, folder)]
    return min(judged, key=lambda pair: pair[0])[1] if judged else None


def remove_old(root: Path, kept: Kept) -> None:
    """Remove the checkpoints that are not kept, and what a killed save left behind.

    Call it after a save: the newest checkpoint is then known to be whole.
    """
    complete = [folder for folder in list_checkpoints(root) if is_complete(folder)]
    staying = {*complete[-kept.num_newest :], *([best_checkpoint(root)] if kept.best else [])}
    leftovers = [path for path in root.iterdir() if _LEFTOVER.fullmatch(path.name)]
    for folder in (*complete, *leftovers):
        if folder not in staying:
            shutil.rmtree(folder, ignore_errors=True)
