"""Jobs that are like a job but for one thing that only its owner may allow."""

from typing import NamedTuple

import msgspec

from brimful.job import QUANTIZED, Adapter, Base, Job, Optimizer

LORA_RANK, LORA_ALPHA = 16, 32.0
"""Of the adapters that are offered to a job that has none; tested equal to the command line's."""
LOW_BIT: tuple[Optimizer, ...] = ("adamw-8bit", "adamw-4bit", "adamw-fp8")
QLORA_BASE: Base = "nf4-double"
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
    """List 8-bit AdamW, or whole AdamW, LoRA, QLoRA and pure bf16, without those that a job has."""
    made = (_eight_bit(job), _whole(job), _lora(job), _qlora(job), _pure(job))
    return tuple(offer for offer in made if offer is not None)


def _eight_bit(job: Job) -> Offer | None:
    if job.optimizer not in {"adamw", "adamw-foreach"}:
        return None
    changed = msgspec.structs.replace(job, optimizer="adamw-8bit")
    return Offer("--optimizer adamw-8bit", "AdamW's moments are rounded to 8 bits", changed)


def _whole(job: Job) -> Offer | None:
    """Take more for moments that any number of devices can share."""
    if job.optimizer not in LOW_BIT:
        return None
    changed = msgspec.structs.replace(job, optimizer="adamw")
    return Offer("--optimizer adamw", "AdamW's moments are not rounded", changed)


def _lora(job: Job) -> Offer | None:
    if job.method != "full":
        return None
    changed = _adapted(job, LORA_BASES.get(job.precision, "same"))
    return Offer("--method lora", f"only adapters of rank {LORA_RANK} train", changed)


def _qlora(job: Job) -> Offer | None:
    if job.method in {"qlora", "qat"}:
        return None
    price = f"only adapters of rank {LORA_RANK} train, beside weights of 4 bits"
    return Offer("--method qlora", price, _adapted(job, QLORA_BASE))


def _pure(job: Job) -> Offer | None:
    if job.precision in {"bf16", "fp16"}:
        return None
    changed = msgspec.structs.replace(job, precision="bf16", loss_scale=None)
    return Offer("--precision bf16", "nothing that trains is held in fp32", changed)


def _adapted(job: Job, base: Base) -> Job:
    """Return the job with adapters; those that it has keep all but their base."""
    plain = Adapter(
        rank=LORA_RANK,
        alpha=LORA_ALPHA,
        targets=("all-linear",),
        trained_modules=(),
        dtype="same",
        base=base,
        upcast="none",
        input_requires_grad=False,
    )
    adapter = plain if job.adapter is None else msgspec.structs.replace(job.adapter, base=base)
    method = "qlora" if base in QUANTIZED else "lora"
    return msgspec.structs.replace(job, method=method, adapter=adapter)
