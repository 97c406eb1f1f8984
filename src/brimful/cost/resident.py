"""Tensor by tensor, what a device holds throughout, and what comes and goes while that is made.

``states.py`` adds the same up; here each tensor is a request of its own, in the order in which a
program makes them: parameters, weights as they are quantised, whole ones while shards are drawn,
DDP's buckets, the optimizer's state.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from math import prod
from typing import NamedTuple

import msgspec
import numpy as np

from brimful.cost.expert_shards import held_shape
from brimful.cost.family import Family
from brimful.cost.load_transients import sent_bytes, sent_copies
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.shapes import Shape, groups_of
from brimful.cost.shards import first_shard
from brimful.cost.states import States, holds_everything, updated_apart
from brimful.cost.trained import (
    DOUBLE,
    NF4_BLOCK,
    NF4_NESTED_BLOCK,
    adapter_shapes_of,
    constants_of,
    first_blocks,
    frozen_element,
    in_order,
    loaded_element,
    modules_of,
    packed_shape,
    trained_parameters,
    trained_recipe,
    trained_shapes,
    wide_shapes,
)
from brimful.cost.update import state_tensors
from brimful.models.config import layout_of
from brimful.models.layout import Parameter, all_parameters
from brimful.models.targets import PACKED
from brimful.techniques.optimizers import Updated
from brimful.values.job import QUANTIZED, Base, Job

_TABLE_BYTES, _NESTED_TABLE_BYTES, _OFFSET_BYTES = 16 * 4, 256 * 4, 4


class Made(NamedTuple):
    """Tensors that are made in turn.

    Attributes:
        num_bytes: Of each.
        passing: Places of those that do not stay, in order, each with the place behind which it
            goes.
    """

    num_bytes: tuple[int, ...]
    passing: tuple[tuple[int, int], ...] = ()

    @property
    def stays(self) -> list[int]:
        """Bytes of those that stay."""
        gone = {place for place, _ in self.passing}
        return [size for place, size in enumerate(self.num_bytes) if place not in gone]


def loaded(job: Job, family: Family, held: States) -> Iterator[Made]:
    """Yield what loading makes, in order."""
    shards = 1 if holds_everything(family) else num_shards_of(family)
    if job.adapter is not None:
        parted = family if family.ep > 1 else None
        away = family.away.parameters if family.away.frozen else 0
        goes = sum(map(len, first_blocks(job.model, away)))
        yield from adapted(job, shards, in_order(job), parted=parted, goes=goes)
    else:
        element, wide = trained_recipe(job).parameter, _wide(job, family)
        for shape in shard_shapes(job, family):
            yield Made((prod(shape) * (FP32_BYTES if _is_next(shape, wide) else element),))
    if family.away.parameters:  # and are drawn on the device
        yield from (drawn(num_bytes) for num_bytes in _drawn_blocks(job, family.away.parameters))
    yield from (Made((num_bytes,)) for num_bytes in constants_of(job))
    if shards > 1 or family.tp > 1:
        yield from (drawn(num_bytes) for num_bytes in _drawn_bytes(job))
    if np.any(held.buckets):
        yield sent(list(sent_bytes(job, family)))
        yield Made((round(float(np.max(held.buckets))),))


def _wide(job: Job, family: Family) -> Counter[Shape]:
    """Count the shapes of what one device holds in fp32 beside parameters in 16 bits."""
    num = 1 if holds_everything(family) else num_shards_of(family)
    return Counter(first_shard(shape, num) for shape in wide_shapes(job, family.tp))


def _is_next(shape: Shape, wide: Counter[Shape]) -> bool:
    """Whether a tensor of this shape is one of some, of which it is taken then."""
    wide[shape] -= 1
    return wide[shape] >= 0


def _drawn_bytes(job: Job) -> Iterator[int]:
    """Yield the bytes of whole weights that are drawn; norms, biases and B of adapters are not."""
    element = frozen_element(job)
    yield from (prod(shape) * element for shape in _drawn_shapes(job))
    if job.model.tied_embeddings:  # again for the head
        yield layout_of(job.model).embedding[0].num_elements * element
    wide = trained_recipe(job).parameter
    for parameter, in_block in in_order(job):
        if in_block and (adapter := adapter_shapes_of(job, parameter)):
            yield prod(adapter[0]) * wide


def _drawn_blocks(job: Job, num_blocks: int) -> Iterator[int]:
    """Yield the bytes of the matrices of blocks that are drawn whole: what is not quantised.

    ``num_blocks``: of how many blocks, from the first on.
    """
    element = frozen_element(job)
    for parameter in chain.from_iterable(first_blocks(job.model, num_blocks)):
        if parameter.kind not in {"norm", "bias"} and not _is_packed(job, parameter):
            yield parameter.num_elements * element


def _is_packed(job: Job, parameter: Parameter) -> bool:
    """Whether a parameter of a block is quantised."""
    is_quantized = job.adapter is not None and job.adapter.base in QUANTIZED
    return is_quantized and parameter.kind in PACKED


def _drawn_shapes(job: Job) -> Iterator[Shape]:
    for parameter, in_block in in_order(job):
        is_packed = in_block and _is_packed(job, parameter)
        if parameter.kind not in {"norm", "bias"} and not is_packed:
            yield parameter.shape


def drawn(num_bytes: int) -> Made:
    """Return a whole weight that is drawn for the shard or the device that keeps its numbers."""
    return Made((num_bytes,), ((0, 0),))


def sent(sizes: Sequence[int]) -> Made:
    """Return the copies in which DDP sends parameters of these sizes when it is made."""
    copies = sent_copies(sizes)
    passing = ((place, min(place + 1, len(copies) - 1)) for place in range(len(copies)))
    return Made(tuple(copies), tuple(passing))


def num_shards_of(family: Family) -> int:
    """Return over how many devices the states of one strategy are sharded."""
    return int(np.max(np.asarray(family.num_shards)))


def optimizer_state(job: Job, family: Family) -> Iterator[Made]:
    """Yield what an optimizer keeps in order: masters, each parameter's own, matrices first."""
    updates = () if family.away.optimizer else updated(job, family)
    return state_of_shapes(job, updates, _wide(job, family))


def state_of_shapes(
    job: Job, updated: Sequence[Updated], wide: Counter[Shape] | None = None
) -> Iterator[Made]:
    """Yield the same of what a device updates.

    ``wide``: how often each is that of a parameter in fp32 beside those in 16 bits.
    """
    recipe, wide = trained_recipe(job), wide or Counter()
    parameters = list(chain(*groups_of(updated)))
    if recipe.master:
        yield from (Made((each.num * recipe.master,)) for each in parameters)
    for each in parameters:
        for num_bytes in state_tensors(job, each, is_wide=_is_next(each.shape, wide)):
            yield Made((num_bytes,))


def updated(job: Job, family: Family) -> list[Updated]:
    """List what one device updates."""
    return list(chain.from_iterable(updated_groups_of(job, family)))


def updated_groups_of(job: Job, family: Family) -> list[list[Updated]]:
    """List the same by what is updated together (``updated_apart``)."""
    parameters, whole = all_parameters(layout_of(job.model)), trained_parameters(job, family.tp)
    return updated_apart(job, family, tuple(parameters), whole, num_shards_of(family))


def shard_shapes(job: Job, family: Family) -> list[Shape]:
    """List the shapes of what one device holds of a model that trains in full."""
    num = num_shards_of(family)
    if family.ep > 1:
        return [each.shape for each in updated(job, family)]
    if family.away.parameters:
        return [parameter.shape for parameter, in_block in in_order(job) if not in_block]
    whole = trained_shapes(job, family.tp)
    return whole if holds_everything(family) else [first_shard(shape, num) for shape in whole]


def base_alone(job: Job) -> Iterator[Made]:
    """Yield what a second model makes: the base without adapters, whole."""
    if job.adapter is None:
        element = trained_recipe(job).parameter
        yield from (Made((prod(shape) * element,)) for shape in trained_shapes(job))
        return
    bare = msgspec.structs.replace(job.adapter, targets=(), trained_modules=())
    bare_job = msgspec.structs.replace(job, adapter=bare)
    yield from adapted(bare_job, 1, in_order(bare_job))


def adapted(
    job: Job,
    shards: int,
    parameters: Iterable[tuple[Parameter, bool]],
    *,
    parted: Family | None = None,
    goes: int = 0,
) -> Iterator[Made]:
    """Yield a frozen base with its adapters, in the order of modules; what is quantised last.

    The shard of a weight that is quantised is there before, and takes the numbers of a whole one.

    ``parameters``: of the base, in order, and whether each is a block's. ``parted``: strategies
    that part experts; None: experts are sharded as all else is. ``goes``: how many parameters of
    blocks go to the host, from the first on.
    """
    assert job.adapter is not None
    element, wide = frozen_element(job), trained_recipe(job).parameter
    packed, num_before = list[tuple[Parameter, bool]](), 0
    for module, in_block in _modules(parameters):
        for parameter in module:
            is_wide = job.adapter.upcast == "norms" and parameter.kind == "norm"
            is_away = in_block and num_before < goes
            num_before += in_block
            if in_block and _is_packed(job, parameter):
                packed.append((parameter, is_away))
                if shards > 1:
                    yield Made((prod(first_shard(packed_shape(parameter), shards)),))
            elif not is_away:
                size = FP32_BYTES if is_wide else element
                held = (
                    first_shard(parameter.shape, shards)
                    if parted is None
                    else held_shape(parameter, parted, shards)
                )
                yield Made((prod(held) * size,))
        for shape in adapter_shapes_of(job, module[0]) if in_block else ():
            yield Made((prod(first_shard(shape, shards)) * wide,))
    for parameter, is_away in packed:
        element = loaded_element(job)
        yield _quantized(parameter, element, job.adapter.base, is_sharded=shards > 1, goes=is_away)


def _modules(
    parameters: Iterable[tuple[Parameter, bool]],
) -> Iterator[tuple[list[Parameter], bool]]:
    """Yield the parameters of every module that has some, and whether it is a block's."""
    for in_block, some in groupby(parameters, lambda each: each[1]):
        for module in modules_of(parameter for parameter, _ in some):
            yield module, in_block


def _quantized(
    weight: Parameter, element: int, base: Base, *, is_sharded: bool, goes: bool
) -> Made:
    """Return a weight in nf4 with its constants while the full one is there.

    Its scales are quantised too, or not. One that has rows last is copied first. The whole of what
    is sharded goes; what holds a weight that is kept on the host goes there last.

    Source: ``QuantState`` and ``quantize_4bit`` of ``bitsandbytes/functional.py``.
    """
    scales = -(-weight.num_elements // NF4_BLOCK)
    nested = -(-scales // NF4_NESTED_BLOCK)
    full, wide = weight.num_elements * element, scales * FP32_BYTES
    first = (full,) * (1 + (weight.kind == "conv1d"))
    once = (*first, prod(packed_shape(weight)), wide, _TABLE_BYTES)
    twice = (
        _OFFSET_BYTES, _NESTED_TABLE_BYTES, wide, scales, nested * FP32_BYTES, _NESTED_TABLE_BYTES,
    )  # fmt: skip
    made = once + twice * (base == DOUBLE)
    packed, last = len(first), len(made) - 1
    scales_at, table_at, host_code, centred = packed + 1, packed + 2, packed + 4, packed + 5
    copied = [(copy, table_at) for copy in range(1, packed)]
    nested_gone = (centred, scales_at, host_code) if base == DOUBLE else ()
    gone = (*nested_gone, *[packed] * is_sharded, 0, *[packed] * goes)
    return Made(made, (*copied, *((place, last) for place in gone)))
