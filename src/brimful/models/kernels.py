"""Which attention a model's own code goes through. Knows the architecture, no device.

What a device has kernels for is another question (``brimful.kernel_support``).
"""

from brimful.job import Job
from brimful.models.config import is_encoder
from brimful.strategy import Attention

ALL: tuple[Attention, ...] = ("eager", "sdpa", "flash", "efficient", "cudnn", "flex", "varlen")
TAKING_MASKS: tuple[Attention, ...] = ("eager", "sdpa", "efficient", "cudnn")
"""Kernels that take a mask of numbers, as encoders need it that see no padding."""
TAKING_BIASES: dict[str, tuple[Attention, ...]] = {
    "t5": ("eager", "sdpa"),
    "switch_transformers": ("eager",),
}
"""Kernels through which the class in ``transformers`` sends its bias of relative positions."""


def attentions_of(job: Job) -> tuple[Attention, ...]:
    """List the kinds of attention that a job's model can be run with, wherever it is run.

    A module's attention is its own affair: it is the same whatever the strategy says.
    """
    if job.task == "seq2seq":
        return TAKING_BIASES.get(job.model.model_type, ("eager",))
    if job.task == "sequence-classification" and is_encoder(job.model.model_type):
        return TAKING_MASKS
    return ALL
