"""Which blocks a shallow model keeps so that its tape can be unrolled to the deep one's.

Blocks are of one kind if they are built alike and the configuration says the same of them. Kinds
that come round and round, after a prefix of others, make a pattern; the shallow model is the first
blocks of the deep one, a few rounds of it. Works on any module list; the configuration is of
transformers' kind. Knows nothing of tapes.
"""

import copy
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import nn

from brimful.pretend.blocks import NotPeriodicError, Pattern
from brimful.pretend.unroll import MIN_UNITS

_PER_BLOCK = frozenset({"layer_idx", "layer_id", "layer_number", "layer_index", "block_idx"})
"""Attributes that number a block and say nothing of its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How a model's blocks repeat and how many of them to trace.

    Attributes:
        pattern: The pattern of the blocks.
        num_blocks: Blocks of the whole model.
        num_traced: Blocks of the model to trace.
        num_few: Blocks of the one to compare it with (``unroll_blocks``).
    """

    pattern: Pattern
    num_blocks: int
    num_traced: int
    num_few: int


def find_depth(model: nn.Module, config: Any) -> Depth:
    """Find the pattern of a model's blocks.

    Args:
        model: The whole model, on ``meta``.
        config: Its transformers configuration.

    Raises:
        NotPeriodicError: It has no one stack of blocks, or no pattern shorter than the stack.
    """
    path, blocks = _stack(model, _num_blocks(config))
    pattern, num_traced, num_few = _shortest(path, block_kinds(blocks, config))
    return Depth(pattern=pattern, num_blocks=len(blocks), num_traced=num_traced, num_few=num_few)


def reduced(config: Any, num_blocks: int) -> Any:
    """Return a copy of a configuration with the first ``num_blocks`` blocks only.

    Args:
        config: Of transformers' kind; what it says of each block is cut too.
        num_blocks: How many blocks to keep.
    """
    shallow = copy.deepcopy(config)
    text, whole = _text(shallow), _num_blocks(config)
    for name, values in list(vars(text).items()):
        if isinstance(values, (list, tuple)):
            setattr(text, name, _cut(name, values, whole, num_blocks))
    text.num_hidden_layers = num_blocks
    return shallow


def check_reduced(shallow: nn.Module, config: Any, *, deep: nn.Module, deep_config: Any) -> None:
    """Make sure that a shallow model's blocks are the first ones of the deep model.

    Args:
        shallow: Built from ``config``.
        config: What ``reduced`` returned.
        deep: The whole model.
        deep_config: Its configuration.

    Raises:
        NotPeriodicError: They are not.
    """
    _, blocks = _stack(shallow, _num_blocks(config))
    _, all_blocks = _stack(deep, _num_blocks(deep_config))
    if block_kinds(blocks, config) != block_kinds(all_blocks, deep_config)[: len(blocks)]:
        raise NotPeriodicError("the shallow model's blocks are not the first of the deep one's")


def block_kinds(blocks: nn.ModuleList, config: Any) -> list[Hashable]:
    """Return a value per block, equal for blocks of one kind.

    Args:
        blocks: The stack.
        config: Lists in it that are as long as the stack say something of each block.
    """
    lists = [
        values
        for name, values in sorted(vars(_text(config)).items())
        if isinstance(values, (list, tuple)) and not _is_indices(name, values, len(blocks))
        and len(values) == len(blocks)
    ]  # fmt: skip
    told = [tuple(str(values[i]) for values in lists) for i in range(len(blocks))]
    return [(_signature(block), one) for block, one in zip(blocks, told, strict=True)]


def _signature(block: nn.Module) -> Hashable:
    return tuple((name, type(part), _attributes(part)) for name, part in block.named_modules())


def _attributes(part: nn.Module) -> Hashable:
    tensors = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
    plain = [
        (name, value)
        for name, value in vars(part).items()
        if name not in _PER_BLOCK and isinstance(value, (int, float, str, bool, type(None)))
    ]
    shapes = [(name, tuple(x.shape), x.dtype, x.requires_grad) for name, x in tensors]
    return tuple(plain), tuple(shapes), tuple(map(_told_by, part.children()))


def _told_by(part: nn.Module) -> str:
    return part.extra_repr() if isinstance(part, (nn.Dropout, nn.Embedding)) else ""


def _stack(model: nn.Module, num_blocks: int) -> tuple[str, nn.ModuleList]:
    found = [
        (name, part)
        for name, part in model.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == num_blocks
        and not isinstance(_parent_list(model, name), nn.ModuleList)
    ]  # fmt: skip
    if len(found) != 1:
        raise NotPeriodicError(
            f"{len(found)} module lists have the {num_blocks} blocks of the configuration, not 1"
        )
    return found[0]


def _parent_list(model: nn.Module, name: str) -> nn.Module | None:
    """Return the module list that a module lies in, if any."""
    parts = name.split(".")
    for length in range(1, len(parts)):
        above = model.get_submodule(".".join(parts[:length]))
        if isinstance(above, nn.ModuleList):
            return above
    return None


def _shortest(stack: str, kinds: Sequence[Hashable]) -> tuple[Pattern, int, int]:
    """Return the pattern that needs the fewest blocks traced, and how many: many and few."""
    whole, best = len(kinds), None
    for period in range(1, whole // MIN_UNITS + 1):
        prefix = _prefix(kinds, period)
        rest = (whole - prefix) % period
        traced = prefix + MIN_UNITS * period + rest
        if traced < whole and (best is None or traced < best[1]):
            pattern = Pattern(stack=stack, num_prefix=prefix, period=period)
            best = (pattern, traced, prefix + period + rest)
    if best is None:
        raise NotPeriodicError(f"the {whole} blocks have no pattern that repeats often enough")
    return best


def _prefix(kinds: Sequence[Hashable], period: int) -> int:
    """Return how many blocks come before all the rest repeats with a period."""
    prefix = len(kinds) - period
    while prefix > 0 and kinds[prefix - 1] == kinds[prefix - 1 + period]:
        prefix -= 1
    return prefix


def _cut(name: str, values: Sequence[Any], whole: int, num_blocks: int) -> Sequence[Any]:
    if _is_indices(name, values, whole):
        return [i for i in values if i < num_blocks]
    return values[:num_blocks] if len(values) == whole else values


def _is_indices(name: str, values: Sequence[Any], whole: int) -> bool:
    """Whether the values are numbers of blocks: rising, and named after what they number."""
    numbers = [i for i in values if isinstance(i, int) and not isinstance(i, bool)]
    named = any(part in name for part in ("layers", "layer_ids", "idxs", "indices"))
    rising = all(a < b for a, b in pairwise(numbers))
    return named and len(numbers) == len(values) and rising and max(numbers, default=0) < whole


def _num_blocks(config: Any) -> int:
    return int(_text(config).num_hidden_layers)


def _text(config: Any) -> Any:
    """Return the part of a configuration that describes the text model."""
    return config.get_text_config()
