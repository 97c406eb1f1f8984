"""How a run is kept and watched. Values only: no torch."""

from pathlib import Path
from typing import Any, Literal

import msgspec

from brimful.train.data.source import DataSource, as_source

SaveMode = Literal["sync", "async"]
Tracker = Literal["tensorboard", "wandb"]

CHECKPOINT_EVERY_STEPS = 100
EVAL_EVERY_STEPS = 50
NUM_EVAL_TOKENS = 16_384
NUM_KEPT = 2


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is kept and watched; nothing here changes what is learnt.

    Attributes:
        out: The run's folder.
        data: What is trained on.
        cache: Folder in which token files are kept between runs.
        resume: Go on from the newest checkpoint of ``out``.
        checkpoint_every_steps: Steps between checkpoints; the last step is always saved.
        checkpoint: ``sync`` saves while training waits, ``async`` in the background.
        num_kept: Newest checkpoints that are kept.
        keep_best: Whether the one with the lowest held-out loss is kept too.
        eval_every_steps: Steps between held-out losses; the last step always has one.
        num_eval_tokens: Size of the fixed held-out sample.
        merge: Whether adapters are handed over inside the model rather than beside it.
        track: Loggers beside ``metrics.jsonl``.
        enforces_limit: Whether tensors may take no more than the plan's device has for them.
        keeps_model: Whether checkpoints and the trained model are written; else it is only judged.
    """

    out: Path
    data: DataSource
    cache: Path
    resume: bool
    checkpoint_every_steps: int
    checkpoint: SaveMode
    num_kept: int
    keep_best: bool
    eval_every_steps: int
    num_eval_tokens: int
    merge: bool
    track: tuple[Tracker, ...]
    enforces_limit: bool
    keeps_model: bool


class StoredSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of ``RunSettings`` a run keeps in its folder, to go on as it began."""

    checkpoint_every_steps: int
    checkpoint: SaveMode
    num_kept: int
    keep_best: bool
    eval_every_steps: int
    merge: bool
    track: tuple[Tracker, ...]
    enforces_limit: bool = False


def stored(settings: RunSettings) -> StoredSettings:
    """Return what a run keeps of its settings."""
    names = StoredSettings.__struct_fields__
    return StoredSettings(**{name: getattr(settings, name) for name in names})


def plain_settings(
    *, out: Path, data: DataSource | Path | None, cache: Path, **changes: Any
) -> RunSettings:
    """Return the settings of a run that begins, with changes.

    ``data``: what is trained on; a path is read by its suffix, None is the standard library.
    ``cache``: folder in which token files are kept between runs. ``changes``: fields of
    ``RunSettings`` that differ.
    """
    plain = RunSettings(
        out=out,
        data=as_source(data),
        cache=cache,
        resume=False,
        checkpoint_every_steps=CHECKPOINT_EVERY_STEPS,
        checkpoint="sync",
        num_kept=NUM_KEPT,
        keep_best=False,
        eval_every_steps=EVAL_EVERY_STEPS,
        num_eval_tokens=NUM_EVAL_TOKENS,
        merge=False,
        track=(),
        enforces_limit=False,
        keeps_model=True,
    )
    return msgspec.structs.replace(plain, **changes)
