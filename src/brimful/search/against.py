"""A run against the same one as it is usually done: what each choice of its owner saves, or costs.

The strategy stays; ``beside.py`` changes that. What changes here is what is learnt, and how.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from brimful.hardware.cluster import Cluster, Device
from brimful.search.ledger import Point, predict
from brimful.search.offers import LORA_ALPHA, LORA_BASES, LORA_RANK, in_recipe
from brimful.techniques.kernel_support import Place, first_that_runs, why_emulated
from brimful.techniques.optimizers import DEFAULT as DEFAULT_OPTIMIZER
from brimful.techniques.optimizers import OPTIMIZERS, whole_of
from brimful.values.job import ALL_LINEAR, QAT, QUANTIZED, Job, Precision
from brimful.values.plan import Estimate
from brimful.values.strategy import Strategy

USUAL_PRECISIONS: tuple[Precision, ...] = ("bf16-mixed", "fp16-mixed")
"""The first for which a GPU has units."""


class Against(NamedTuple):
    """The same run without a choice that was made.

    Attributes:
        words: What is usual.
        job: The job so.
        made: What is predicted of that.
    """

    words: str
    job: Job
    made: Estimate


def against(job: Job, cluster: Cluster, strategy: Strategy) -> tuple[Against, ...]:
    """Predict a run with each choice taken back, one at a time; what has no formula is left out."""
    found = []
    for words, other in _usual(job, cluster.device):
        made = predict(Point(other, strategy), cluster)
        if isinstance(made, Estimate):
            found.append(Against(words, other, made))
    return tuple(found)


def _usual(job: Job, device: Device) -> Iterator[tuple[str, Job]]:
    """Yield what is usual, in words, and the job so."""
    if job.optimizer != DEFAULT_OPTIMIZER:
        usual = whole_of(OPTIMIZERS[job.optimizer]) or DEFAULT_OPTIMIZER
        yield usual, msgspec.structs.replace(job, optimizer=usual)
    place = Place(device.kernels, device.capability)
    precision = first_that_runs(USUAL_PRECISIONS, lambda recipe: why_emulated(recipe, place))[0]
    if device.kernels != "cpu" and job.precision != precision and job.loss_scale is None:
        yield precision, in_recipe(job, precision)
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
