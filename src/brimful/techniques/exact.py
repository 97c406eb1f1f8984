"""Exact, and when: which switch changes nothing but the order of sums, and for which job.

One table for all who need to know: planning refuses a strategy that would change the mathematics,
the trainer asks again once a module of the user's is built. A switch at the value that runs a step
whole (all in one micro-batch, one device, no chunks, ...) is exact by definition; each row says
what breaks other values. Where a job drops, the random numbers are part of the mathematics: what
runs together in another way draws others of the same distribution.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from brimful.models.architectures import named_with
from brimful.techniques.dropout import drops
from brimful.values.job import FP8, IN_FP32, MODULE, Allowed, Job

Field = Literal[
    "micro_batch",
    "activation_checkpointing",
    "loss_chunks",
    "attention",
    "reference",
    "optimizer_in_backward",
    "fused_kernels",
    "data_parallel",
]
How = Literal["exact", "drawn", "rounding", "built", "changes"]
"""``drawn``: exact in distribution, not in numbers: other masks of dropout are drawn. ``rounding``:
other than the plain run by what the job's own number format rounds. ``built``: only the built
module can tell. ``changes``: something else would be learnt."""
SAME_LAW: frozenset[How] = frozenset({"exact", "drawn"})
"""What changes neither what is learnt nor how finely."""

_ENCODERS = named_with("task", "sequence-classification")
"""Models whose tokens see those after them, padding too if nothing hides it."""
_ROUTED_BY_ROW = named_with("balances_rows")


class Exactness(NamedTuple):
    """What is known of a switch.

    Attributes:
        field: The switch.
        how: Whether and how far it is exact.
        reason: One sentence.
        allowed_by: What a job may allow so that it is taken all the same; None: nothing.
    """

    field: Field
    how: How
    reason: str
    allowed_by: Allowed | None = None

    @property
    def is_exact(self) -> bool:
        """Whether it changes nothing but the order of sums."""
        return self.how == "exact"


Found = Iterator[tuple[How, str] | tuple[How, str, Allowed]]
"""What breaks a switch, worst first."""


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        why: Why the switch is exact where nothing breaks it.
        broken_by: Lists what breaks a value of it for a job.
    """

    why: str
    broken_by: Callable[[Job, Any], Found]


def exactness(job: Job, field: Field, value: Any) -> Exactness:
    """Say whether a switch is exact for a job.

    ``value``: what it is set to: the micro-batch, the checkpointing as people type it, the number
    of chunks, the kernel, the number of micro-batches of a step whose update runs inside the
    backward pass (0: it does not), the number of data-parallel devices.
    """
    row = TABLE[field]
    found = next(row.broken_by(job, value), None)
    return Exactness(field, "exact", row.why) if found is None else Exactness(field, *found)


def _splits_batch(job: Job, micro_batch: int) -> Found:
    if micro_batch != job.global_batch:
        yield from _statistics(job)
        yield from _draws(job)


def _spreads_batch(job: Job, num_devices: int) -> Found:
    if num_devices > 1:
        yield from _statistics(job)


def _statistics(job: Job) -> Found:
    """What makes rows of a batch depend on one another."""
    if job.router_aux_loss and "batch-statistics" not in job.allow:
        yield (
            "changes",
            (
                f"router_aux_loss={job.router_aux_loss} multiplies means over the tokens that run "
                f"together; run the whole batch in one micro-batch on one device, or "
                f"allow=batch-statistics"
            ),
            "batch-statistics",
        )
    config = job.model.hf_config
    balances = config.get("output_router_logits") and config.get("router_aux_loss_coef", 0)
    if balances and job.model.model_type not in _ROUTED_BY_ROW:
        yield (
            "changes",
            (
                "the routers' auxiliary loss multiplies means over the rows that run together, and "
                "a product of means is no sum over rows"
            ),
        )
    if job.model.model_type == MODULE:
        yield "built", "a module of your own may take statistics over its rows, as BatchNorm does"
    yield from _rows_together(job)


def _rows_together(job: Job) -> Found:
    """What makes a row of a batch round differently beside other rows."""
    if job.adapter is not None and job.adapter.base == "llm-int8":
        yield (
            "rounding",
            "llm-int8 leaves a column in fp16 where any row that runs with it has an outlier there",
        )
    if job.precision == FP8:
        yield "rounding", "fp8 scales a tensor by its largest number, of all rows that run together"


def _draws(job: Job) -> Found:
    if drops(job):
        yield (
            "drawn",
            (
                "dropout draws other masks for what runs together in another way, exact in "
                "distribution, not in numbers"
            ),
        )


def _recomputes(job: Job, checkpointing: str) -> Found:
    if checkpointing != "none" and job.model.model_type == MODULE:
        yield (
            "built",
            (
                "a module of your own may keep something of every forward pass, as BatchNorm's "
                "running statistics do, and recomputing is another one"
            ),
        )


def _attends(job: Job, kernel: str) -> Found:
    if kernel == "flash" and job.packing == "documents":
        yield (
            "changes",
            (
                "the flash kernel of scaled_dot_product_attention takes no mask, so that packed "
                "documents would see one another; use sdpa, efficient, cudnn, flex, varlen or eager"
            ),
        )
    if kernel in {"flash", "flex", "varlen"} and job.model.model_type in _ENCODERS:
        yield "changes", f"{kernel} is given no mask, so that padding would be seen; use sdpa"
    if kernel not in {"eager", "sdpa"} and job.task == "seq2seq":
        yield "changes", f"{kernel} is not given the model's relative positions; use sdpa"
    if kernel != "eager":
        yield from _draws(job)


def _refers(job: Job, reference: str) -> Found:
    if reference == "precomputed":
        yield from _rows_together(job)


def _updates_early(job: Job, num_micro_batches: int) -> Found:
    if not num_micro_batches:
        return
    if num_micro_batches > 1:
        yield (
            "changes",
            f"the gradients of {num_micro_batches} micro-batches must add up before the update",
        )
    if job.clip:
        yield (
            "changes",
            f"clip={job.clip} needs the norm of all gradients, known when the backward pass ends",
        )
    if job.loss_scale is not None:
        yield "changes", "whether loss scaling skips a step is known when the backward pass ends"


def _fuses(job: Job, kernels: str) -> Found:
    if kernels == "liger" and job.precision not in IN_FP32:
        yield (
            "rounding",
            (
                "its kernels keep fp32 between operations that are rounded one by one otherwise, "
                "and its loss adds the head's gradient up chunk by chunk in the head's own type"
            ),
        )


def _never(_job: Job, _value: Any) -> Found:
    return iter(())


TABLE: dict[Field, Row] = {
    "micro_batch": Row(
        "the loss is a sum over targets divided by the count of the whole step, so that the "
        "gradients of micro-batches add up",
        _splits_batch,
    ),
    "activation_checkpointing": Row(
        "the same operations run once more on the same values, and drop the same once more",
        _recomputes,
    ),
    "loss_chunks": Row("the loss is a sum over tokens, and so is that of each chunk", _never),
    "attention": Row("every kernel computes the same softmax over the same tokens", _attends),
    "reference": Row(
        "the reference model is the trained one before its first step, wherever it is kept",
        _refers,
    ),
    "optimizer_in_backward": Row(
        "each parameter is updated from its whole gradient, whenever that is", _updates_early
    ),
    "fused_kernels": Row(
        "each kernel computes what the operations that it stands for do, with sums in another "
        "order",
        _fuses,
    ),
    "data_parallel": Row(
        "every device divides its sum by the count of the whole step, and the sums add up",
        _spreads_batch,
    ),
}
