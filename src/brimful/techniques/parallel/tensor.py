"""Whether tensor parallelism runs a job: one predicate that planner, simulator and trainer read.

Knows a model by its dimensions and no torch; ``build.parallel.tensor`` cuts it.
"""

from math import gcd

from brimful.errors import InputError, UnsupportedError
from brimful.models.architectures import ARCHITECTURES, named_with, record_of
from brimful.models.cut_plans import is_cut
from brimful.values.job import Job

CUT_DECODERS = named_with("tensor", "whole")
"""Architectures whose every matrix is cut."""
CUT_MIXTURES = named_with("tensor", "beside-experts")
"""Architectures whose every matrix but those of experts is cut: they are parted instead."""
CUT_TASKS = ("causal-lm", "chat")
_SIZES = ("num_heads", "num_kv_heads", "intermediate_size")
"""Fields of a model of which every device must have an equal part."""
PADDED_MULTIPLE = 8
"""What rows of ``packing=none`` are padded to multiples of, at most to ``seq_len``."""


def check_tensor(job: Job, tp: int, *, ep: int = 1) -> None:
    """Refuse a job whose model cannot be cut over so many devices.

    The vocabulary may be cut unevenly: the last device has fewer rows of it.

    Raises UnsupportedError: this version does not cut such a model.
    """
    if tp == 1:
        return
    _check_kind(job, tp, ep)
    sizes = _sizes(job)
    common = gcd(*sizes.values())
    for name, size in sizes.items():
        if size % tp:
            raise InputError(
                f"tp={tp} does not divide {name}; use {_divisors(common)}",
                nearest={"tp": max(n for n in range(1, tp) if not common % n)},
            )
    rows = -(-job.model.vocab_size // tp)
    if rows * (tp - 1) >= job.model.vocab_size:
        raise InputError(
            f"tp={tp} devices with {rows} rows each of vocab_size={job.model.vocab_size} leave the "
            f"last without any; use fewer"
        )


def is_run(model_type: str) -> bool:
    """Whether an architecture is cut: by its record here, or by what its class plans."""
    if model_type in ARCHITECTURES:
        return model_type in CUT_DECODERS | CUT_MIXTURES
    return is_cut(model_type)


def _sizes(job: Job) -> dict[str, int]:
    """List what the degree must divide, by how a message calls it."""
    named = {name: int(getattr(job.model, name)) for name in _SIZES}
    sizes = {f"{name}={size} of {job.model.name}": size for name, size in named.items()}
    sizes[f"seq_len={job.seq_len}"] = job.seq_len
    if job.packing == "none":
        sizes[f"{PADDED_MULTIPLE}, to multiples of which packing=none pads rows"] = PADDED_MULTIPLE
    return sizes


def _check_kind(job: Job, tp: int, ep: int) -> None:
    kind, name = job.model.model_type, job.model.name
    if fused := record_of(kind).fused_matrices:
        raise UnsupportedError(
            f"tp={tp} is not run for {name}: {kind} holds several matrices in one ({fused}), so "
            f"that no device's rows of it are one piece; use tp=1 with zero=3",
            nearest={"tp": 1},
        )
    if kind in CUT_MIXTURES and ep == 1:
        raise UnsupportedError(
            f"tp={tp} of {name} is run with its experts parted among devices, not cut; use ep={tp} "
            f"or a multiple of it, or tp=1",
            nearest={"ep": tp},
        )
    if job.task not in CUT_TASKS or not is_run(kind):
        raise UnsupportedError(
            f"tp={tp} is not run for {name} (model_type={kind}, task={job.task}): this version "
            f"cuts, as {' and '.join(CUT_TASKS)}, decoders whose every layer is queries, keys and "
            f"values apart, their product, a plain or gated MLP or a norm; use tp=1",
            nearest={"tp": 1},
        )
    if job.method != "full":
        method = f"tp={tp} with method={job.method} is not run by this version"
        if uneven := next((name for name, size in _sizes(job).items() if size % tp), ""):
            raise UnsupportedError(
                f"tp={tp} does not divide {uneven}, whatever is trained; and {method}; use tp=1",
                nearest={"tp": 1},
            )
        raise UnsupportedError(f"{method}; use tp=1, or method=full", nearest={"tp": 1})


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if not number % n)
