"""Bytes that live across phases: parameters, gradients, optimizer state, on one device of many."""

from collections.abc import Iterator, Sequence
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.base_copies import base_sizes
from brimful.cost.expert_shards import held_groups, held_shape, held_shapes
from brimful.cost.family import Family, family_shards, parting_of
from brimful.cost.flat_shares import flat_shares
from brimful.cost.preference import reference_bytes
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.shapes import Shape, parameter_shapes
from brimful.cost.shards import Cut, cut_of, first_shard, largest_share, padded
from brimful.cost.spread import holds_whole
from brimful.cost.trained import (
    constants_of,
    frozen_bytes,
    frozen_element,
    in_order,
    learning_shapes,
    num_learning,
    num_trained,
    packed_shape,
    quantized_base,
    trained_parameters,
    trained_recipe,
    trained_shapes,
    wide_shapes,
)
from brimful.cost.update import (
    Update,
    Updater,
    update_apart,
    update_flops,
    update_of,
    updater_of,
    wider_state,
)
from brimful.files.remembered import once_for_each
from brimful.hardware.cluster import Device
from brimful.models.config import layout_of, parameter_count
from brimful.models.layout import Parameter, all_parameters, num_elements
from brimful.models.targets import PACKED
from brimful.techniques.optimizers import Updated
from brimful.values.job import QUANTIZED, Job

Bytes = NDArray[np.float64]


class States(NamedTuple):
    """Bytes that live across phases: numbers, or [strategies] each.

    Attributes:
        frozen: Of parameters that do not train.
        constants: Of what a quantised weight cannot be read without, and of a model's buffers.
        trained: Of those that do: parameters x bytes of the recipe.
        buckets: Of DDP's gradients, which exist from the start.
        gradients: Of all other gradients, while they exist.
        optimizer_state: What the update keeps, masters included.
        reference: Of a second model that stays beside the one that is trained.
    """

    frozen: Any
    constants: Any
    trained: Any
    buckets: Any
    gradients: Any
    optimizer_state: Any
    reference: Any = 0

    @property
    def parameters(self) -> Any:
        """Of all parameters."""
        return self.frozen + self.trained

    @property
    def loaded(self) -> Any:
        """Of all that is there before the first step."""
        return self.parameters + self.constants + self.buckets + self.reference


def states(job: Job, update: Update) -> States:
    """Compute the bytes of parameters, gradients and optimizer state on one device.

    ``update``: its optimizer's (``update_of``).
    """
    recipe, trained = trained_recipe(job), num_trained(job)
    parameters, constants = frozen_bytes(job)
    wider = sum(map(prod, wide_shapes(job))) * (FP32_BYTES - recipe.parameter)
    return States(
        frozen=parameters,
        constants=constants + sum(constants_of(job)),
        trained=trained * recipe.parameter + wider,
        buckets=0,
        gradients=num_learning(job) * recipe.gradient + wider,
        optimizer_state=update.kept,
    )


def held_bytes(job: Job, kernels: str = "cuda") -> int:
    """Return what all devices together hold between steps: gradients beside what stays.

    ``job``: what is trained; it needs no formula. ``kernels``: ``cuda`` or ``cpu``.
    """
    return int(sum(states(job, update_of(job, Updater(kernels)))))


def staying_bytes(job: Job, kernels: str, *, with_optimizer: bool = True) -> int:
    """Return what is there all the time, of all devices together: parameters, optimizer state.

    ``job``: what is trained; it needs no formula. ``kernels``: ``cuda`` or ``cpu``.
    ``with_optimizer``: whether its state is on the devices.
    """
    whole = states(job, update_of(job, Updater(kernels)))
    return int(whole.parameters + whole.constants + whole.optimizer_state * with_optimizer)


def updates_of(job: Job, family: Family, device: Device) -> Update:
    """Follow the updates of what one device keeps state of, once per number of shards."""
    shards, place = np.unique(family_shards(family), return_inverse=True)
    if family.away.optimizer:
        return Update(np.zeros(len(place)), np.zeros(len(place)), "updated on the host")
    updaters = [updater_of(device, int(n)) for n in shards]
    each = [device_update(job, family, updater) for updater in updaters]
    columns = np.array([(one.kept, one.transient, one.paged) for one in each], dtype=np.float64)
    kept, transient, paged = columns[place.reshape(-1)].T
    return Update(kept, transient, each[0].why, paged)


def device_update(job: Job, family: Family, updater: Updater) -> Update:
    """Follow the update of what one device has."""
    return _device_update(job, parting_of(family, updater.num_shards), updater)


@once_for_each
def _device_update(job: Job, family: Family, updater: Updater) -> Update:
    parameters = tuple(all_parameters(layout_of(job.model)))
    whole = trained_parameters(job, family.tp)
    groups = updated_apart(job, family, parameters, whole, updater.num_shards)
    update = update_apart(job, updater, groups)
    every = [Updated(shape) for shape in wide_shapes(job, family.tp)]
    wide = updated_on_one(every, family, updater.num_shards)
    return update._replace(kept=update.kept + wider_state(job, updater, wide))


def updated_apart(
    job: Job,
    family: Family,
    parameters: Sequence[Parameter],
    trained: Sequence[Updated],
    num_shards: int,
) -> list[list[Updated]]:
    """List what one device updates by what is updated together.

    Experts that devices part are of a mesh of their own, and apart; of FSDP1's flat parameters the
    first device has the first numbers of each.

    ``parameters``: of the model, or of a part of it, whole. ``trained``: what of it trains, as
    ``tp`` cuts it.
    """
    if family.is_flat:
        return [[Updated(shape) for shape in flat_shares(job, num_shards)]]
    if family.ep > 1 and job.adapter is None:
        return list(held_groups(parameters, trained, family, num_shards))
    return [list(updated_on_one(trained, family, num_shards))]


def device_update_flops(job: Job, family: Family, num_shards: int) -> float:
    """Return what an update multiplies on one device, of all that trains."""
    return update_flops(job, lambda: updated_of_all(job, family, num_shards))


def updated_of_all(job: Job, family: Family, num_shards: int) -> list[Updated]:
    """List what one device updates of all that trains."""
    parameters = tuple(all_parameters(layout_of(job.model)))
    whole = trained_parameters(job, family.tp)
    return list(chain.from_iterable(updated_apart(job, family, parameters, whole, num_shards)))


def updated_on_one(whole: Sequence[Updated], family: Family, num_shards: int) -> Sequence[Updated]:
    """List what one device updates: whole parameters, its share of whole ones, or shards."""
    if family.zero == 0 or num_shards == 1:
        return whole
    if family.zero == 1:
        return largest_share(whole, num_shards).parameters
    return [
        Updated(first_shard(one.shape, num_shards), one.is_hidden, one.whole or one.shape)
        for one in whole
    ]


def states_of(job: Job, family: Family, updates: Update, kernels: str) -> States:
    """Compute the bytes of parameters, gradients and optimizer state of a family.

    ``updates``: their optimizers' (``updates_of``). ``kernels``: ``cuda`` or ``cpu``.
    """
    recipe, shards = trained_recipe(job), family_shards(family)
    whole, stays = holds_everything(family), not family.away.optimizer
    held = _held(job, family, shards, whole=whole)
    learning = _held(job, family, shards, whole=whole, learns=True)
    wide = held_numbers(wide_shapes(job, family.tp), shards, whole=whole, cut=cut_of(family))
    wider = wide * (FP32_BYTES - recipe.parameter)
    buckets = (held * recipe.gradient + wider) * (family.is_spread and whole)
    views = 0 if holds_whole(job, family) else buckets
    frozen = _frozen(job, shards, whole=whole) if family.ep == 1 else _parted_base(job, family)
    frozen = frozen - away_base(job, family)
    second = np.full_like(shards, reference_bytes(job, family.reference, kernels))
    if family.gathers and np.any(second):  # a second model is sharded as the first is
        second = frozen if job.adapter is not None else held * recipe.parameter
    return States(
        frozen=frozen,
        constants=np.full_like(shards, frozen_bytes(job).constants + sum(constants_of(job))),
        trained=(held - away_numbers(job, family)) * recipe.parameter + wider,
        buckets=buckets,
        gradients=np.maximum(learning * recipe.gradient + wider - views, 0) * stays,
        optimizer_state=updates.kept,
        reference=second,
    )


def away_numbers(job: Job, family: Family) -> int:
    """Count the parameters that train and are on the host: those of all blocks, or none."""
    if not family.away.parameters or family.away.frozen:
        return 0
    blocks = layout_of(job.model).blocks
    return sum(run.num_blocks * num_elements(run.parameters) for run in blocks)


def away_base(job: Job, family: Family) -> int:
    """Return the bytes of a frozen base that are on the host: of the first blocks, or none."""
    return sum(base_sizes(job, family.away.parameters)) if family.away.frozen else 0


def _held(job: Job, family: Family, shards: Bytes, *, whole: bool, learns: bool = False) -> Bytes:
    """Count the numbers that train and that one device holds: [strategies].

    ``whole``: whether each has all of it. ``learns``: whether those are left out that no gradient
    comes to.
    """
    if family.ep == 1 or job.adapter is not None:
        whole_shapes = (learning_shapes if learns else trained_shapes)(job, family.tp)
        return held_numbers(whole_shapes, shards, whole=whole, cut=cut_of(family))
    numbers, place = np.unique(shards, return_inverse=True)
    every = all_parameters(layout_of(job.model))
    parameters = tuple(p for p in every if p.learns or not learns)
    each = [sum(map(prod, held_shapes(parameters, family, int(n)))) for n in numbers]
    return np.array(each, dtype=np.float64)[place.reshape(-1)]


def _frozen(job: Job, shards: Bytes, *, whole: bool) -> Bytes:
    """Return the bytes that one device holds of the base: [strategies].

    Of a quantised one the packed weights are sharded, and their constants stay whole.
    """
    num_bytes, base = frozen_bytes(job).parameters, quantized_base(job)
    if base is None:
        every = parameter_shapes(job.model)
        share: Bytes = held_numbers(every, shards, whole=whole) / parameter_count(job.model).total
        return share * num_bytes
    plain, packed = (sum(map(prod, shapes)) for shapes in base)
    share = held_numbers(base.plain, shards, whole=whole) / plain
    return share * (num_bytes - packed) + held_numbers(base.packed, shards, whole=whole)


def _parted_base(job: Job, family: Family) -> Bytes:
    """Return the same where devices part experts, which no adapter is beside: [strategies]."""
    if job.adapter is None:
        return np.zeros_like(family_shards(family))
    numbers, place = np.unique(family_shards(family), return_inverse=True)
    each = [sum(base_bytes(job, family, int(n))) for n in numbers]
    return np.array(each, dtype=np.float64)[place.reshape(-1)]


def base_bytes(job: Job, family: Family, num_shards: int) -> Iterator[int]:
    """Yield the bytes that a device holds of every parameter of a base that is frozen."""
    assert job.adapter is not None
    is_quantized = job.adapter.base in QUANTIZED
    for parameter, in_block in in_order(job):
        element, held = frozen_element(job), held_shape(parameter, family, num_shards)
        if is_quantized and in_block and parameter.kind in PACKED:
            element, held = 1, first_shard(packed_shape(parameter), num_shards)
        elif job.adapter.upcast == "norms" and parameter.kind == "norm":
            element = FP32_BYTES
        yield prod(held) * element


def holds_everything(family: Family) -> bool:
    """Whether parameters are whole on every device (DDP and ZeRO-1)."""
    return family.zero in {0, 1}


def held_numbers(
    shapes: Sequence[Shape], shards: Bytes, *, whole: bool, cut: Cut = padded
) -> Bytes:
    """Count the numbers that one device holds of parameters: [strategies]."""
    if whole:
        return np.full_like(shards, sum(map(prod, shapes)))
    numbers, place = np.unique(shards, return_inverse=True)
    each: Bytes = cut(shapes, numbers) / numbers
    return each[place.reshape(-1)]
