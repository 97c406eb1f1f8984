"""Block profiles: what a block allocates, frees and computes, as formulas in the dimensions.

A profile is *traced*, not written by hand: ``brimful profile`` runs a small model on the pretend
GPU at several shapes and finds, for every allocation, the product of dimensions that its size is.
Here are the value, the dimensions it speaks of, and the loader.
"""

from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

import msgspec

from brimful.errors import UnsupportedError
from brimful.job import Precision
from brimful.models.spec import ModelSpec
from brimful.strategy import Attention

PROFILE_SCHEMA = "brimful.profile/1"
IMPLEMENTATION = "hf"
"""Whose code was traced: ``transformers`` modules under ``build/``."""

FLASH_MAX_HEAD_DIM = 256
FLASH_HEAD_DIM_MULTIPLE = 8
"""Limits of CUDA flash attention without padding; tested equal to ``pretend.attention``."""

TRACED_AS: dict[Precision, Precision] = {
    "fp32": "fp32",
    "tf32": "fp32",
    "bf16": "bf16",
    "fp16": "bf16",
    "bf16-master": "bf16",
    "fp16-master": "bf16",
    "bf16-mixed": "bf16-mixed",
    "fp16-mixed": "bf16-mixed",
}
"""By whose profile a recipe is predicted: the same allocations but for the name of a type."""
TRACED_PRECISIONS: tuple[Precision, ...] = tuple(dict.fromkeys(TRACED_AS.values()))
TRACED_ATTENTIONS: tuple[Attention, ...] = ("eager", "sdpa")

TWO_CHUNKS = 2
NUM_CHUNKS = 5
"""Chunks of a traced loss: the second makes the sum of gradients that the others add into."""

Role = Literal["other", "first", "second", "middle", "later", "last"]
Group = Literal["", "checkpointed", "plain", "chunk"]
Body = Literal["plain", "checkpointed", "mixed"]


class Dimensions(NamedTuple):
    """The sizes that a profile's formulas are products of.

    Attributes:
        B: Sequences per micro-batch.
        S: Tokens per sequence.
        H: Width of the residual stream.
        F: Width of the MLP.
        A: Query heads.
        K: Key and value heads.
        D: Width of a head.
        V: Vocabulary.
        P: Learned positions.
        C: Tokens in one chunk of the loss.
    """

    B: int
    S: int
    H: int
    F: int
    A: int
    K: int
    D: int
    V: int
    P: int
    C: int


class Term(msgspec.Struct, frozen=True, array_like=True):
    """``coefficient`` times the product of the dimensions named in ``factors``, e.g. ``BSH``."""

    factors: str
    coefficient: float


class EventKind(msgspec.Struct, frozen=True, array_like=True):
    """A change of live bytes that events share.

    Attributes:
        terms: Its size; negative coefficients free.
        item: Index of its class in ``rungs.ITEM_NAMES``.
        origin: The group of blocks or chunks whose middle members each cause one such event
            though the event itself lies elsewhere; empty where it happens once.
    """

    terms: tuple[Term, ...]
    item: int
    origin: Group


class Work(msgspec.Struct, frozen=True, array_like=True):
    """What a run allocates, frees and computes.

    Attributes:
        events: Indices into the profile's kinds, in order.
        matrix_flops: Of matrix products.
        attention_flops: Of fused attention, counted as if nothing were masked.
        moved_bytes: Read and written by all other operations.
        num_ops: Operations launched.
    """

    events: tuple[int, ...]
    matrix_flops: tuple[Term, ...]
    attention_flops: tuple[Term, ...]
    moved_bytes: tuple[Term, ...]
    num_ops: int


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive events that belong to one block, one chunk of the loss, or to neither.

    Attributes:
        phase: ``forward`` or ``backward``.
        group: What kind of part it belongs to; empty for neither.
        role: Which of its kind: ``middle`` stands for all that are alike, the others for one each.
        work: Index into the profile's works.
    """

    phase: str
    group: Group
    role: Role
    work: int


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one micro-batch's forward and backward.

    Attributes:
        first: Of the first micro-batch, which makes the gradients.
        later: Of every other, which adds to them.
    """

    first: tuple[Run, ...]
    later: tuple[Run, ...]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Everything traced for one key.

    Attributes:
        schema: ``PROFILE_SCHEMA``.
        key: See ``profile_key``.
        versions: Of what was traced.
        source_hash: Of the sources that decide what a trace looks like.
        kinds: The distinct changes of live bytes.
        works: The distinct works.
        variants: By body and how the loss is chunked: ``plain``, ``plain+2chunks``, ...
    """

    schema: str
    key: str
    versions: tuple[str, ...]
    source_hash: str
    kinds: tuple[EventKind, ...]
    works: tuple[Work, ...]
    variants: dict[str, Variant]


def architecture_key(
    spec: ModelSpec, precision: Precision, attention: Attention, kernels: str
) -> str:
    """Name the code path that a model takes: tied heads and ungrouped attention differ.

    Grouped heads matter where attention is written out: asked for, or in fp32 on CUDA, whose fused
    kernels take grouped heads in half precision only.
    """
    tied = "-tied" if spec.tied_embeddings else ""
    grouped = spec.num_kv_heads < spec.num_heads
    written_out = is_written_out(precision, attention, kernels)
    ungrouped = "-mha" if written_out and spec.model_type == "llama" and not grouped else ""
    return f"{spec.model_type}{tied}{ungrouped}"


def is_written_out(precision: Precision, attention: Attention, kernels: str) -> bool:
    """Whether grouped heads are attended to by the written-out formula."""
    return attention == "eager" or (TRACED_AS[precision] == "fp32" and kernels == "cuda")


def profile_key(spec: ModelSpec, precision: Precision, attention: Attention, kernels: str) -> str:
    """Return the name of the profile that holds for this model and these settings."""
    architecture = architecture_key(spec, precision, attention, kernels)
    return f"{architecture}.{IMPLEMENTATION}.{TRACED_AS[precision]}.{attention}.{kernels}"


def untraced_attention(
    spec: ModelSpec, precision: Precision, attention: Attention, kernels: str
) -> str:
    """Say in one sentence why no trace attends as this model does; empty where one does.

    With one key and value head and one sequence, eager attention repeats the head without a copy.
    Flash attention pads heads to a multiple of 8 and does not exist beyond ``FLASH_MAX_HEAD_DIM``.
    """
    if attention == "eager" and spec.num_kv_heads == 1 < spec.num_heads:
        return (
            f"{spec.name} has num_kv_heads=1 and num_heads={spec.num_heads}, and no profile "
            f"covers that with eager attention; use --attention sdpa, or brimful plan, which "
            f"traces it"
        )
    flash = attention == "sdpa" and kernels == "cuda" and TRACED_AS[precision] != "fp32"
    multiple = spec.head_dim % FLASH_HEAD_DIM_MULTIPLE == 0
    if flash and not (multiple and spec.head_dim <= FLASH_MAX_HEAD_DIM):
        return (
            f"{spec.name} has head_dim={spec.head_dim}, and profiles of flash attention cover "
            f"multiples of {FLASH_HEAD_DIM_MULTIPLE} up to {FLASH_MAX_HEAD_DIM}; "
            f"use --attention eager, or brimful plan, which traces it"
        )
    return ""


def variant_key(body: Body, *, num_chunks: int) -> str:
    """Return the name of a variant inside a profile.

    Of two chunks the second ends what it begins: it makes the sum of gradients into which later
    ones add, and is the last. From three on each chunk's part is seen among five.
    """
    if num_chunks == 1:
        return body
    return f"{body}+2chunks" if num_chunks == TWO_CHUNKS else f"{body}+chunks"


def with_chunks(runs: tuple[Run, ...], *, num_chunks: int) -> tuple[Run, ...]:
    """Leave out the chunks of a traced loss that a loss in fewer chunks does not have."""
    if num_chunks <= TWO_CHUNKS:
        return runs
    foregone: tuple[Role, Role] = ("middle", "later")
    absent = foregone[: max(0, NUM_CHUNKS - num_chunks)]
    return tuple(run for run in runs if run.group != "chunk" or run.role not in absent)


def dimensions(spec: ModelSpec, *, micro_batch: int, seq_len: int, chunk_tokens: int) -> Dimensions:
    """Collect the sizes that a profile's formulas need."""
    return Dimensions(
        B=micro_batch,
        S=seq_len,
        H=spec.hidden_size,
        F=spec.intermediate_size,
        A=spec.num_heads,
        K=spec.num_kv_heads,
        D=spec.head_dim,
        V=spec.vocab_size,
        P=spec.max_seq_len,
        C=chunk_tokens,
    )


@cache
def load_profile(key: str) -> Profile:
    """Load a shipped profile.

    Raises:
        UnsupportedError: None was shipped for this key.
    """
    file = resources.files("brimful").joinpath(f"data/profiles/{key}.json")
    if not file.is_file():
        raise UnsupportedError(f"no profile for {key}; make one with: brimful profile {key}")
    return msgspec.json.decode(file.read_bytes(), type=Profile)
