"""FSDP1 (``fsdp=1``), whose units are one flat parameter each: what it is not run with."""

from collections.abc import Iterator

from brimful.errors import InputError, UnsupportedError
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import FP8, PREFERENCE, QUANTIZED, Base, Job
from brimful.values.strategy import DEFAULT_FSDP, Strategy, gathers, world_size

_WORDS = {
    (2, False): "SHARD_GRAD_OP",
    (3, False): "FULL_SHARD",
    (2, True): "HYBRID_SHARD_ZERO2",
    (3, True): "HYBRID_SHARD",
}
"""By the stage of ZeRO, and whether there are replicas."""
_STORED: frozenset[Base] = frozenset({"nf4", "nf4-double"})
"""Quantised bases whose bytes may lie in numbers of the type that the rest of a base is in
(``bnb_4bit_quant_storage``)."""


def sharding_of(strategy: Strategy) -> str:
    """Return what FSDP1 calls a stage of ZeRO, 2 or 3, as other programs write it."""
    return _WORDS[strategy.zero, strategy.dp_replicate > 1]


def check_flat(job: Job, strategy: Strategy) -> None:
    """Refuse FSDP1 where it shards nothing, or beside what it cannot or was not compared with."""
    if strategy.fsdp == DEFAULT_FSDP:
        return
    if world_size(strategy) == 1:
        raise InputError(
            "fsdp=1 shards nothing on one device, where torch turns it off; leave it out, or give "
            "2 devices or more",
            nearest={"fsdp": DEFAULT_FSDP},
        )
    if not gathers(strategy):
        raise InputError(
            f"fsdp=1 gathers parameters and zero={strategy.zero} holds them whole; use zero 2 or "
            f"3, or leave fsdp out",
            nearest={"fsdp": DEFAULT_FSDP},
        )
    refused = next(_refused(job, strategy), None)
    if refused is not None:
        what, why = refused
        raise UnsupportedError(
            f"fsdp=1 with {what} is not run by this version, {why}; use fsdp=2",
            nearest={"fsdp": DEFAULT_FSDP},
        )


def _refused(job: Job, strategy: Strategy) -> Iterator[tuple[str, str]]:
    """Yield what FSDP1 is not run beside, and why."""
    if strategy.engine != "torch":
        yield f"engine={strategy.engine}", "which shards by itself"
    for name in ("tp", "pp", "ep"):
        if (degree := getattr(strategy, name)) > 1:
            yield f"{name}={degree}", "whose flat parameters are cut along one axis of devices"
    for what in _of_other_types(job):
        yield what, "whose flat parameters are of one type"
    if OPTIMIZERS[job.optimizer].shards != "all" and not _is_by_number(job):
        why = "whose pieces of parameters are neither matrices nor whole blocks of numbers"
        yield f"optimizer={job.optimizer}", why
    asked = {
        f"task={job.task}": job.task == PREFERENCE,
        f"method={job.method}": job.method not in {"full", "lora", "qlora"},
        f"offload={strategy.offload}": strategy.offload != NO_OFFLOAD,
        "optimizer_in_backward": strategy.optimizer_in_backward,
    }
    for what, is_asked in asked.items():
        if is_asked:
            yield what, "which was not compared with the plain loop"


def _of_other_types(job: Job) -> Iterator[str]:
    """Name what lets a unit's parameters be of several types."""
    base, upcast = (None, "none") if job.adapter is None else (job.adapter.base, job.adapter.upcast)
    if base in QUANTIZED - _STORED:
        yield f"base={base}"
    if upcast == "norms":
        yield f"upcast={upcast}"
    if job.keep_fp32:
        yield f"keep_fp32={','.join(job.keep_fp32)}"
    if job.precision == FP8:
        yield f"precision={FP8}"


def _is_by_number(job: Job) -> bool:
    """Whether an optimizer updates every number by itself, whatever lies beside it."""
    rule = OPTIMIZERS[job.optimizer]
    return rule.shards == "local" and not rule.rounds
