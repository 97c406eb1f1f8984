"""What a task counts, and what its loss is held against, in words. Values only: no torch."""

from brimful.values.job import PREFERENCE, Task

_PER_SAMPLE: frozenset[Task] = frozenset({"sequence-classification", "module", "dpo"})
"""Tasks with one label per sample, at least as far as anybody but the user knows."""


def is_per_sample(task: Task) -> bool:
    """Whether a sample has one label, rather than one for each of its tokens."""
    return task in _PER_SAMPLE


def noun(task: Task) -> str:
    """Return what the unmasked labels of a task are labels of."""
    if task == PREFERENCE:
        return "pairs"
    return "samples" if is_per_sample(task) else "tokens"


def loss_unit(task: Task) -> str:
    """Return the unit of a task's loss; a module's own is for its user to know."""
    if task == "module":
        return ""
    return f" nats per {noun(task).removesuffix('s')}"


def judged_by(task: Task) -> str:
    """Name the loss of knowing only how frequent each label is: the bar to beat."""
    if task == PREFERENCE:
        return "loss of the reference model"
    return "entropy of the labels" if is_per_sample(task) else "unigram entropy"
