"""A run against the same one as it is usually done: what each choice of its owner saves, or costs.

The strategy stays; ``beside.py`` changes that. What changes here is what is learnt, and how.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from brimful.hardware.cluster import Cluster
from brimful.job import FP8, QAT, QUANTIZED, Job
from brimful.models.targets import ALL_LINEAR
from brimful.plan import Estimate
from brimful.search.ledger import Point, predict
from brimful.search.offers import LORA_ALPHA, LORA_BASES, LORA_RANK
from brimful.strategy import Strategy
from brimful.techniques.optimizers import DEFAULT as DEFAULT_OPTIMIZER
from brimful.techniques.optimizers import OPTIMIZERS, whole_of

USUAL_PRECISION = "bf16-mixed"


class Against(NamedTuple):
    """The same run without a choice that was made.

    Attributes:
        words: What is usual.
        made: What is predicted of that.
    """

    words: str
    made: Estimate


def against(job: Job, cluster: Cluster, strategy: Strategy) -> tuple[Against, ...]:
    """Predict a run with each choice taken back, one at a time; what has no formula is left out.

    Args:
        job: What is trained.
        cluster: On what.
        strategy: How.
    """
    found = []
    for words, other in _usual(job):
        made = predict(Point(other, strategy), cluster)
        if isinstance(made, Estimate):
            found.append(Against(words, made))
    return tuple(found)


def _usual(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield what is usual, in words, and the job so."""
    if job.optimizer != DEFAULT_OPTIMIZER:
        usual = whole_of(OPTIMIZERS[job.optimizer]) or DEFAULT_OPTIMIZER
        yield usual, msgspec.structs.replace(job, optimizer=usual)
    if job.precision in {FP8, "bf16"}:
        yield USUAL_PRECISION, msgspec.structs.replace(job, precision=USUAL_PRECISION)
    if job.method == QAT:
        plain = msgspec.structs.replace(job, method="full", quantization=None)
        yield "plain training", plain
    if job.adapter is not None:
        yield from _adapted(job)


def _adapted(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield the job with other adapters, and without them."""
    adapter = job.adapter
    assert adapter is not None

    def with_(method: str = job.method, **changes: object) -> Job:
        return msgspec.structs.replace(
            job, method=method, adapter=msgspec.structs.replace(adapter, **changes)
        )

    if adapter.rank != LORA_RANK:
        yield f"rank {LORA_RANK}", with_(rank=LORA_RANK, alpha=LORA_ALPHA)
    if ALL_LINEAR not in adapter.targets:
        yield "adapters on all linear layers", with_(targets=(ALL_LINEAR,))
    if adapter.base in QUANTIZED:
        yield "16-bit weights", with_("lora", base=LORA_BASES.get(job.precision, "same"))
    yield "full training", msgspec.structs.replace(job, method="full", adapter=None)
