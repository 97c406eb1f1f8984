"""What a task is made of, one file each: which model, which loss, and how a batch runs through."""

from brimful.build.tasks import causal_lm
from brimful.build.tasks.base import TaskParts
from brimful.errors import UnsupportedError
from brimful.job import Job, Task

TASKS: dict[Task, TaskParts] = {"causal-lm": causal_lm.PARTS, "chat": causal_lm.PARTS}


def task_of(job: Job) -> TaskParts:
    """Return the parts of a job's task.

    Raises:
        UnsupportedError: None are written yet.
    """
    if job.task not in TASKS:
        raise UnsupportedError(
            f"task={job.task} cannot be run by this version; use {' or '.join(TASKS)}"
        )
    return TASKS[job.task]
