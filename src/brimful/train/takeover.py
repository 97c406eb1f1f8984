"""What becomes of a run whose memory ran out: the next exact strategy takes over.

On one process a forward or a backward pass that fails has changed nothing but gradients: they are
dropped, the model is switched to the next strategy, and the step is taken again from the same
samples. Anything else (an update that is half done, a program that could not be built, several
processes of which one waits for another) ends the program; whoever started it starts it again from
the newest checkpoint, under the next strategy.

Which strategy is next is asked of a callable that is handed in.
"""

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from brimful.build.program import Program
from brimful.build.retarget import can_retarget
from brimful.cost.estimate import limit_bytes
from brimful.errors import FileFormatError, RunError
from brimful.files.writing import disk_error, write_text
from brimful.text.escaping import json_text
from brimful.train.metrics import add_row, read_metrics
from brimful.train.whereabouts import Whereabouts
from brimful.train.world import is_spread, own_rank
from brimful.units import format_bytes
from brimful.values.plan import Plan, write_yaml
from brimful.values.run_files import (
    MEASUREMENT_FILE,
    METRICS_FILE,
    PLAN_FILE,
    SEARCH_FILE,
    SHORTAGES,
    SIMULATION_FILE,
    Row,
    TakeoverRow,
)
from brimful.values.run_words import place_of
from brimful.values.strategy import Strategy

EXIT_CODE = 75
"""Of a process that ran out of memory and is to be started again: EX_TEMPFAIL of ``sysexits.h``."""
MAX_TAKEOVERS = 8
"""Of one launch; each needs less memory than the one before."""
NextPlan = Callable[[Plan, tuple[Strategy, ...]], Plan | None]
"""Given a plan that needed too much, and every strategy that did: the plan that is tried next,
which changes nothing but the strategy; None where nothing is left."""
_IN_PLACE = ("state", "forward", "backward")
_NO_HOST_MEMORY = "can't allocate memory"
"""What PyTorch's allocator for a CPU says, in an error of no type of its own."""
_REASON_LENGTH = 200


class Ways(NamedTuple):
    """What a run may do when memory runs out.

    Attributes:
        next_plan: Says what is tried next; None: nothing is, the run ends.
    """

    next_plan: NextPlan | None = None


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """That memory ran out: where, and under which strategy."""

    step: int
    phase: str
    reason: str
    strategy: Strategy
    rank: int = 0


class ShortageError(Exception):
    """Memory ran out where the run cannot go on in place; for whoever started it, not for people.

    Attributes:
        shortage: Where, and under which strategy.
    """

    def __init__(self, shortage: Shortage) -> None:
        """Keep what happened."""
        super().__init__(shortage.reason)
        self.shortage = shortage


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    is_typed = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return is_typed or (isinstance(error, RuntimeError) and _NO_HOST_MEMORY in str(error))


def shortage_of(error: BaseException, where: Whereabouts) -> Shortage:
    """Keep what is to be said of an error, and let go of what it holds: the frames of the step."""
    return Shortage(
        step=where.step,
        phase=where.phase,
        reason=str(error).partition("\n")[0][:_REASON_LENGTH],
        strategy=where.strategy,
        rank=own_rank(),
    )


def may_stay(program: Program, shortage: Shortage) -> bool:
    """Whether the step can be taken again in this process, with everything kept.

    ``program``: whose step failed; with no experts, whose routers were heard before it did.
    """
    return (
        shortage.phase in _IN_PLACE and not is_spread() and can_retarget(program, program.strategy)
    )


def release(program: Program) -> None:
    """Let go of everything that a failed step has made; parameters and state stay.

    To be called when the error itself is gone, which held the frames of the step.
    """
    program.optimizer.zero_grad(set_to_none=True)
    torch.clear_autocast_cache()
    gc.collect()
    if program.device.type == "cuda":
        torch.cuda.empty_cache()


def taken_over(
    plan: Plan, shortage: Shortage, rows: tuple[Row, ...], ways: Ways, *, in_place: bool
) -> tuple[Plan, TakeoverRow]:
    """Ask for the next plan.

    ``rows``: of the run so far: no strategy is tried twice. ``in_place``: whether the run goes on
    in place. Returns the next plan, and the row that says so. Raises RunError: nothing is left.
    """
    known = [row.failed for row in rows if isinstance(row, TakeoverRow)]
    failed = tuple(dict.fromkeys([*known, shortage.strategy]))
    following = None if ways.next_plan is None else ways.next_plan(plan, failed)
    if following is None:
        raise nothing_left(plan, shortage, failed)
    row = TakeoverRow(
        step=shortage.step,
        phase=shortage.phase,
        limit_bytes=limit_bytes(plan),
        reason=shortage.reason,
        failed=shortage.strategy,
        taken=following.strategy,
        in_place=in_place,
        rank=shortage.rank,
        launch=os.environ.get("TORCHELASTIC_RUN_ID", ""),
    )
    return following, row


def nothing_left(plan: Plan, shortage: Shortage, failed: tuple[Strategy, ...]) -> RunError:
    """Say that no exact strategy needs less memory, and what would help."""
    tried = "1 strategy" if len(failed) == 1 else f"{len(failed)} strategies"
    return RunError(
        f"out of memory in {place_of(shortage.step, shortage.phase)} after {tried}, and no exact "
        f"one is left that needs less; the limit is {format_bytes(limit_bytes(plan))} "
        f"({shortage.reason}); use more memory or devices, or see the ways out of brimful plan"
    )


# A run that is started again.


def rows_of(out: Path) -> tuple[Row, ...]:
    """Read a run's rows; none where it has not come so far."""
    path = out / METRICS_FILE
    return read_metrics(path) if path.exists() else ()


def strategies_of(rows: tuple[Row, ...]) -> tuple[Strategy, ...]:
    """List the strategies that a run has changed between when memory ran out."""
    found = [row for row in rows if isinstance(row, TakeoverRow)]
    return tuple(dict.fromkeys(s for row in found for s in (row.failed, row.taken)))


def start_again(plan: Plan, shortage: Shortage, out: Path, ways: Ways) -> tuple[Plan, TakeoverRow]:
    """Choose the next plan of a run that starts again, and write it down; by one process.

    Raises RunError: nothing is left, or the disk is full.
    """
    following, row = taken_over(plan, shortage, rows_of(out), ways, in_place=False)
    forget_measured(out)
    add_row(out / METRICS_FILE, row)
    write_yaml(following, out / PLAN_FILE)
    return following, row


def forget_measured(out: Path) -> None:
    """Delete what was searched, simulated and measured of a strategy that is not run any more.

    Raises RunError: it cannot be deleted.
    """
    for name in (MEASUREMENT_FILE, SIMULATION_FILE, SEARCH_FILE):
        try:
            (out / name).unlink(missing_ok=True)
        except OSError as error:
            raise disk_error(out / name, error) from error


def note_shortage(out: Path, shortage: Shortage) -> None:
    """Write down that memory ran out, for the process that starts again in place of this one.

    Raises RunError: the disk is full.
    """
    folder = out / SHORTAGES
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from error
    write_text(folder / f"{shortage.rank}.json", json_text(shortage))


def noted_shortage(out: Path) -> Shortage | None:
    """Return what ``note_shortage`` wrote, of several processes the first; None: nothing did."""
    paths = sorted((out / SHORTAGES).glob("*.json"))
    if not paths:
        return None
    try:
        return msgspec.json.decode(paths[0].read_bytes(), type=Shortage)
    except (OSError, msgspec.MsgspecError) as error:
        raise FileFormatError(f"{paths[0]} cannot be read ({error}); delete it") from error


def forget_shortages(out: Path) -> None:
    """Delete what was noted: it has been seen to."""
    for path in (out / SHORTAGES).glob("*.json"):
        path.unlink(missing_ok=True)
