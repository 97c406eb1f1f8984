"""What ``brimful train`` is given, looked at before anything is planned: that may take minutes."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.cli import resolved

if TYPE_CHECKING:
    from brimful.train.settings import RunSettings


def check_inputs(args: argparse.Namespace, settings: "RunSettings") -> None:
    """Refuse what cannot be read or written; what needs no torch is asked first.

    Raises BrimfulError: the data, the run's folder, a logger's package, the device or the weights
    are not there or of no use.
    """
    from brimful.train.data.origin import check_present
    from brimful.train.loggers import check_loggers
    from brimful.train.out_folder import check_out
    from brimful.values.plan import read_plan

    if resolved.is_plan(args.model):
        resolved.refuse_flags(args)
        plan = read_plan(Path(args.model))
        job, cluster = plan.job, plan.cluster
    else:
        job, cluster = resolved.job_from(args), resolved.cluster_from(args)
    check_present(settings.data, job.task)
    check_out(settings.out, resume=settings.resume or _is_started_again(settings.out))
    check_loggers(settings.track)

    from brimful.build.weight_files import find_files
    from brimful.models.hub import is_hub_id
    from brimful.train.run_folder import require_device

    require_device(cluster.device.kernels)
    if job.weights is not None and (Path(job.weights).exists() or not is_hub_id(job.weights)):
        find_files(job.weights)


def _is_started_again(out: Path) -> bool:
    """Whether this may be a process of a group that goes on where the one before it was lost."""
    from brimful.train.world import place_here
    from brimful.values.run_files import PLAN_FILE

    return place_here() is not None and (out / PLAN_FILE).is_file()
