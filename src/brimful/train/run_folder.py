"""The folder of a run: what may be in it at the start, and what is resumed from it."""

from pathlib import Path
from typing import Any

import msgspec

from brimful.errors import FileFormatError, InputError, RunError
from brimful.files.writing import write_text
from brimful.hardware.probe import NO_GPU
from brimful.text.escaping import json_text
from brimful.train.checkpoint import Checkpoint, Sound, set_aside, sound_checkpoint
from brimful.train.data.source import DataSource, check_source
from brimful.train.metrics import add_row
from brimful.train.out_folder import check_out
from brimful.train.settings import RunSettings, StoredSettings, stored
from brimful.train.takeover import forget_measured, rows_of, strategies_of
from brimful.values.job import Job
from brimful.values.plan import Plan, write_yaml
from brimful.values.run_files import CHECKPOINTS, METRICS_FILE, MODEL, PLAN_FILE, DamagedRow
from brimful.values.strategy import Strategy, world_size


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint to go on from, and newer ones that were damaged."""

    path: Path
    checkpoint: Checkpoint
    damaged: tuple[DamagedRow, ...] = ()


def open_run_folder(plan: Plan, out: Path, *, resume: bool) -> Resumed | None:
    """Make a run's folder ready, and find where to go on.

    ``plan``: what will be run; written to ``plan.yaml``. ``resume``: go on from the newest
    checkpoint; from the beginning where the run was ended before its first one. Returns the
    checkpoint to go on from; None to begin. Raises InputError: the folder is in use, or its
    checkpoint is of another plan. Raises FileFormatError: its checkpoints are damaged. Raises
    RunError: it cannot be written.
    """
    check_out(out, resume=resume)
    found = sound_checkpoint(out / CHECKPOINTS) if resume else None
    if found is not None:
        check_same_length(out, found.checkpoint.plan.job, plan.job)
        changed = strategies_of(rows_of(out))
        if {found.checkpoint.plan.strategy, plan.strategy} <= set(changed):
            check_same_job(found.checkpoint.plan.job, plan.job)
        else:
            check_same_plan(found.checkpoint.plan, plan)
        if found.checkpoint.plan.strategy != plan.strategy:
            forget_measured(out)
    write_yaml(plan, out / PLAN_FILE)
    return None if found is None else _resumed(found, out)


def _resumed(found: Sound, out: Path) -> Resumed:
    """Set damaged checkpoints aside, and write down that they were."""
    rows = tuple(
        DamagedRow(
            step=damaged.step,
            taken=found.checkpoint.step,
            folder=str(set_aside(damaged.path).relative_to(out)),
            reason=damaged.reason.replace(f"{damaged.path.parent}/", ""),
        )
        for damaged in found.damaged
    )
    for row in rows:
        add_row(out / METRICS_FILE, row)
    return Resumed(path=found.path, checkpoint=found.checkpoint, damaged=rows)


def write_source(path: Path, source: DataSource) -> None:
    """Write what a run is trained on, so that it can go on without being told again.

    Raises RunError: it cannot be written.
    """
    write_text(path, json_text(source))


def read_source(path: Path) -> DataSource:
    """Read what ``write_source`` wrote."""
    try:
        return check_source(msgspec.json.decode(path.read_bytes(), type=DataSource))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read ({error}); give --data again") from error


def write_settings(path: Path, settings: RunSettings) -> None:
    """Write how a run is kept and watched, so that it goes on alike.

    Raises RunError: it cannot be written.
    """
    write_text(path, json_text(stored(settings)))


def read_settings(path: Path) -> StoredSettings:
    """Read what ``write_settings`` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=StoredSettings)
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{path} cannot be read ({error}); delete it and give --keep, --merge and so on again"
        ) from error


def check_same_plan(saved: Plan, given: Plan) -> None:
    """Refuse to go on with another job than a run was started with, or needlessly otherwise.

    The cluster and the estimate may differ: they say what is expected, not what is computed. The
    strategy may where there are more or fewer devices now, which it must be laid out for.

    Raises InputError: names the first field that differs, and both values.
    """
    check_same_job(saved.job, given.job)
    if world_size(saved.strategy) == world_size(given.strategy):
        _check_same("strategy", saved.strategy, given.strategy)


def check_same_length(out: Path, saved: Job, given: Job) -> None:
    """Refuse to go on for more steps than a run was started for, and say what does.

    Warm-up and decay of the learning rate are of all steps, so that those which were done are not
    those of a longer run.
    """
    if saved.num_steps == given.num_steps:
        return
    words = (
        f"the run was started with job.num_steps={saved.num_steps} and the plan now says "
        f"{given.num_steps}: the learning rates of the steps that were done are of "
        f"{saved.num_steps}; resume with the plan that started it"
    )
    model, more = out / MODEL, given.num_steps - saved.num_steps
    if saved.adapter is None and (model / "config.json").is_file() and more > 0:
        raise InputError(
            f"{words}, or go on from its weights, without the optimizer's state: --weights {model} "
            f"--steps {more} and another --out, without --resume"
        )
    raise InputError(f"{words}, or choose another --out")


def check_same_job(saved: Job, given: Job) -> None:
    """Refuse to go on with another job than a run was started with.

    Raises InputError: names the first field that differs, and both values.
    """
    _check_same("job", saved, given)


def _check_same(part: str, saved: Job | Strategy, given: Job | Strategy) -> None:
    field = _first_difference(msgspec.to_builtins(saved), msgspec.to_builtins(given))
    if field is not None:
        name, before, now = field
        raise InputError(
            f"the run was started with {part}{name}={before!r} and the plan now says {now!r}; "
            f"resume with the plan that started it, or choose another --out"
        )


def check_same_data(resumed: Resumed, tokens_hash: str) -> None:
    """Refuse to go on with other data than a run was started with."""
    if resumed.checkpoint.tokens_hash != tokens_hash:
        raise InputError(
            f"the run was started with data {resumed.checkpoint.tokens_hash} and this is "
            f"{tokens_hash}; give the --data that started it, or choose another --out"
        )


def require_device(kernels: str) -> str:
    """Return torch's name of the device that a plan is for."""
    import torch

    if kernels == "cuda" and not torch.cuda.is_available():
        raise RunError(NO_GPU)
    return kernels


def _first_difference(saved: Any, given: Any) -> tuple[str, Any, Any] | None:
    if isinstance(saved, dict) and isinstance(given, dict):
        for key in {**saved, **given}:
            found = _first_difference(saved.get(key), given.get(key))
            if found is not None:
                return f".{key}{found[0]}", found[1], found[2]
        return None
    return None if saved == given else ("", saved, given)
