"""Groups of processes that run cases together on this machine: what they are asked, what they say.

``answers`` starts ``group_worker.py`` under ``torchrun`` once for many cases, because starting the
processes takes longer than a small case.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cases import Case

from brimful.values.results import Collective
from brimful.values.run_files import ExpertRow

HERE = Path(__file__).parent
_TIMEOUT_S = 3600


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a pipeline's step, in seconds from the step's start."""

    kind: str
    micro_batch: int
    chunk: int
    start_s: float
    end_s: float


class Plant(msgspec.Struct, frozen=True, kw_only=True):
    """Experts that tokens are made to prefer.

    Attributes:
        block: Place of the block among all blocks.
        experts: Chosen by these tokens before any other.
        share: Part of every micro-batch's tokens, the first ones.
    """

    block: int
    experts: tuple[int, ...]
    share: float


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One case in one group.

    Attributes:
        case: Of as many devices as the group has processes.
        first_step: Whose samples the first step sees.
        num_steps: How many steps are trained.
        load_from: Folder of a checkpoint to begin with; None: the first weights.
        save_to: Folder of checkpoints; None: nothing is saved.
        save_after: Steps after which it is saved.
        beside_plain: Whether the plain loop trains beside it, on the same samples; what it lacks
            (16 bits, quantised weights, dropout, pairs) trains on one device by the same code.
        num_readings: How often the first two steps are metered, before anything else. The smallest
            reading counts: DDP's reducer may let go of a bucket on a thread that the profiler does
            not watch, so that a reading can be too high and never too low.
        watches_collectives: Whether a third step is watched for what the processes tell each other.
        model_to: Folder into which the trained model is written; None: it is not.
        slowed_s: Seconds that each device of a pipeline waits in one micro-batch's forward and
            backward through all its stages, [devices][2]; empty: no step is timed.
        planted: What tokens are made to prefer while steps are metered; None: nothing.
        watches_experts: Whether the experts' load is watched in the metered steps.
    """

    case: Case
    first_step: int = 0
    num_steps: int
    load_from: str | None = None
    save_to: str | None = None
    save_after: int = 0
    beside_plain: bool = False
    num_readings: int = 0
    watches_collectives: bool = False
    model_to: str | None = None
    slowed_s: tuple[tuple[float, float], ...] = ()
    planted: Plant | None = None
    watches_experts: bool = False


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What one process saw of one turn.

    Attributes:
        losses: Of every step, of all processes together.
        norms: Gradient norms before the clip.
        plain_losses: Of the plain loop; empty where it was not run.
        plain_norms: Likewise.
        change_error: How far weights ended from its own, relative to how far those came; of the
            first process, where it was run.
        saved: The checkpoint's folder; None where nothing was saved.
        peak_bytes: Metered peak of live bytes, loading included; None where it was not metered.
        peak_items: What was alive at the peak, by class.
        num_targets: Of this process's own micro-batches in the first step.
        collectives: Of the third step, by kind; of the second one where experts are parted, whose
            messages hang on the step's tokens.
        received: Rows that this process's experts got in the metered steps, [blocks][passes]; empty
            where experts are not parted.
        experts: How they were loaded in the metered steps, of all processes.
        alarms: What was said of it.
        happened: Of a slowed step, the one of median length, what this device did.
        step_s: How long that step took.
        message_s: What a stage's message takes to the next process and into its hands.
    """

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    plain_losses: tuple[float, ...] = ()
    plain_norms: tuple[float, ...] = ()
    change_error: float | None = None
    saved: str | None = None
    peak_bytes: int | None = None
    peak_items: dict[str, int] = {}
    num_targets: int = 0
    collectives: tuple[Collective, ...] = ()
    received: tuple[tuple[int, ...], ...] = ()
    experts: ExpertRow | None = None
    alarms: tuple[str, ...] = ()
    happened: tuple[Happened, ...] = ()
    step_s: float = 0.0
    message_s: float = 0.0


def answers(turns: Sequence[Turn], *, num_processes: int) -> list[list[Told]]:
    """Run turns one after another in one group.

    Args:
        turns: Each of as many devices as there are processes.
        num_processes: Of the group.

    Returns:
        What each process saw, [turns][processes].

    Raises:
        subprocess.CalledProcessError: A process failed; what it said is on stderr.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "turns.json").write_bytes(msgspec.json.encode(list(turns)))
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node", str(num_processes),
            str(HERE / "group_worker.py"), str(folder / "turns.json"), str(folder),
        ]  # fmt: skip
        subprocess.run(command, check=True, timeout=_TIMEOUT_S, stdout=sys.stderr)  # noqa: S603
        told = [
            msgspec.json.decode((folder / f"{rank}.json").read_bytes(), type=list[Told])
            for rank in range(num_processes)
        ]
    return [list(of_turn) for of_turn in zip(*told, strict=True)]
