"""Jobs that are like a job but for one thing that only its owner may allow."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from brimful.cost.least import least_bytes
from brimful.models.config import exact_count
from brimful.techniques.optimizers import OPTIMIZERS, rounded_of, whole_of
from brimful.values.job import ALL_LINEAR, FOUR_BITS, QUANTIZED, Adapter, Base, Job, Precision

LORA_RANK, LORA_ALPHA = 16, 32.0
"""Of the adapters that are offered to a job that has none; tested equal to the command line's."""
QLORA_BASE: Base = "nf4-double"
_PURE, _ROUNDED = ("--precision",), ("--optimizer",)
_LEAST_FIRST = (
    "--base",
    *_PURE,
    *_ROUNDED,
    "--method lora",
    "--method qlora",
    "--method",
    "--seq-len",
)
"""Flags, in the order of how much else they leave as it was asked for."""
LORA_BASES: dict[str, Base] = {"bf16-mixed": "bf16", "fp16-mixed": "fp16"}
"""How LoRA holds the base where a recipe computes in 16 bits on fp32; any other: ``same``."""


class Offer(NamedTuple):
    """What could be allowed.

    Attributes:
        allow: As it is typed: ``--optimizer adamw-8bit``.
        price: What it changes, in words.
        job: The job with it.
    """

    allow: str
    price: str
    job: Job


def offers(job: Job) -> tuple[Offer, ...]:
    """List rounded moments, or whole ones, LoRA, QLoRA and pure bf16, without what a job has.

    Of adapters beside a base in fp32 that base in 16 bits comes first.
    """
    made = (_halved(job), _rounded(job), _whole(job), _lora(job), _qlora(job), _pure(job))
    return tuple(offer for offer in made if offer is not None)


def plainest(allowed: Iterable[str]) -> list[str]:
    """Return what could be allowed, what changes least first, without two where one is enough."""
    every = sorted(allowed, key=_rank)
    return [
        flags
        for flags in every
        if _num_changes(flags) <= 1
        or not any(_num_changes(one) == 1 and one.startswith(_PURE + _ROUNDED) for one in every)
    ]


def _rank(flags: str) -> tuple[int, int]:
    """Order what could be allowed: recipes, optimizers, adapters, shorter texts, other GPUs."""
    places = [place for place, flag in enumerate(_LEAST_FIRST) if flags.startswith(flag)]
    return min(places, default=len(_LEAST_FIRST)), _num_changes(flags)


def _num_changes(flags: str) -> int:
    return sum(flag in flags for flag in _PURE + _ROUNDED)


def in_recipe(job: Job, precision: Precision) -> Job:
    """Return a job in another recipe, whose frozen base is held as that recipe's is by default.

    A base that is another than the default of its own recipe stays.
    """
    changed = msgspec.structs.replace(job, precision=precision, loss_scale=None)
    if job.adapter is None or job.adapter.base != LORA_BASES.get(job.precision, "same"):
        return changed
    return _adapted(changed, LORA_BASES.get(precision, "same"))


def _rounded(job: Job) -> Offer | None:
    rule = OPTIMIZERS[job.optimizer]
    if not (rounded := rounded_of(rule)):
        return None
    changed = msgspec.structs.replace(job, optimizer=rounded)
    price = f"{rule.words}'s moments are rounded to 8 bits"
    return Offer(f"--optimizer {rounded}", price, changed)


def _whole(job: Job) -> Offer | None:
    """Take more for moments that any number of devices can share."""
    rule = OPTIMIZERS[job.optimizer]
    if not (whole := whole_of(rule)):
        return None
    changed = msgspec.structs.replace(job, optimizer=whole)
    return Offer(f"--optimizer {whole}", f"{rule.words}'s moments are not rounded", changed)


def _halved(job: Job) -> Offer | None:
    """Hold a frozen base in 16 bits that a recipe of fp32 holds as wide as what trains."""
    half = LORA_BASES.get(job.precision)
    if job.adapter is None or job.adapter.base != "same" or half is None:
        return None
    words = "frozen weights are held in 16 bits"
    return Offer(f"--base {half}", words, _adapted(job, half))


def _lora(job: Job) -> Offer | None:
    if job.method != "full":
        return None
    changed = _adapted(job, LORA_BASES.get(job.precision, "same"))
    return Offer("--method lora", f"only adapters of rank {LORA_RANK} train", changed)


def _qlora(job: Job) -> Offer | None:
    base = None if job.adapter is None else job.adapter.base
    if job.method == "qat" or base in FOUR_BITS:
        return None
    if base in QUANTIZED:
        price = "weights beside the adapters are rounded to 4 bits instead of 8"
        return Offer(f"--base {QLORA_BASE}", price, _adapted(job, QLORA_BASE))
    price = f"only adapters of rank {LORA_RANK} train, beside weights of 4 bits"
    if job.adapter is not None:
        price = "weights beside the adapters are rounded to 4 bits"
    return Offer("--method qlora", price, _adapted(job, QLORA_BASE))


def _pure(job: Job) -> Offer | None:
    if job.precision in {"bf16", "fp16"}:
        return None
    changed = in_recipe(job, "bf16")
    price = f"nothing that trains is held in fp32{_fewer_bytes(job, changed)}"
    return Offer("--precision bf16", price, changed)


def pure_and_rounded(job: Job) -> Offer | None:
    """Return pure bf16 with rounded moments, as neither may be enough alone; None: it has one."""
    pure, rounded = _pure(job), _rounded(job)
    if job.method != "full" or pure is None or rounded is None:
        return None
    changed = msgspec.structs.replace(pure.job, optimizer=rounded.job.optimizer)
    price = f"nothing that trains is held in fp32 and moments in 8 bits{_fewer_bytes(job, changed)}"
    return Offer(f"{pure.allow} {rounded.allow}", price, changed)


def _fewer_bytes(job: Job, changed: Job) -> str:
    """Say how many bytes of states a parameter takes instead of how many, where all train."""
    count = exact_count(job.model) if job.method == "full" else None
    if not count:
        return ""
    before, after = (least_bytes(each, count).total / count for each in (job, changed))
    return f", {after:.2g} instead of {before:.2g} bytes a parameter"


def _adapted(job: Job, base: Base) -> Job:
    """Return the job with adapters; those that it has keep all but their base."""
    plain = Adapter(
        rank=LORA_RANK,
        alpha=LORA_ALPHA,
        targets=(ALL_LINEAR,),
        trained_modules=(),
        dtype="same",
        base=base,
        upcast="none",
        input_requires_grad=False,
    )
    adapter = plain if job.adapter is None else msgspec.structs.replace(job.adapter, base=base)
    own = job.method if job.adapter is not None and job.method != "qlora" else "lora"
    method = "qlora" if base in QUANTIZED else own
    return msgspec.structs.replace(job, method=method, adapter=adapter)
