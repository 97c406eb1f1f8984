"""What of a command line of Megatron-LM would fit where it does not: by formula, fastest first.

Fewest changes first: each thing that can be changed is changed alone, and where none of these fits,
two things together, and so on. Steps are timed of all, and memory is looked at only of what is
fastest. The GPUs, the global batch and the model stay what they are.

Source: ``--recompute-*`` in ``megatron/training/arguments.py``; ``--checkpoint-activations`` and
``--zero-stage`` of Megatron-DeepSpeed.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from brimful.errors import InputError, UnsupportedError
from brimful.megatron.layout import Layout
from brimful.megatron.stage import least_bytes
from brimful.programs.formulas import Line, Machines, line_of, read_line
from brimful.programs.megatron_deepspeed import SWITCH

MOST_TOLD = 3
_MOST_CHANGES = 3
"""At once: of more nobody says that it is the same run."""
_FACTORS = (2, 4, 8)
"""By which a degree may grow."""
_GRANULARITY, _MODULES, _BATCH = (
    "--recompute-granularity", "--recompute-modules", "--global-batch-size",
)  # fmt: skip
_RECOMPUTE = (
    _GRANULARITY, _MODULES, "--recompute-method", "--recompute-num-layers",
    "--recompute-activations",
)  # fmt: skip
"""What says what is recomputed."""
_ALL = (_GRANULARITY, "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
_WITH_TENSORS = "--sequence-parallel"
_DEGREES = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
}
_OF_DEEPSPEED = frozenset({"recompute", "micro-batch", "tp", "pp"})
"""What Megatron-DeepSpeed has too."""
_CHECKPOINTED = ("--checkpoint-activations",)
_PLAIN = frozenset({"unfused", "local"})


class WayOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command line that fits.

    Attributes:
        flags: What is given in place of what it said of the same, or beside it.
        predicted_peak_reserved_bytes: Of the fullest process, what its allocator holds at most.
        predicted_step_s: Of a step; None: unknown.
        predicted_tokens_per_s: Of all GPUs; None: unknown.
    """

    flags: tuple[str, ...]
    predicted_peak_reserved_bytes: int
    predicted_step_s: float | None
    predicted_tokens_per_s: float | None


class _Change(NamedTuple):
    """One thing that is changed.

    Attributes:
        what: Which; of each one change is made at once.
        flags: What is given.
        replaced: Flags that it stands for.
    """

    what: str
    flags: tuple[str, ...]
    replaced: tuple[str, ...]


class _Changed(NamedTuple):
    """A command line with changes.

    Attributes:
        what: Is changed.
        flags: What is given.
        line: As it is read then.
        step_s: Of a step; infinite: unknown.
    """

    what: frozenset[str]
    flags: tuple[str, ...]
    line: Line
    step_s: float


def ways_out(text: str, world_size: int | None, machines: Machines) -> tuple[WayOut, ...]:
    """Return what would fit of a command line that does not, the fastest first.

    ``world_size``: processes, where that is asked for; None: as the command line says. Raises
    InputError: it cannot be read, or does not fit the world. Raises UnsupportedError: there is no
    formula for it.
    """
    asked = read_line(text, world_size, machines)
    if asked.stages[0].decoder is not None:
        return ()
    changes = list(_changes(asked))
    for num in range(1, _MOST_CHANGES + 1):
        together = [
            each
            for each in itertools.combinations(changes, num)
            if len({change.what for change in each}) == num
        ]
        if found := tuple(itertools.islice(_fitting(asked, together, machines), MOST_TOLD)):
            return found
    return ()


def _fitting(
    asked: Line, together: Iterable[Sequence[_Change]], machines: Machines
) -> Iterator[WayOut]:
    """Yield what fits, the fastest first: of one kind of changes the fastest alone."""
    told = set[frozenset[str]]()
    read = (_changed(asked, each, machines) for each in together)
    for one in sorted(filter(None, read), key=lambda each: each.step_s):
        room = one.line.room
        if one.what in told or max(map(least_bytes, one.line.stages)) > room.firm_bytes:
            continue
        of, most = one.line.peak_of(machines), 0
        for at in one.line.stages:
            most = max(most, of(at).predicted_peak_reserved_bytes)
            if most > room.firm_bytes:
                break
        else:
            told.add(one.what)
            is_timed = math.isfinite(one.step_s)
            yield WayOut(
                flags=asked.command.as_assigned(one.flags),
                predicted_peak_reserved_bytes=most,
                predicted_step_s=one.step_s if is_timed else None,
                predicted_tokens_per_s=one.line.num_tokens / one.step_s if is_timed else None,
            )


def _changed(asked: Line, changes: Sequence[_Change], machines: Machines) -> _Changed | None:
    """Read a command line with changes; None: Megatron refuses it so, or it has no formula."""
    replaced = {flag for change in changes for flag in change.replaced}
    flags = tuple(word for change in changes for word in change.flags)
    if not asked.told.flags.has(_BATCH):  # which was that of the micro-batches
        rows = asked.num_tokens // asked.stages[0].seq_len
        flags = (*flags, _BATCH, str(rows))
    words = (*_without(asked.command.arguments, replaced), *flags)
    try:
        line = line_of(asked.command._replace(arguments=words), asked.told.world_size, machines)
    except (InputError, UnsupportedError):
        return None
    step_s = line.step_s
    return _Changed(
        what=frozenset(change.what for change in changes),
        flags=flags,
        line=line,
        step_s=math.inf if step_s is None else step_s,
    )


def _without(words: Sequence[str], flags: set[str]) -> Iterator[str]:
    """Yield a command line's words without some flags and what they are given."""
    is_left_out = False
    for word in words:
        if word.startswith("--"):
            is_left_out = word.partition("=")[0] in flags
        if not is_left_out:
            yield word


def _changes(asked: Line) -> Iterator[_Change]:
    """Yield every change that a command line leaves open."""
    at, is_deepspeed = asked.stages[0], SWITCH in asked.command.arguments
    sharded = _Change("states", ("--use-distributed-optimizer",), ())
    may_shard = not at.distributed_optimizer and at.dp * at.cp > 1
    of_file = asked.command.keys
    for change in (
        *_recomputed(at, is_deepspeed=is_deepspeed),
        *_smaller(at),
        *_shared(asked),
        *((sharded,) if may_shard else ()),
    ):
        is_foreign = of_file and any(
            word.startswith("--") and word not in of_file for word in change.flags
        )
        if not is_foreign and (change.what in _OF_DEEPSPEED or not is_deepspeed):
            yield change


def _recomputed(at: Layout, *, is_deepspeed: bool) -> Iterator[_Change]:
    """Yield what recomputes more than a command line does."""
    if at.recompute == "full" and at.recompute_method == "uniform":
        return
    if is_deepspeed:
        yield _Change("recompute", _CHECKPOINTED, _RECOMPUTE)
        return
    if at.recompute != "full":
        of_mixtures = ["moe_act"] if at.experts.num and at.experts.is_grouped else []
        for modules in (["core_attn"], ["layernorm", *of_mixtures]):
            if not all(map(at.recomputes, modules)):
                said = () if modules == ["core_attn"] else (_MODULES, *modules)
                yield _Change("recompute", (_GRANULARITY, "selective", *said), _RECOMPUTE)
    yield _Change("recompute", _ALL, _RECOMPUTE)


def _smaller(at: Layout) -> Iterator[_Change]:
    """Yield micro-batches of fewer rows."""
    flag = "--micro-batch-size"
    for rows in range(at.micro_batch - 1, 0, -1):
        if at.micro_batch % rows == 0:
            yield _Change("micro-batch", (flag, str(rows)), (flag,))


def _shared(asked: Line) -> Iterator[_Change]:
    """Yield larger degrees: tensors are shared within a node."""
    at = asked.stages[0]
    now = {"tp": at.tp, "pp": at.pp, "cp": at.cp, "ep": at.experts.ep}
    for (name, flag), factor in itertools.product(_DEGREES.items(), _FACTORS):
        degree = now[name] * factor
        is_beyond = name == "tp" and degree > asked.cluster.devices_per_node
        is_plain = name == "cp" and at.attention in _PLAIN
        if is_beyond or is_plain or (name == "ep" and not at.experts.num):
            continue
        more = (_WITH_TENSORS,) if name == "tp" and not at.sequence_parallel else ()
        yield _Change(name, (flag, str(degree), *more), (flag, *more))
