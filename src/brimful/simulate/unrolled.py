"""The whole depth from a few blocks: what is traced shallow, and unrolled.

A model of few blocks is traced twice and its tape unrolled (``pretend.unroll``): first the blocks
that are checkpointed, then those that are not (but what operations cost is not told of these apart
by two tapes). Where a tape does not repeat, where the architecture is none of those known here, in
a pipeline (whose micro-batches are unrolled instead: ``chosen.py``), where something is offloaded
(but a frozen base, whose blocks repeat where they are computed again), where anything is compiled
(their gradients come in another order, and they share one compilation), and where masters are
updated or gradients reduced (DDP, ZeRO-1) in buckets, which are cut by bytes and not by blocks, the
whole is traced; most of its blocks stand in then (``series.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from brimful.cost.kv_cache import windows
from brimful.cost.recipes import RECIPES
from brimful.models.architectures import ARCHITECTURES
from brimful.models.config import layout_of
from brimful.models.mixtures import known_experts
from brimful.models.module_paths import names_block
from brimful.models.spec import ModelSpec
from brimful.pretend.blocks import NotPeriodicError, Pattern
from brimful.pretend.recording import Recording
from brimful.pretend.unroll import MIN_UNITS, unroll_blocks
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.techniques.offload import PARAMETERS
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import Job
from brimful.values.strategy import (
    Strategy,
    compiles,
    data_parallel,
    gathers,
    num_checkpointed,
    recompute_of,
    spell_checkpointing,
    what_is_away,
)

NUM_DEEP, NUM_SHALLOW = MIN_UNITS, 1
"""Units of blocks in the two models that are traced: a block, or a round of kinds."""
NUM_DEEP_PREFIXED = NUM_DEEP_AWAY = NUM_DEEP + 2
"""Of four blocks behind dense ones no two are alike where FSDP2 shards a large mixture; nor of four
that are brought, of which the first is brought with the second."""

_TYPES = "layer_types"
"""What a configuration calls a list of its blocks' kinds."""

Trace = Callable[[Job, Strategy], Recording]


def record_whole(
    job: Job, strategy: Strategy, trace: Trace, *, counts_costs: bool = False
) -> Recording:
    """Return the tape of the whole model, unrolled where that is possible.

    ``trace``: runs a program on the pretend GPU and returns its tape. ``counts_costs``: whether the
    tape has what operations cost.
    """
    stack = stack_of(job)
    is_staged = strategy.pp > 1
    has_buckets = data_parallel(strategy) > 1 and not gathers(strategy)
    is_cut = bool(RECIPES[job.precision].master) or has_buckets
    is_brought = brings_base(job, strategy) and not counts_costs
    is_cut = is_cut or names_blocks(job) or not (is_brought or strategy.offload == NO_OFFLOAD)
    is_cut = is_cut or compiles(strategy)
    if is_staged or is_cut or not stack:
        return trace(job, strategy)
    num_first = num_prefix(job.model)
    period = period_of(job.model, num_first)
    groups = _groups(strategy, job.model.num_layers, num_first, period, is_brought=is_brought)
    deep, shallow = (_numbers(groups, name) for name in ("deep", "shallow"))
    is_less = sum(deep) + sum(shallow) < job.model.num_layers or not is_brought
    if deep == shallow or (counts_costs and all(deep)) or not is_less:
        return trace(job, strategy)
    tapes = [trace(*_cut(job, strategy, num_first, numbers)) for numbers in (deep, shallow)]
    try:
        return _unrolled(tapes, Pattern(stack=stack, num_prefix=num_first, period=period), groups)
    except NotPeriodicError:
        return trace(job, strategy)


def keeps_all_blocks(job: Job, strategy: Strategy) -> bool:
    """Whether the host has something of every block, of which few were traced."""
    return brings_base(job, strategy) or OPTIMIZERS[job.optimizer].pages


def brings_base(job: Job, strategy: Strategy) -> bool:
    """Whether what is on the host is a frozen base, of all blocks, and nothing else."""
    return what_is_away(job, strategy).frozen and strategy.offload == PARAMETERS


class _Group(NamedTuple):
    """Blocks that follow each other and are run alike.

    Attributes:
        whole: How many there are.
        deep: How many of them are traced.
        shallow: How many are traced the second time.
        rest: How many stand behind the last whole round of kinds.
    """

    whole: int
    deep: int
    shallow: int
    rest: int = 0


def _groups(
    strategy: Strategy, num_blocks: int, num_first: int, period: int, *, is_brought: bool
) -> tuple[_Group, _Group]:
    """Tell the blocks that are checkpointed from those that are not, dense first ones left out.

    Of two groups that are both cut one loses a block more: what is outside the blocks and grows
    with one of them by more than with the other shows then, as it does not grow evenly. Plain
    blocks that are brought are none that repeats: a backward lets go of what the last one brought.
    """
    num = num_checkpointed(strategy, num_layers=num_blocks)
    wholes = (max(0, num - num_first), num_blocks - max(num, num_first))
    if 0 < num <= num_first:  # where they end is told of the first ones
        return _Group(0, 0, 0), _Group(wholes[1], wholes[1], wholes[1])
    num_deep = NUM_DEEP_PREFIXED if num_first else NUM_DEEP_AWAY if is_brought else NUM_DEEP
    is_cut = [whole // period > num_deep + NUM_SHALLOW for whole in wholes]
    is_cut[1] = is_cut[1] and not is_brought
    few = (NUM_SHALLOW, NUM_SHALLOW + is_cut[0])
    first, second = (
        _cut_group(whole, period, num_deep, less) if cut else _Group(whole, whole, whole)
        for whole, cut, less in zip(wholes, is_cut, few, strict=True)
    )
    return first, second


def _cut_group(whole: int, period: int, num_deep: int, num_shallow: int) -> _Group:
    """Return a group of which so many rounds of kinds are traced, and what stands behind them."""
    rest = whole % period
    return _Group(whole, num_deep * period + rest, num_shallow * period + rest, rest)


def _numbers(groups: tuple[_Group, _Group], name: str) -> tuple[int, int]:
    return getattr(groups[0], name), getattr(groups[1], name)


def _cut(
    job: Job, strategy: Strategy, num_first: int, numbers: tuple[int, int]
) -> tuple[Job, Strategy]:
    """Return the program of a model with so many blocks of each group."""
    num_layers = num_first + sum(numbers)
    spelled = spell_checkpointing(
        num_first + numbers[0] if numbers[0] else 0,
        num_layers=num_layers,
        recompute=recompute_of(strategy),
    )
    few = msgspec.structs.replace(strategy, activation_checkpointing=spelled)
    # The job of a model with fewer blocks, in the description and in the configuration.
    model = job.model
    config = {**model.hf_config, ARCHITECTURES[model.model_type].depth_field: num_layers}
    if config.get(_TYPES):
        config[_TYPES] = config[_TYPES][:num_layers]
    return msgspec.structs.replace(
        job, model=msgspec.structs.replace(model, num_layers=num_layers, hf_config=config)
    ), few


def _unrolled(
    tapes: Sequence[Recording], pattern: Pattern, groups: tuple[_Group, _Group]
) -> Recording:
    """Unroll one group after the other."""
    first, second = groups
    (done, shallow), num_blocks = tapes, pattern.num_prefix + first.deep + second.deep
    if first.whole > first.deep:
        num_blocks += first.whole - first.deep
        here = replace(pattern, num_suffix=first.rest + second.deep)
        done = unroll_blocks(done, shallow=shallow, pattern=here, num_blocks=num_blocks)
    if second.whole > second.deep:
        num_blocks += second.whole - second.deep
        num_prefix = pattern.num_prefix + first.whole
        here = replace(pattern, num_prefix=num_prefix, num_suffix=second.rest)
        done = unroll_blocks(done, shallow=shallow, pattern=here, num_blocks=num_blocks)
    return done


def stack_of(job: Job) -> str:
    """Return the path of the stack of blocks, which are alike; empty where none is known."""
    model = job.model
    if model.model_type not in ARCHITECTURES:
        return ""
    runs = layout_of(model).blocks
    is_one = len({run.prefix for run in runs}) == 1
    is_uniform = len(runs) - (num_prefix(model) > 0) == 1  # but for a mixture's dense first ones
    return runs[0].prefix if is_one and is_uniform else ""


def period_of(model: ModelSpec, num_first: int) -> int:
    """Return after how many blocks their kinds come round: how far each attends, and what it is.

    As many as there are where they never do.
    """
    told = model.hf_config.get(_TYPES) or [""] * model.num_layers
    kinds = list(zip(told, windows(model), strict=True))[num_first:]
    return next(n for n in range(1, len(kinds) + 1) if kinds[n:] == kinds[: len(kinds) - n])


def num_prefix(model: ModelSpec) -> int:
    """Count the dense blocks before the first that has experts; 0 in a model without any."""
    sparse = known_experts(model).sparse_blocks
    return sparse[0] if sparse else 0


def names_blocks(job: Job) -> bool:
    """Whether something is said of modules of one block only, so that blocks differ."""
    adapter = job.adapter
    adapted = () if adapter is None else (*adapter.targets, *adapter.trained_modules)
    return any(map(names_block, (*job.keep_fp32, *adapted)))
