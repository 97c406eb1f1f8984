"""What a task is made of, one file each: which model, which loss, and how a batch runs through."""

from brimful.build.tasks import (
    causal_lm,
    dpo,
    masked_lm,
    module,
    seq2seq,
    sequence_classification,
)
from brimful.build.tasks.base import TaskParts
from brimful.values.job import Job, Task

TASKS: dict[Task, TaskParts] = {
    "causal-lm": causal_lm.PARTS,
    "chat": causal_lm.PARTS,
    "dpo": dpo.PARTS,
    "sequence-classification": sequence_classification.PARTS,
    "masked-lm": masked_lm.PARTS,
    "seq2seq": seq2seq.PARTS,
    "module": module.PARTS,
}


def task_of(job: Job) -> TaskParts:
    """Return the parts of a job's task."""
    return TASKS[job.task]
