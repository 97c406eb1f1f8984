"""Why a technique takes or saves what it does, in a sentence with the asker's own numbers."""

from collections.abc import Callable
from typing import NamedTuple

from brimful.cost.assumptions import assumptions_for
from brimful.rules.base import gibibytes, percent
from brimful.rules.subject import (
    Subject,
    full,
    held,
    item_bytes,
    low_rank,
    mixed,
    num_parameters,
    run,
    saved_per_sequence,
    seconds,
)
from brimful.units import format_count
from brimful.values.results import LOGITS, SAVED_ACTIVATIONS


class Cause(NamedTuple):
    """What explains some rules.

    Attributes:
        of: The keys of those rules.
        says: The sentence; may raise ``UnsupportedError``.
    """

    of: tuple[str, ...]
    says: Callable[[Subject], str]


def _recomputing(subject: Subject) -> str:
    job = full(subject, subject.job.precision)
    kinds = ("none", "full")
    kept, inputs = (
        saved_per_sequence(subject, job, activation_checkpointing=kind) for kind in kinds
    )
    plain, again = (seconds(run(subject, job, activation_checkpointing=kind)) for kind in kinds)
    return (
        f"without it every layer keeps what its backward needs, {gibibytes(kept)} a text; with it "
        f"its input alone, {gibibytes(inputs)}, and the backward runs the layer's forward again, "
        f"{percent(again / plain - 1)} more time here; weights, gradients and optimizer state stay"
    )


def _states(subject: Subject) -> str:
    job, num = full(subject, subject.job.precision), num_parameters(subject.job)
    made, each = run(subject, job), held(job)
    parts = (
        (each.parameters, "of parameters"),
        (each.buckets + each.gradients, "of gradients"),
        (each.optimizer_state, "of optimizer state"),
    )
    words = " + ".join(f"{size / num:.2g} {what}" for size, what in parts)
    context = assumptions_for(subject.cluster.device).context_low_bytes
    return (
        f"{words} in {job.precision} with {job.optimizer}; on top come saved activations, "
        f"{gibibytes(saved_per_sequence(subject, job))} a text of {job.seq_len:,} tokens "
        f"({gibibytes(saved_per_sequence(subject, job, activation_checkpointing='full'))} with all "
        f"layers checkpointed), logits and loss, {gibibytes(item_bytes(made, LOGITS))}, and CUDA's "
        f"context, from {gibibytes(context)}"
    )


def _adapting(subject: Subject) -> str:
    whole, few = mixed(subject), low_rank(subject, mixed(subject).precision, "lora")
    all_of, some = held(whole), held(few)
    saved = item_bytes(run(subject, few), SAVED_ACTIVATIONS)
    return (
        f"the base is frozen, so that gradients and optimizer state are of adapters alone: "
        f"{gibibytes(some.buckets + some.gradients + some.optimizer_state)} in place of "
        f"{gibibytes(all_of.buckets + all_of.gradients + all_of.optimizer_state)}; the base itself "
        f"({gibibytes(some.parameters)}) and activations ({gibibytes(saved)}) stay"
    )


def _packing(subject: Subject) -> str:
    whole, packed = (held(low_rank(subject, "bf16-mixed", method)) for method in ("lora", "qlora"))
    return (
        f"the frozen base of {format_count(num_parameters(subject.job))} parameters is kept in 4 "
        f"bits, {gibibytes(packed.parameters)} in place of {gibibytes(whole.parameters)}, and is "
        f"widened to 16 bits whenever a layer runs, which takes time; activations stay"
    )


def _fusing(subject: Subject) -> str:
    job = mixed(subject)
    written, fused = (
        saved_per_sequence(subject, job, attention=kind)
        for kind in ("eager", subject.strategy.attention)
    )
    return (
        f"written out, attention keeps a score for each pair of tokens; fused it computes them "
        f"tile by tile and never writes them: {gibibytes(fused)} saved a text of {job.seq_len:,} "
        f"tokens in place of {gibibytes(written)}"
    )


CAUSES = (
    Cause(("ckpt-saves", "ckpt-costs"), _recomputing),
    Cause(("zero-paper-16", "full-70b-parts", "full-formula", "full-linear"), _states),
    Cause(("lora-saves", "lora-70b"), _adapting),
    Cause(("qlora-gigabyte", "qlora-time"), _packing),
    Cause(("flash", "flash-activations"), _fusing),
)


def cause_of(key: str, subject: Subject) -> str:
    """Say why a rule's technique does what it does; empty: nothing is declared of it."""
    return next((each.says(subject) for each in CAUSES if key in each.of), "")
