"""The most that fits of a model that writes: texts, their length, formats, prompts in chunks."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.formats import COMPUTE_BYTES, DYNAMIC, FORMATS, Compute, WeightsFormat
from brimful.cost.held import held_bytes
from brimful.cost.inference import (
    InferenceJob,
    cache_bytes,
    compute_of,
    estimate_inference,
    sizes_of,
)
from brimful.cost.reading import (
    decode_transient,
    prefill_transient,
    workspace_bytes,
)
from brimful.cost.served import is_shown
from brimful.hardware.cluster import Cluster
from brimful.values.job import MAX_COUNT

_LEAST_PROMPT = 64
"""Tokens that one forward reads at least: fewer save nothing that counts."""


class Limits(NamedTuple):
    """The most that fits, one size at a time, all else as asked; 0 where nothing does.

    Attributes:
        seq_len: Tokens of each sequence, at most the model's positions.
        num_sequences: Sequences that are read at once.
        num_in_turn: Sequences that are there at once, if each is read by itself.
    """

    seq_len: int
    num_sequences: int
    num_in_turn: int


class FormatFit(NamedTuple):
    """A format in which the same text would fit or not.

    Attributes:
        weights_format: Which.
        num_bytes: The predicted peak, or the floor where there is no peak.
        fits: As in ``InferenceEstimate``.
    """

    weights_format: WeightsFormat
    num_bytes: int
    fits: bool | None


def other_formats(job: InferenceJob, cluster: Cluster) -> tuple[FormatFit, ...]:
    """Estimate the same text in every format, the largest first."""
    found = []
    for other in in_every_format(job):
        made = estimate_inference(other, cluster)
        size = made.predicted_peak_allocated_bytes or made.predicted_floor_bytes
        found.append(FormatFit(other.weights_format, size, made.fits))
    return tuple(sorted(found, key=lambda fit: -fit.num_bytes))


def in_every_format(job: InferenceJob) -> Iterator[InferenceJob]:
    """Yield the same text in every format, its own among them; tf32 is fp32 to memory.

    Formats of ``brimful convert`` are shown where they are asked for.
    """
    for weights_format in FORMATS:
        if weights_format == "tf32" or weights_format in DYNAMIC - {job.weights_format}:
            continue
        if weights_format != job.weights_format and not is_shown(job.model, weights_format):
            continue
        compute = compute_of(weights_format) if _is_plain(weights_format) else _narrow(job.compute)
        yield msgspec.structs.replace(job, weights_format=weights_format, compute=compute)


def _is_plain(weights_format: WeightsFormat) -> bool:
    return weights_format in COMPUTE_BYTES


def _narrow(compute: Compute) -> Compute:
    """Return the type that weights are computed in once they are quantised: one of 16 bits."""
    return compute if compute in {"bf16", "fp16"} else "bf16"


def limits(job: InferenceJob, cluster: Cluster) -> Limits | None:
    """Find the longest sequences and the most of them that fit; None without a formula."""
    if estimate_inference(job, cluster).predicted_peak_allocated_bytes is None:
        return None

    def fits(**changes: int) -> bool:
        made = estimate_inference(msgspec.structs.replace(job, **changes), cluster)
        return made.fits is True

    def read_whole(length: int) -> bool:
        return fits(seq_len=length, prompt_len=min(length, _prompt(job, length)))

    return Limits(
        seq_len=largest(read_whole, job.model.max_seq_len),
        num_sequences=largest(lambda count: fits(num_sequences=count), MAX_COUNT),
        num_in_turn=largest(lambda count: _fits_in_turn(job, cluster, count), MAX_COUNT),
    )


def shorter_prompt(job: InferenceJob, fits: Callable[[InferenceJob], bool | None]) -> int:
    """Return how much of a prompt one forward may read where all of it does not fit; 0: unknown.

    ``job``: what does not fit. Returns tokens, the prompt's halved as often as needed.
    """
    num_tokens = job.prompt_len // 2
    while num_tokens >= _LEAST_PROMPT:
        if fits(msgspec.structs.replace(job, prompt_len=num_tokens)):
            return num_tokens
        num_tokens //= 2
    return 0


CHUNK_TOKENS = 512
"""Of a prompt that one forward reads where it is read in chunks: llama.cpp's ``n_ubatch``."""


class ChunkedFit(NamedTuple):
    """A format in which a text fits if its prompt is read in chunks, and not at once.

    Attributes:
        weights_format: Of the weights.
        num_bytes: The peak.
        num_sequences: Texts of that length at once.
    """

    weights_format: WeightsFormat
    num_bytes: int
    num_sequences: int


class InChunks(NamedTuple):
    """What fits if prompts are read in chunks, and does not if one forward reads all of them.

    Attributes:
        prompt_len: Tokens of a chunk.
        limits: The most that fits so.
        formats: Formats in which the same text fits so alone, the largest first.
    """

    prompt_len: int
    limits: Limits
    formats: tuple[ChunkedFit, ...]


def in_chunks(job: InferenceJob, cluster: Cluster) -> InChunks | None:
    """Return what fits with prompts in chunks; None: they are short, or there is no formula."""
    if job.prompt_len <= CHUNK_TOKENS:
        return None
    found = limits(msgspec.structs.replace(job, prompt_len=CHUNK_TOKENS), cluster)
    if found is None:
        return None
    formats = []
    for whole in in_every_format(job):
        cut = msgspec.structs.replace(whole, prompt_len=CHUNK_TOKENS)
        made = estimate_inference(cut, cluster)
        size = made.predicted_peak_allocated_bytes
        is_new = made.fits and not estimate_inference(whole, cluster).fits
        if is_new and size is not None and (most := limits(cut, cluster)) is not None:
            formats.append(ChunkedFit(whole.weights_format, size, most.num_sequences))
    return InChunks(CHUNK_TOKENS, found, tuple(sorted(formats, key=lambda fit: -fit.num_bytes)))


def most_tokens(job: InferenceJob, cluster: Cluster) -> int:
    """Return how long a text has room beside the weights, whatever its forward takes; 0: none."""
    usable = tensor_limit_bytes(cluster)
    held = held_bytes(job.model, job.weights_format, job.compute).total

    def has_room(length: int) -> bool:
        longer = msgspec.structs.replace(
            job, seq_len=length, prompt_len=min(length, job.prompt_len)
        )
        return held + cache_bytes(longer)[1] <= usable

    return largest(has_room, job.model.max_seq_len)


def _fits_in_turn(job: InferenceJob, cluster: Cluster, count: int) -> bool:
    """Whether so many sequences fit if each is read by itself and all are written together.

    While one is read the caches of the others are there; a token of each is written at once.
    """
    device = cluster.device
    one = msgspec.structs.replace(job, num_sequences=1)
    last = max(1, job.seq_len - 1)
    each = msgspec.structs.replace(job, num_sequences=count, prompt_len=last)
    held = held_bytes(job.model, job.weights_format, job.compute).total
    kernels = workspace_bytes(job.model, job.weights_format, device)
    read = prefill_transient(job.model, sizes_of(one, device)).num_bytes
    written = decode_transient(job.model, sizes_of(each, device)).num_bytes if last > 1 else 0
    cache = count * max(cache_bytes(one))
    return held + kernels + cache + max(read, written) <= tensor_limit_bytes(cluster)


def _prompt(job: InferenceJob, length: int) -> int:
    """Return the prompt of a job of another length: all of it, where all of it was."""
    return length if job.prompt_len == job.seq_len else job.prompt_len


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to ``most`` for which a falling predicate holds; 0 for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
