"""Which program a job runs: one that shipped profiles foresaw, or one of its own model.

A program of one's own is traced when it is first asked for (``simulate.own_profile``), at the
model's own widths: its formulas are products of sequences, tokens and chunks alone. So its key
hashes whatever else decides an operation or a size.
"""

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from brimful.cost.family import chunk_of, family_of
from brimful.cost.profiles import (
    NUM_CHUNKS,
    OWN,
    TWO_CHUNKS,
    Body,
    has_profile,
    is_own,
    is_shipped,
    load_profile,
    variant_key,
)
from brimful.cost.programs import (
    HALF,
    TRACED_AS,
    TRACED_ATTENTIONS,
    Adapted,
    Kernels,
    Program,
    adapted_of,
    attending,
    program_of,
    runs_packages,
    traced_precision,
    tuning_of,
    untraced_attention,
)
from brimful.cost.sending import (
    NONE_SENDS,
    Sending,
    Shown,
    kinds_sending,
    sending_of,
    shown_sending,
)
from brimful.cost.sequences import Blocks
from brimful.cost.traced_fields import traced_fields
from brimful.files.remembered import once_for_each
from brimful.files.traced import REFUSED, digest, read_traced
from brimful.models.attention_source import asked_packages
from brimful.models.sequence import numbered
from brimful.models.traced import BuiltModel, as_run, find_built, num_windows_within
from brimful.techniques.dropout import drops
from brimful.values.job import FP8, Job, Packing, Task
from brimful.values.strategy import Attention, Recompute, Strategy

SHIPPED_TASKS: frozenset[Task] = frozenset({"causal-lm", "chat", "dpo"})
"""Of which shipped profiles are: all run the blocks and the logits of the first."""
SHIPPED_PACKINGS: frozenset[Packing] = frozenset({"wrapped", "none"})
"""Packed documents take another attention kernel, and a map of documents beside the tokens."""
SHIPPED_AGAIN: tuple[Recompute, ...] = ("full", "selective")
"""How blocks are recomputed in shipped profiles, and in searches where nobody says: ``alternate``
is another program's way."""
OWN_SCHEMA = "brimful.own-profile/3"
ANY = "any"
"""In the place of a number, where one profile tells every such number."""
ROUNDED_TOKENS = 256
"""To the next multiple of which kernels and scans in chunks round tokens, at most."""


class Need(NamedTuple):
    """A variant of a program of a job's own.

    Attributes:
        gathers: Whether parameters are gathered before they compute.
        recompute: What checkpointed blocks compute again.
        body: Which blocks are checkpointed.
        num_chunks: Chunks of the loss, of more than two as many as are traced.
        sending: Which blocks send what they keep; those are programs of their own.
        ep: Devices that part experts; with each number a device has other stacks of them.
    """

    gathers: bool
    recompute: Recompute
    body: Body
    num_chunks: int
    sending: Sending = NONE_SENDS
    ep: int = 1


def needs_of(job: Job, strategy: Strategy) -> list[Need]:
    """List what one strategy needs; FLOPs are told from those that are computed again."""
    family = family_of(job, strategy)
    tokens = strategy.micro_batch * job.rows_per_sample * job.seq_len
    chunk = chunk_of(job, tokens, loss_chunks=strategy.loss_chunks, fused=strategy.fused_kernels)
    num_chunks = traced_chunks(-(-tokens // chunk))
    sending = sending_of(job, family)
    own = Need(family.gathers, family.recompute, family.body, num_chunks, sending, family.ep)
    return sorted({own, own._replace(recompute="full", body="plain", sending=NONE_SENDS)})


def traced_chunks(num_chunks: int) -> int:
    """Return in how many chunks a loss is traced that runs in so many."""
    return num_chunks if num_chunks <= TWO_CHUNKS else NUM_CHUNKS


def chosen_program(  # noqa: PLR0913 - what makes operations differ
    job: Job,
    attention: Attention,
    kernels: Kernels,
    recompute: Recompute,
    *,
    gathers: bool = False,
    tp: int = 1,
    ep: int = 1,
    is_one: bool = False,
    sending: Sending = NONE_SENDS,
    is_exact: bool = False,
) -> Program:
    """Name the program by which a job is predicted; see ``programs.program_of``.

    With ``is_exact`` none that tells others of its kind too (``any_profile``).
    """
    is_sent = sending != NONE_SENDS
    if tp > 1 or (not is_sent and is_foreseen(job, attention, kernels, recompute, ep=ep)):
        return program_of(
            job, attention, kernels, recompute, gathers=gathers, tp=tp, ep=ep, is_one=is_one
        )
    own = partial(_own, job, attention, kernels, recompute, gathers=gathers, sending=sending)
    program, more = own(ep=ep), own(ep=ep, is_any=True)
    if not is_exact and more.key != program.key and not has_profile(program.key):
        program = more if has_profile(more.key) else program
    return program._replace(is_one=is_one)


def shared_program(  # noqa: PLR0913 - what makes operations differ
    job: Job,
    attention: Attention,
    kernels: Kernels,
    recompute: Recompute,
    *,
    gathers: bool,
    ep: int,
    sending: Sending,
) -> Program:
    """Name the program that stands for all of a job's that differ in one number (``ANY``)."""
    return _own(
        job, attention, kernels, recompute, gathers=gathers, sending=sending, ep=ep, is_any=True
    )


def traced_program(  # noqa: PLR0913 - what makes operations differ
    job: Job,
    attention: Attention,
    kernels: Kernels,
    recompute: Recompute,
    *,
    gathers: bool,
    tp: int = 1,
    ep: int = 1,
) -> Program | None:
    """Return the same where there is a profile of it; else None."""
    program = chosen_program(job, attention, kernels, recompute, gathers=gathers, tp=tp, ep=ep)
    is_told = is_own(program.key) or not untraced_attention(
        job.model, job.precision, attention, kernels, tp=tp
    )
    return program if is_told and has_profile(program.key) else None


def missing_needs(
    job: Job, attention: Attention, kernels: Kernels, needs: Iterable[Need]
) -> list[Need]:
    """List what of some needs was not traced on this machine, and may be.

    At one length of sequences alone, as where a program differs with each and no loop over tokens
    says how, chunks of the loss may not be told. What parts experts is left out where that was
    refused before, and need not be.
    """
    found, built, needs = set(), find_built(job.model), list(needs)
    may_part = not any(need.ep == 1 for need in needs)
    if built is not None:
        built = as_run(built, packaged=runs_packages(job.model, kernels))
    is_of_one_length = built is not None and built.loops and not built.by_token
    for need in needs:
        if is_of_one_length and not tells_chunks(need.num_chunks, job.seq_len):
            continue
        program = chosen_program(
            job, attention, kernels, need.recompute,
            gathers=need.gathers, ep=need.ep, sending=need.sending,
        )  # fmt: skip
        if need.ep > 1 and not may_part and read_traced(refusal_of(program.key), str) is not None:
            continue
        key = variant_key(need.body, num_chunks=need.num_chunks)
        if not has_profile(program.key) or key not in load_profile(program.key).variants:
            found.add(need)
    return sorted(found)


def tells_chunks(num_chunks: int, seq_len: int) -> bool:
    """Whether sequences of one length tell a chunk of the loss from a fifth of it all."""
    return num_chunks <= TWO_CHUNKS or seq_len % NUM_CHUNKS > 0


def refusal_of(key: str, seq_len: int | None = None) -> str:
    """Return under which name it is kept why a program could not be traced, at one length alone."""
    return f"{key}{'' if seq_len is None else f'.{seq_len}'}{REFUSED}"


def is_foreseen(
    job: Job, attention: Attention, kernels: Kernels, recompute: Recompute = "full", *, ep: int = 1
) -> bool:
    """Whether shipped profiles are what a job is predicted by, checkpointed in one way.

    Where devices part experts parameters are gathered (``parallel.experts``).
    """
    if not all(shipped_settings(job, attention).values()):
        return False
    if untraced_attention(job.model, job.precision, attention, kernels):
        return False
    program = program_of(job, attention, kernels, recompute, gathers=ep > 1, ep=ep)
    return is_shipped(program.key)


def shipped_settings(job: Job, attention: Attention) -> dict[str, bool]:
    """Say of every setting that a trace is made with whether shipped profiles were.

    Returns by settings, as a person writes them.
    """
    return {
        f"task={job.task}": job.task in SHIPPED_TASKS,
        f"method={job.method} with these adapters": tuning_of(job) is not None,
        f"packing={job.packing}": job.packing in SHIPPED_PACKINGS,
        f"attention={attention}": attention in TRACED_ATTENTIONS,
        f"precision={job.precision}": job.precision in TRACED_AS,
        f"dropout={job.dropout}": not drops(job),
        **traced_fields(job),
    }


def blocks_of(job: Job, sending: Sending = NONE_SENDS) -> Blocks:
    """Return what a model's blocks are, of which a profile of its own was traced."""
    built = find_built(job.model)
    assert built is not None
    blocks = _blocks_of(built)
    return blocks._replace(kinds=kinds_sending(built, sending))


@once_for_each
def _blocks_of(built: BuiltModel) -> Blocks:
    parts = [run.parameters for run in built.layout.blocks for _ in range(run.num_blocks)]
    return Blocks(built.kinds, numbered(map(repr, parts)))


def has_several_kinds(job: Job, attention: Attention, kernels: Kernels) -> bool:
    """Whether a job is predicted by a profile of its own whose blocks are of several kinds."""
    if is_foreseen(job, attention, kernels):
        return False
    built = find_built(job.model)
    return built is not None and len(set(built.kinds)) > 1


def traced_task(task: Task) -> Task:
    """Return the task that is traced for one: where only the loss differs, of a few numbers."""
    return "causal-lm" if task in SHIPPED_TASKS else task


def traced_adapters(job: Job, *, gathers: bool) -> Adapted | None:
    """Return the adapters of that trace: a base in 16 bits is the recipe's own type there.

    What is held in fp32 is gathered in 16 bits as all else, so that it computes as if it were not.
    """
    adapted = adapted_of(job)
    if adapted is None or not gathers:
        return adapted
    if job.precision in HALF:
        adapted = adapted._replace(upcast="none")
    return adapted._replace(base="same") if adapted.base == "half" else adapted


def _own(  # noqa: PLR0913 - what makes operations differ
    job: Job,
    attention: Attention,
    kernels: Kernels,
    recompute: Recompute,
    *,
    gathers: bool,
    sending: Sending,
    ep: int,
    is_any: bool = False,
) -> Program:
    """Name the program of one model; with ``is_any`` of every rank, or number that part experts."""
    built, model = find_built(job.model), job.model
    precision = traced_precision(job, gathers=gathers)
    kernels = attending(model, precision, attention, kernels)
    packaged = runs_packages(model, kernels)
    if built is not None:
        built = as_run(built, packaged=packaged)
    windows = None if built is None else num_windows_within(built, job.seq_len)
    length = job.seq_len if built is not None and built.loops else job.seq_len % ROUNDED_TOKENS
    shown = () if built is None else shown_sending(built, sending)
    parted = ANY if is_any and ep > 1 else ep
    hashed = _hashed(job, windows, length, shown, gathers, parted, is_any, packaged)
    return Program(
        architecture=f"{model.model_type}{OWN}{hashed}",
        tuning="",
        precision=precision,
        attention=attention,
        kernels=kernels,
        recompute=recompute,
    )


@once_for_each
def _hashed(  # noqa: PLR0913, PLR0917 - what decides operations
    job: Job,
    windows: int | None,
    length: int,
    shown: tuple[Shown, ...],
    gathers: bool,  # noqa: FBT001
    ep: int | str,
    is_any: bool,  # noqa: FBT001
    packaged: bool,  # noqa: FBT001
) -> str:
    """Hash what of a job decides an operation or a size, beside what a program names."""
    rank = job.adapter and (ANY if is_any else job.adapter.rank)
    return digest(
        OWN_SCHEMA,
        job.model.model_type,
        job.model.hf_config,
        windows,
        length,
        traced_task(job.task),
        job.method,
        job.packing,
        traced_adapters(job, gathers=gathers),
        rank,
        gathers and job.precision in HALF,
        job.precision == FP8,
        *([[each[1:4] for each in shown]] if shown else []),
        *([{"ep": ep}] if ep != 1 else []),
        *([{"layers": asked_packages(job.model.model_type)}] if packaged else []),
        *([{"dropout": job.dropout}] if drops(job) else []),
    )
