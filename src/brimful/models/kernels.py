"""Which attention a model's own code goes through. Knows the architecture, no device.

What a device has kernels for is another question (``brimful.techniques.kernel_support``).
"""

from brimful.errors import UnsupportedError
from brimful.models.architectures import ARCHITECTURES, record_of
from brimful.models.attention_source import left_out_of
from brimful.models.config import SEQ2SEQ_TYPES
from brimful.models.own_task import is_encoder, is_encoder_decoder
from brimful.models.spec import MODULE, ModelSpec
from brimful.values.job import Job
from brimful.values.strategy import Attention

ALL: tuple[Attention, ...] = ("eager", "sdpa", "flash", "efficient", "cudnn", "flex", "varlen")
TAKING_MASKS: tuple[Attention, ...] = ("eager", "sdpa", "efficient", "cudnn")
"""Kernels that take a mask of numbers, as encoders need it that see no padding."""
TAKING_PAIRS: tuple[Attention, ...] = ("eager", "sdpa")
"""Those of two texts, of which one is written."""
OWN_SCORES: dict[str, str] = {
    model_type: record.own_scores
    for model_type, record in ARCHITECTURES.items()
    if record.own_scores
}
"""What fused attention would leave out of an architecture that is read here, which says so in its
own file, so that nothing is imported to plan; the suite compares that with its class's source."""


def attentions_of(job: Job) -> tuple[Attention, ...]:
    """List the kinds of attention that a job's model can be run with, wherever it is run.

    A module's attention is its own affair: it is the same whatever the strategy says.
    """
    model_type = job.model.model_type
    if model_type in SEQ2SEQ_TYPES:
        return record_of(model_type).bias_kernels or ("eager",)
    if left_out(job.model):
        return ("eager",)
    if is_encoder_decoder(model_type):  # whose classes make their masks of one alone
        return TAKING_PAIRS if job.task == "seq2seq" else ("eager",)
    if job.task in {"sequence-classification", "masked-lm"} and is_encoder(model_type):
        return TAKING_MASKS
    return ALL


def left_out(spec: ModelSpec) -> str:
    """Name what fused attention would leave out of a model; empty where it is nothing."""
    if spec.model_type in ARCHITECTURES or spec.model_type == MODULE:
        return record_of(spec.model_type).own_scores
    return left_out_of(spec.model_type)


def check_taken(job: Job, attention: Attention) -> Attention:
    """Return a kernel as it is, or say why a model's own code does not go through it."""
    taken = attentions_of(job)
    if attention in taken:
        return attention
    what = left_out(job.model)
    why = (
        f"would leave out the {what} of {job.model.name}"
        if what
        else f"takes no mask of padding or no bias of positions, as {job.model.name} has"
    )
    raise UnsupportedError(
        f"attention={attention} {why}, which is of type {job.model.model_type}; use "
        f"{' or '.join(taken)}",
        nearest={"attention": None},
    )
