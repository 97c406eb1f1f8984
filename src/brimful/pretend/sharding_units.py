"""Units of FSDP: what is gathered and reduced at once, and blocks that could be units of their own.

A module that is sharded as a whole is gathered as a whole. Where blocks repeat in it, each can be
sharded before it; a script is run so by ``by_block``, which changes its calls and nothing else.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, _flat_param, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from brimful.pretend.modules import STAR
from brimful.pretend.reading import live_of
from brimful.pretend.recording import NEVER, Recording
from brimful.pretend.replacing import replaced
from brimful.pretend.unit_values import WholeUnit
from brimful.values.results import GATHERED, GRADIENTS, REDUCED

_LEAST_SHARE = 0.5
"""Of all parameters, which a unit has of which something is said."""
_LEAST_BLOCKS = 3
"""That repeat, to be sharded one by one."""
_NAME, _OF_FSDP1 = "fully_shard", "FSDP"
_POLICY = "auto_wrap_policy"
_INIT = "__init__"


class Blocks(NamedTuple):
    """Modules of one class, one after another.

    Attributes:
        path: Of the list, with a star for their numbers.
        modules: Themselves.
        num_parameters: Of all of them.
    """

    path: str
    modules: tuple[nn.Module, ...]
    num_parameters: int


class Unit(NamedTuple):
    """What is gathered at once.

    Attributes:
        call: What sharded it.
        num_parameters: Of it.
        block: The class of blocks that repeat in it; empty: none do.
        path: Where they are.
        num_blocks: How many.
        in_blocks: Its parameters that are in them.
    """

    call: str
    num_parameters: int
    block: str
    path: str
    num_blocks: int
    in_blocks: int


def blocks_of(module: nn.Module) -> Blocks | None:
    """Return the blocks that repeat in a module, those with most parameters; None: none do."""
    found = []
    for path, child in module.named_modules():
        if not isinstance(child, nn.ModuleList | nn.Sequential) or len(child) < _LEAST_BLOCKS:
            continue
        modules = tuple(child)
        if len({*map(type, modules)}) == 1:
            num = sum(parameter.numel() for parameter in child.parameters())
            found.append(Blocks(f"{path}.{STAR}".lstrip("."), modules, num))
    return max(found, key=lambda each: each.num_parameters, default=None)


@contextlib.contextmanager
def watching(units: list[Unit]) -> Iterator[None]:
    """Note the units that are made inside the block."""
    group = getattr(_fsdp_param_group, "FSDPParamGroup", None)
    flat = getattr(_flat_param, "FlatParamHandle", None)
    made = ((group, _NAME), (flat, _OF_FSDP1))
    with replaced((each, _INIT, _noting(units, call, each)) for each, call in made if each):
        yield


def _noting(units: list[Unit], call: str, owner: Any) -> Any:
    original = vars(owner)[_INIT]

    @wraps(original)
    def init(self: Any, params: Any, modules: Any, *args: Any, **kwargs: Any) -> None:
        every = list(params)
        num = sum(parameter.numel() for parameter in every)
        first = modules[0] if isinstance(modules, Sequence) else modules
        blocks = blocks_of(first)
        told: tuple[str, str, int, int] = ("", "", 0, 0)
        if blocks is not None:
            ids = {*map(id, every)}
            held = (each for block in blocks.modules for each in block.parameters())
            inside = sum(each.numel() for each in held if id(each) in ids)
            told = type(blocks.modules[0]).__name__, blocks.path, len(blocks.modules), inside
        units.append(Unit(call, num, *told))
        original(self, every, modules, *args, **kwargs)

    return init


def whole_unit(recording: Recording, peak_event: int, units: Sequence[Unit]) -> WholeUnit | None:
    """Return what a unit has at once that is most of a model; None: there is none.

    Blocks that are units themselves are none of it.
    """
    largest = max(units, key=lambda unit: unit.num_parameters, default=None)
    every = sum(unit.num_parameters for unit in units)
    if largest is None or not largest.block or largest.num_parameters < _LEAST_SHARE * every:
        return None
    if largest.in_blocks < _LEAST_SHARE * largest.num_parameters:
        return None
    left = max(largest.num_parameters - largest.in_blocks, largest.in_blocks // largest.num_blocks)
    passing = _passing(recording, peak_event)
    return WholeUnit(
        call=largest.call,
        num_parameters=largest.num_parameters,
        all_parameters=every,
        gathered_bytes=_most(recording, GATHERED),
        reduced_bytes=_most(recording, REDUCED),
        block=largest.block,
        path=largest.path,
        num_blocks=largest.num_blocks,
        most_saved_bytes=int(passing * (1 - left / largest.num_parameters)),
    )


def _most(recording: Recording, name: str) -> int:
    return int(live_of(recording, _is_of(recording, name)).max(initial=0))


def _is_of(recording: Recording, name: str) -> NDArray[np.bool_]:
    names = np.array([each == name for each in recording.items], dtype=bool)
    return np.asarray(names[recording.item])


def _passing(recording: Recording, peak_event: int) -> int:
    """Add up what a unit has whole at the peak, its gradients before they are reduced too."""
    alive = recording.alive_at(peak_event)
    starts = recording.phase_starts
    end = starts[starts > peak_event].min(initial=len(recording.events))
    is_gone = (recording.died != NEVER) & (recording.died < end)
    of_unit = _is_of(recording, GATHERED) | _is_of(recording, REDUCED)
    of_unit |= _is_of(recording, GRADIENTS) & is_gone
    return int(recording.num_bytes[alive[of_unit[alive]]].sum())


# -- a script whose blocks are units --


@contextlib.contextmanager
def by_block() -> Iterator[None]:
    """Shard the blocks that repeat in a module before it, where a script shards it as a whole."""
    with replaced(_changed()):
        yield


def _changed() -> Iterable[tuple[Any, str, Any]]:
    sharded: Any = _sharding_blocks(fully_shard)
    for name, module in tuple(sys.modules.items()):
        if name.startswith("torch.distributed") and vars(module).get(_NAME) is fully_shard:
            yield module, _NAME, sharded
    wrap: Any = FullyShardedDataParallel
    yield wrap, _INIT, _wrapping_blocks(vars(wrap)[_INIT])


def _sharding_blocks(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def shard(module: Any, **kwargs: Any) -> Any:
        is_whole = isinstance(module, nn.Module)
        is_whole &= not any(isinstance(each, FSDPModule) for each in _modules_in(module))
        blocks = blocks_of(module) if is_whole else None
        for block in () if blocks is None else blocks.modules:
            original(block, **kwargs)
        return original(module, **kwargs)

    return shard


def _wrapping_blocks(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def init(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        inner = (isinstance(each, FullyShardedDataParallel) for each in _modules_in(module))
        blocks = None if any(inner) or len(args) > _NUM_BEFORE_POLICY else blocks_of(module)
        if blocks is not None and kwargs.get(_POLICY) is None and module not in _within:
            _within.update(blocks.modules)
            kwargs[_POLICY] = ModuleWrapPolicy({type(blocks.modules[0])})
        original(self, module, *args, **kwargs)

    _within: set[nn.Module] = set()
    return init


_NUM_BEFORE_POLICY = 3
"""Arguments of FSDP1 that come before that one, by place."""


def _modules_in(module: Any) -> Iterable[torch.nn.Module]:
    return module.modules() if isinstance(module, nn.Module) else ()
