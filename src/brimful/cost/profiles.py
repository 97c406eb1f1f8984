"""Block profiles: what a block allocates, frees and computes, as formulas in the dimensions.

A profile is *traced*, not written by hand: ``brimful profile`` runs a small model on the pretend
GPU at several shapes and finds, for every allocation, the product of dimensions that its size is.
Here are the value, the dimensions it speaks of, and the loader.
"""

from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Literal, NamedTuple

import msgspec

from brimful.cost.programs import ONE_SEQUENCE
from brimful.errors import UnsupportedError
from brimful.files.remembered import once_for_each
from brimful.files.traced import keep_traced, read_traced
from brimful.models.config import experts_of
from brimful.values.job import Job

PROFILE_SCHEMA = "brimful.profile/1"
TWO_CHUNKS = 2
NUM_CHUNKS = 5
"""Chunks of a traced loss: the second makes the sum of gradients that the others add into."""

OWN = "@"
"""In the key of the program of one model, at its own widths: before what its key is a hash of."""
OF_ONE = "one:"
"""In the names of variants of a profile that was traced here: of one sequence at a time."""
EVALUATED = ".eval"
"""What the key of a profile ends in whose program runs forward only, without gradients."""

Role = Literal["other", "first", "second", "middle", "later", "last"]
Group = str
"""``checkpointed``, ``plain`` or ``chunk``; empty for what is in none. In a profile of blocks of
several kinds each traced block is a group of its own, ``plain:3`` the fourth of them
(``sequences.py``)."""
Body = str
"""Which blocks are checkpointed: none (``plain``), all, or some, from the first on (``mixed``).

Where they stand in two lists, and all of the first and some of the second are: ``later-mixed``. A
number near either end of a list is a body of its own there, such as ``1 checkpointed``."""
Mark = Literal["", "cuBLAS", "cuBLASLt", "embedding", "convolution", "norm"]
"""What is asked for at an instant, whose size is no product of dimensions: the workspace that the
first product of a thread makes, and the sums of the embedding's rows. A convolution's bias and the
one vector of a fused norm are marked as what asks for nothing: no rows are added up for them."""


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
        R: Width of the adapters; 0 where there are none.
        E: Experts of a block; 0 in a dense model, as are the next two.
        T: Experts that one token is sent to.
        M: Inner width of one expert.
        n: Tokens of the residual stream on one of several devices that share every matrix, B x S
            among all of them; 0 where there is one. There F, A, K and V are of one device too.
        e: Experts that one of several devices has which part them; 0 where there is one.
        r: Rows that come to those experts, from all devices that part them.
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
    R: int
    E: int = 0
    T: int = 0
    M: int = 0
    n: int = 0
    e: int = 0
    r: int = 0


class Term(msgspec.Struct, frozen=True, array_like=True):
    """``coefficient`` times the product of the dimensions named in ``factors``, e.g. ``BSH``."""

    factors: str
    coefficient: float


class EventKind(msgspec.Struct, frozen=True, array_like=True):
    """A change of live bytes that events share.

    Attributes:
        terms: Its size; negative coefficients free.
        item: Index of its class in ``values.results.ITEM_NAMES``.
        origin: The group of blocks or chunks whose middle members each cause one such event
            though the event itself lies elsewhere; empty where it happens once.
        newer: Which tensor goes of those that are equal in size and class: how many of them came
            after it and are still there.
        mark: What is asked for here beside it, if anything; such an event changes nothing itself.
    """

    terms: tuple[Term, ...]
    item: int
    origin: Group
    newer: int = 0
    mark: Mark = ""


class Work(msgspec.Struct, frozen=True, array_like=True):
    """What a run allocates, frees and computes.

    Attributes:
        events: Indices into the profile's kinds, in order.
        matrix_flops: Of matrix products.
        attention_flops: Of fused attention, counted as if nothing were masked.
        moved_bytes: Read and written by all other operations.
        num_ops: Operations launched.
        to_host: Of each copy to the host, its bytes; such copies are no operation.
        to_device: Bytes of all copies back.
    """

    events: tuple[int, ...]
    matrix_flops: tuple[Term, ...]
    attention_flops: tuple[Term, ...]
    moved_bytes: tuple[Term, ...]
    num_ops: int
    to_host: tuple[tuple[Term, ...], ...] = ()
    to_device: tuple[Term, ...] = ()


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive events that belong to one block, one chunk of the loss, or to neither.

    Attributes:
        phase: ``forward`` or ``backward``.
        group: What kind of part it belongs to; empty for neither.
        role: Which of its kind: ``middle`` stands for all that are alike, the others for one each.
        work: Index into the profile's works.
        part: Which block of those that hold other parameters it is, by the model's layout.
    """

    phase: str
    group: Group
    role: Role
    work: int
    part: int = 0


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
        key: See ``Program.key``.
        versions: Of what was traced.
        source_hash: Of the sources that decide what a trace looks like.
        kinds: The distinct changes of live bytes.
        works: The distinct works.
        variants: By body and how the loss is chunked: ``plain``, ``plain+2chunks``, ...
        of_one: Works that are others where there is one sequence, and which those are.
        sequence: The kinds of the blocks that were traced, in order, where there are several; the
            numbers of plain blocks go on behind those of the checkpointed ones of a mixed body.
        num_parts: Of a profile with pieces (``spread.py``): kinds of blocks that hold other
            parameters, each of which has its own.
    """

    schema: str
    key: str
    versions: tuple[str, ...]
    source_hash: str
    kinds: tuple[EventKind, ...]
    works: tuple[Work, ...]
    variants: dict[str, Variant]
    of_one: dict[int, int] = {}
    sequence: tuple[int, ...] = ()
    num_parts: int = 0


PLACE = ":"
"""In the name of a group: before the number of the one traced block that is in it."""


def is_place(group: Group) -> bool:
    """Whether a group is one traced block of a sequence of kinds."""
    return PLACE in group


Alike = tuple[tuple[tuple[str, float], ...], int]


def alike(kind: EventKind) -> Alike:
    """Return what tensors share of which an event may let go: size and class."""
    return tuple((term.factors, abs(term.coefficient)) for term in kind.terms), kind.item


def variant_key(body: Body, *, num_chunks: int) -> str:
    """Return the name of a variant inside a profile.

    Of two chunks the second ends what it begins: it makes the sum of gradients into which later
    ones add, and is the last. From three on each chunk's part is seen among five.
    """
    if num_chunks == 1:
        return body
    return f"{body}+2chunks" if num_chunks == TWO_CHUNKS else f"{body}+chunks"


@once_for_each
def with_chunks(runs: tuple[Run, ...], num_chunks: int) -> tuple[Run, ...]:
    """Leave out the chunks of a traced loss that a loss in fewer chunks does not have."""
    if num_chunks <= TWO_CHUNKS:
        return runs
    foregone: tuple[Role, Role] = ("middle", "later")
    absent = foregone[: max(0, NUM_CHUNKS - num_chunks)]
    return tuple(run for run in runs if run.group != "chunk" or run.role not in absent)


_experts_of = once_for_each(experts_of)
"""Asked of a model with every formula; some read its whole layout for it."""


def dimensions(
    job: Job, *, micro_batch: int, chunk_tokens: int, tp: int = 1, ep: int = 1
) -> Dimensions:
    """Collect the sizes that a profile's formulas need, of the first of ``tp`` or ``ep`` devices.

    Tokens are routed evenly: as many rows come to a device's experts as it sends.
    """
    spec, experts = job.model, _experts_of(job.model)
    rows = micro_batch * job.seq_len * experts.num_experts_per_token
    return Dimensions(
        B=micro_batch,
        S=job.seq_len,
        H=spec.hidden_size,
        F=spec.intermediate_size // tp,
        A=spec.num_heads // tp,
        K=spec.num_kv_heads // tp,
        D=spec.head_dim,
        V=-(-spec.vocab_size // tp),
        P=spec.max_seq_len,
        C=chunk_tokens,
        R=job.adapter.rank if job.adapter else 0,
        E=experts.num_experts,
        T=experts.num_experts_per_token,
        M=experts.width,
        n=micro_batch * job.seq_len // tp if tp > 1 else 0,
        e=experts.num_experts // ep if ep > 1 else 0,
        r=rows if ep > 1 else 0,
    )


@cache
def is_shipped(key: str) -> bool:
    """Whether there is a shipped profile of this name."""
    return not is_own(key) and _file(key).is_file()


def has_profile(key: str) -> bool:
    """Whether there is a profile of this name, shipped or traced on this machine."""
    return _found(key) is not None if is_own(key) else is_shipped(key)


def is_own(key: str) -> bool:
    """Whether a key names the program of one model, traced when it is first asked for."""
    return OWN in key


def _file(key: str) -> Traversable:
    folder = "eval_profiles" if key.endswith(EVALUATED) else "profiles"
    name = key.replace(ONE_SEQUENCE, "")
    return resources.files("brimful").joinpath(f"data/{folder}/{name}.json")


def load_profile(key: str) -> Profile:
    """Load a profile."""
    profile = _found(key) if is_own(key) else _shipped(key)
    if profile is None:
        raise UnsupportedError(f"no profile for {key}; make one with: brimful profile {key}")
    return profile


@cache
def _shipped(key: str) -> Profile | None:
    if not is_shipped(key):
        return None
    profile = msgspec.json.decode(_file(key).read_bytes(), type=Profile)
    return _of_one(profile, key) if ONE_SEQUENCE in key else profile


_own: dict[str, Profile | None] = {}
"""Traced on this machine, by key; None: there is none, but the other of one sequence."""


def _found(key: str) -> Profile | None:
    if key not in _own:
        whole = key.replace(ONE_SEQUENCE, "")
        if whole == key:
            _own[key] = read_traced(key, Profile)
        else:
            profile = _found(whole)
            _own[key] = profile and _of_one(profile, key)
    return _own[key]


def keep_profile(profile: Profile) -> None:
    """Keep a profile that was traced here, for this process and for others."""
    keep_traced(profile.key, profile)
    _own[profile.key] = profile
    for key in [key for key in _own if ONE_SEQUENCE in key]:
        del _own[key]


def differs_for_one(profile: Profile) -> bool:
    """Whether one sequence at a time has events of its own."""
    return bool(profile.of_one) or any(name.startswith(OF_ONE) for name in profile.variants)


def _of_one(profile: Profile, key: str) -> Profile:
    """Return what one sequence runs: works in the place of those that more of them run.

    A profile that was traced here has variants of one sequence instead, where that is told.
    """
    works = [profile.works[profile.of_one.get(i, i)] for i in range(len(profile.works))]
    named = profile.variants.items()
    own = {name.removeprefix(OF_ONE): each for name, each in named if name.startswith(OF_ONE)}
    return msgspec.structs.replace(
        profile, key=key, works=tuple(works), variants=own or profile.variants, of_one={}
    )
