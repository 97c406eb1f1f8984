"""What a task counts, and what its loss is held against, in words. Values only: no torch."""

from brimful.job import Task

PER_SAMPLE: frozenset[Task] = frozenset({"sequence-classification", "module"})
"""Tasks with one label per sample, at least as far as anybody but the user knows."""


def noun(task: Task) -> str:
    """Return what the unmasked labels of a task are labels of."""
    return "samples" if task in PER_SAMPLE else "tokens"


def loss_unit(task: Task) -> str:
    """Return the unit of a task's loss; a module's own is for its user to know."""
    if task == "module":
        return ""
    return " nats per sample" if task in PER_SAMPLE else " nats per token"


def judged_by(task: Task) -> str:
    """Name the loss of knowing only how frequent each label is: the bar to beat."""
    return "entropy of the labels" if task in PER_SAMPLE else "unigram entropy"
