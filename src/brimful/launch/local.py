"""A group of processes on this machine: torch's elastic agent starts them and watches over them."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from brimful.errors import InputError, RunError
from brimful.launch.worker import End, Patience, checked, forget_failures, told_failures, work
from brimful.process import child as child_process
from brimful.process.child import call_packed, ending_with_parent, packed
from brimful.train.observers import Observer
from brimful.train.run_folder import require_device
from brimful.train.settings import RunSettings
from brimful.train.takeover import EXIT_CODE, MAX_TAKEOVERS, NextPlan
from brimful.train.world import TIMEOUT_S, count_gpus, made_again
from brimful.values.plan import Plan
from brimful.values.strategy import keeps_checkpoints, world_size

MAX_RESTARTS = 3
_POLL_S = 0.2


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """How a group of processes is watched over.

    Attributes:
        max_restarts: How often all are started again where one was lost.
        timeout_s: How long one waits for the others in a collective.
        next_plan: Says what is tried when memory runs out, importable by name; None: nothing.
    """

    max_restarts: int = MAX_RESTARTS
    timeout_s: float = TIMEOUT_S
    next_plan: NextPlan | None = None


def launch(
    plan: Plan, settings: RunSettings, group: Group, *, observer: Callable[[], Observer]
) -> End:
    """Run a plan in as many processes as it has devices, and wait for its end.

    A process that is lost ends all; they are started again, and go on from the newest checkpoint.

    ``observer``: makes who watches, in the first process; importable by name. Returns how they
    ended, as the first process tells it. Raises RunError: a process was lost once too often. Raises
    BrimfulError: why a process failed that failed each time.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world_size(plan.strategy),
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=_num_restarts(plan, group),
        monitor_interval=_POLL_S,
        start_method=child_process.START_METHOD,
    )
    check_machine(plan)
    forget_failures(settings.out)
    try:
        ends = elastic_launch(config, call_packed)(packed(_work, plan, settings, group, observer))
    except ChildFailedError as error:
        _give_up(settings.out, error, group)
    except SignalException as error:
        raise KeyboardInterrupt from error
    end: End = ends[0]
    checked(end)
    return end


def _num_restarts(plan: Plan, group: Group) -> int:
    """Count how often the agent may start the group; the processes know why they are started."""
    if not keeps_checkpoints(plan.strategy):
        return 0
    return group.max_restarts + (0 if group.next_plan is None else MAX_TAKEOVERS)


def check_machine(plan: Plan) -> None:
    """Refuse a plan for more than this machine has.

    Raises RunError: it is for GPUs and there are none.
    """
    cluster = plan.cluster
    require_device(cluster.device.kernels)
    if cluster.num_nodes > 1:
        raise InputError(
            f"the plan is for {cluster.num_nodes} machines and this is 1; start it on each with "
            f"torchrun --nnodes {cluster.num_nodes} --nproc-per-node {cluster.devices_per_node} "
            f"-m brimful train"
        )
    if cluster.device.kernels == "cuda":
        num_gpus = count_gpus()
        if num_gpus < cluster.num_devices:
            raise InputError(
                f"the plan is for {cluster.num_devices} GPUs and this machine has {num_gpus}; plan "
                f"--gpus {num_gpus}xlocal, or start it with torchrun on several machines"
            )


def _work(plan: Plan, settings: RunSettings, group: Group, observer: Callable[[], Observer]) -> End:
    with ending_with_parent():
        return work(
            plan,
            settings,
            observer=observer,
            next_plan=group.next_plan,
            patience=Patience(group.timeout_s, group.max_restarts),
        )


def _give_up(out: Path, error: object, group: Group) -> NoReturn:
    """Raise what a process said, or which one was lost and how."""
    for failure in told_failures(out):
        raise made_again(failure.kind, failure.text) from None
    failures = getattr(error, "failures", {})
    rank, first = min(failures.items(), key=lambda item: item[1].timestamp)
    how = f"signal {-first.exitcode}" if first.exitcode < 0 else f"exit code {first.exitcode}"
    if first.exitcode == EXIT_CODE:
        raise RunError(
            f"process {rank} ran out of memory after {MAX_TAKEOVERS} other strategies; --resume "
            f"tries the next one, from the newest checkpoint in {out}"
        ) from None
    raise RunError(
        f"process {rank} ended by {how} after {group.max_restarts} restarts; --resume goes on from "
        f"the newest checkpoint in {out}"
    ) from None
