"""Whether expert parallelism runs a job: one predicate that planner, simulator and trainer read.

Knows a model by its experts and no torch; ``build.parallel.experts`` parts them among devices.
"""

from typing import NamedTuple

from brimful.errors import InputError, UnsupportedError
from brimful.models.architectures import MIXTURES
from brimful.models.mixtures import OWN_EXPERTS, known_experts
from brimful.models.names import has_experts
from brimful.models.traced import find_built
from brimful.values.job import FP8, QAT, Job

PARTED_TASKS = ("causal-lm", "chat")


class Spread(NamedTuple):
    """The degrees that experts hang on; see ``Strategy``."""

    ep: int
    tp: int
    dp_shard: int
    dp_replicate: int
    zero: int


def check_experts_split(job: Job, spread: Spread) -> None:
    """Refuse a job whose experts cannot be parted among so many devices."""
    ep, tp = spread.ep, spread.tp
    if ep == 1:
        return
    _check_kind(job, ep)
    num_experts = known_experts(job.model).num_experts
    if num_experts % ep:
        divisors = ", ".join(str(n) for n in range(1, num_experts + 1) if not num_experts % n)
        raise InputError(
            f"ep={ep} does not divide the {num_experts} experts of {job.model.name}; use {divisors}"
        )
    if spread.zero < 2 and spread.dp_shard * spread.dp_replicate > 1:  # noqa: PLR2004 - DDP, ZeRO-1
        raise UnsupportedError(
            f"ep={ep} with zero={spread.zero} is not run by this version, which parts experts "
            f"beside FSDP2; use zero=2 or zero=3",
            nearest={"zero": 3},
        )
    devices = spread.dp_shard * tp
    if devices % ep:
        by = "" if tp == 1 else f" x tp={tp}"
        raise InputError(
            f"ep={ep} does not divide dp_shard={spread.dp_shard}{by} = {devices} devices, among "
            f"which experts are parted; use a divisor of {devices}"
        )
    if ep % tp:
        raise InputError(
            f"ep={ep} is no multiple of tp={tp}: devices that share matrices have different tokens "
            f"and different experts; use ep={tp} or a multiple of it",
            nearest={"ep": tp},
        )


def _check_kind(job: Job, ep: int) -> None:
    kind, name = job.model.model_type, job.model.name
    if kind not in MIXTURES and not has_experts(job.model.hf_config):
        raise InputError(f"ep={ep} parts experts and {name} has none; use ep=1", nearest={"ep": 1})
    built = find_built(job.model)
    is_whole = kind in OWN_EXPERTS or (built is not None and not built.parts)
    if is_whole or job.task not in PARTED_TASKS:
        raise UnsupportedError(
            f"ep={ep} is not run for {name} (model_type={kind}, task={job.task}): this version "
            f"parts experts that transformers runs as one grouped product, as "
            f"{' and '.join(PARTED_TASKS)}; use ep=1",
            nearest={"ep": 1},
        )
    if job.method == QAT:
        raise UnsupportedError(
            f"ep={ep} with method={QAT} is not run by this version; use method=full, or ep=1",
            nearest={"ep": 1},
        )
    if job.precision == FP8:
        raise UnsupportedError(
            f"ep={ep} with precision={FP8} is not run by this version; use bf16-mixed, or ep=1",
            nearest={"ep": 1},
        )
