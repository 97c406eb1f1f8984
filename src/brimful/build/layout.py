"""The layout of a model that is built: its parameters, in order, and what its blocks are.

What ``models`` says of the architectures that it describes, read off any other: where the blocks
stand, which parameters are before and behind them, and of which kind each is.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import nn
from transformers import AutoConfig
from transformers.pytorch_utils import Conv1D

from brimful.build.adapters import is_plain, output_layers
from brimful.build.attention.windows import CHUNKED, SLIDING
from brimful.build.blocks import (
    decoder_blocks,
    idle_parameters,
    parts_again,
    runs_as_one,
    stacks_of,
)
from brimful.build.experts import expert_modules
from brimful.build.tasks import task_of
from brimful.errors import UnsupportedError
from brimful.models.layout import Kind, Layout, Parameter, followed, runs
from brimful.models.sequence import numbered
from brimful.models.targets import LINEAR
from brimful.models.traced import BuiltModel, find_built, keep_built
from brimful.values.job import Job, Precision
from brimful.values.strategy import Attention, Strategy

_TYPES = "layer_types"
_MIXED: Precision = "bf16-mixed"
_NARROW: Precision = "bf16"
"""Recipes that hold weights in fp32 and in 16 bits."""


def read_built(job: Job, attention: Attention) -> BuiltModel:
    """Return what a job's model is when it is built, from an earlier time if there was one."""
    built = find_built(job.model)
    if built is None:
        full = msgspec.structs.replace(job, method="full", adapter=None, weights=None)
        plain = Strategy(
            micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention=attention
        )
        built = read_model(full, plain)
        keep_built(job.model, built)
    return built


def read_model(job: Job, strategy: Strategy) -> BuiltModel:
    """Build a job's model on ``meta`` and read off what it is.

    ``job``: what is trained; it has no adapters. Raises UnsupportedError: its blocks are in two
    lists, of which its task knows one.
    """
    in_each = (msgspec.structs.replace(job, precision=each) for each in (_MIXED, _NARROW))
    skeleton, narrow = (task_of(each).skeleton(each, strategy) for each in in_each)
    config = AutoConfig.for_model(job.model.model_type, **job.model.hf_config).get_text_config()
    stacks = [] if runs_as_one(skeleton) else stacks_of(skeleton).values()
    return BuiltModel(
        layout=_layout(skeleton, job, _wide(narrow)),
        windows=tuple(sorted(_windows(config))),
        kinds=kinds_of(config, *stacks),
        buffers=tuple(each.nbytes for each in skeleton.buffers()),
        narrow_buffers=tuple(each.nbytes for each in narrow.buffers()),
        idle=tuple(tuple(each.shape) for each in idle_parameters(skeleton).values()),
        parts=any(expert_modules(skeleton)),
        again=bool(parts_again(skeleton)),
        spec=job.model,
    )


def _windows(config: Any) -> Iterator[int]:
    """Yield how many tokens some blocks see: those around each, or those that it chooses."""
    types = getattr(config, _TYPES, None) or [SLIDING]
    fields = {"sliding_window": SLIDING, "attention_chunk_size": CHUNKED}
    told = [field for field, word in fields.items() if any(word in kind for kind in types)]
    for field in (*told, "index_topk"):
        if isinstance(number := getattr(config, field, None), int):
            yield number


def kinds_of(config: Any, *stacks: Sequence[nn.Module]) -> tuple[int, ...]:
    """Number the kinds of some blocks: those of one kind run the same operations.

    ``config``: of their model; lists with an entry for each of them tell them apart. None: a module
    of one's own has none. ``stacks``: lists of blocks, in order, of which each numbers its own.
    """
    features = [(at, each) for at, blocks in enumerate(stacks) for each in _features(blocks)]
    told = _told(config.get_text_config(), len(features)) if config else [""] * len(features)
    return numbered(zip(told, features, strict=True))


def _told(config: Any, num_blocks: int) -> list[str]:
    """Return what lists of a configuration say of every block."""
    lists = [
        value
        for _, value in sorted(config.to_dict().items())
        if isinstance(value, list | tuple) and len(value) == num_blocks
    ]
    return [repr([each[block] for each in lists]) for block in range(num_blocks)]


def _features(blocks: Sequence[nn.Module]) -> list[frozenset[Any]]:
    """Return what tells a block's operations apart: its modules' classes, parameters and switches.

    What has another value in each of them only numbers them.
    """
    every = [dict(_features_of(block)) for block in blocks]
    values: defaultdict[Hashable, list[Any]] = defaultdict(list)
    for features in every:
        for name, value in features.items():
            values[name].append(value)
    numbers = {name for name, each in values.items() if 1 < len(each) == len(set(each))}
    numbers = {name for name in numbers if all(type(value) is int for value in values[name])}
    return [
        frozenset((n, v) for n, v in features.items() if n not in numbers) for features in every
    ]


def _features_of(block: nn.Module) -> Iterator[tuple[Hashable, Hashable]]:
    for path, module in block.named_modules():
        yield (path, "class"), type(module).__name__
        for name, parameter in module.named_parameters(recurse=False):
            yield (path, name), tuple(parameter.shape)
        for name, value in vars(module).items():
            if not name.startswith("_") and isinstance(value, bool | int | str | None):
                yield (path, name), value


def _wide(narrow: nn.Module) -> set[str]:
    """Name the parameters that a class keeps in fp32 where the others are in bf16."""
    return {name for name, p in narrow.named_parameters() if p.dtype == torch.float32}


def _layout(skeleton: Any, job: Job, wide: Collection[str]) -> Layout:
    num_in = _stacks(skeleton, job)
    found = skeleton.get_output_embeddings()
    head = output_layers(skeleton) if not num_in else [found] if found is not None else []
    heads = {id(p) for layer in head for p in layer.parameters()}
    modules, experts = dict(skeleton.named_modules()), set(expert_modules(skeleton))
    before: list[Parameter] = []
    last: list[Parameter] = []
    behind: dict[str, list[Parameter]] = {prefix: [] for prefix in num_in}
    blocks: dict[str, list[list[Parameter]]] = {
        prefix: [[] for _ in range(num)] for prefix, num in num_in.items()
    }
    now, idle = "", idle_parameters(skeleton)
    holders = Counter(id(p) for m in skeleton.modules() for p in m.parameters(recurse=False))
    for name, tensor in skeleton.named_parameters():
        if name in idle:
            continue
        num = holders[id(tensor)]
        kind = _kind(modules, experts, name, is_shared=num > 1)
        parameter = Parameter(name, tuple(tensor.shape), kind, wide=name in wide)
        if kind in LINEAR:
            parameter = parameter._replace(holders=num)
        stack = next((prefix for prefix in num_in if name.startswith(f"{prefix}.")), "")
        if stack:
            now = stack
            place, _, rest = name.removeprefix(f"{stack}.").partition(".")
            blocks[stack][int(place)].append(parameter._replace(name=rest))
        elif not now:
            (last if not num_in and id(tensor) in heads else before).append(parameter)
        else:
            (last if id(tensor) in heads else behind[now]).append(parameter)
    if not num_in:
        return Layout(embedding=tuple(before), blocks=(), final=(), head=tuple(last))
    *others, final = behind
    between = (
        run
        for stack in others
        for run in followed(runs(stack, map(tuple, blocks[stack])), tuple(behind[stack]))
    )
    return Layout(
        embedding=tuple(before),
        blocks=(*between, *runs(final, map(tuple, blocks[final]))),
        final=tuple(behind[final]),
        head=tuple(last),
    )


def _stacks(skeleton: nn.Module, job: Job) -> dict[str, int]:
    """Return the lists that blocks stand in, one after the other, and how many are in each.

    More than one are those of an encoder and a decoder, which the task runs in this order. A body
    that is one unit has none.
    """
    blocks = {id(block) for block in decoder_blocks(skeleton)}
    names = [name for name, module in skeleton.named_modules() if id(module) in blocks]
    stacks: dict[str, list[str]] = {}
    for name in names:
        prefix, _, place = name.rpartition(".")
        stacks.setdefault(prefix, []).append(place)
    if len(stacks) > 1 and job.task != "seq2seq":
        raise UnsupportedError(
            f"the blocks of {job.model.name} do not follow one another in their lists"
        )
    return {prefix: len(each) for prefix, each in stacks.items()}


def _kind(
    modules: Mapping[str, nn.Module], stacks: Collection[nn.Module], name: str, *, is_shared: bool
) -> Kind:
    """Tell what a parameter is by the module that holds it.

    Experts are stacks of which a grouped product is made; of a model without any, what a class
    calls so.
    """
    path, _, own = name.rpartition(".")
    holder = modules[path]
    names = [type(module).__name__.lower() for module in _around(modules, path)]
    if holder in stacks or (not stacks and any("experts" in each for each in names)):
        return "experts"
    if isinstance(holder, nn.Embedding):
        return "embedding"
    if is_plain(holder):
        return "bias" if own == "bias" else _linear_kind(holder, is_shared=is_shared)
    if "norm" in names[0]:
        return "norm"
    return "other"


def _linear_kind(holder: nn.Module, *, is_shared: bool) -> Kind:
    if isinstance(holder, Conv1D):
        return "conv1d"
    return "linear" if type(holder) is nn.Linear and not is_shared else "own-linear"


def _around(modules: Mapping[str, nn.Module], path: str) -> Iterator[nn.Module]:
    """Yield a module and what it lies in, innermost first."""
    while path:
        yield modules[path]
        path = path.rpartition(".")[0]
