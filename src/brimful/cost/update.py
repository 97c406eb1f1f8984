"""What an optimizer keeps, and what it needs beside that while it updates.

Its record (``techniques/optimizers``) says both of parameters that are handed over together. Where
a recipe has masters these are the buckets of ``build/precision/masters.py``; otherwise they are the
optimizer's groups: matrices, and the rest.

Ignored: step counts (4 bytes per tensor).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from brimful.cost.recipes import FP32_BYTES
from brimful.cost.shapes import groups_of
from brimful.cost.trained import trained_parameters, trained_recipe
from brimful.hardware.cluster import Device
from brimful.hardware.cuda_chips import Multiprocessors, chips, version_of
from brimful.hardware.cuda_reductions import partial_sums_bytes
from brimful.techniques.optimizers import OPTIMIZERS, Settings, Updated, bytes_kept
from brimful.values.job import Job

MASTERS_BUCKET_BYTES = 2**25
"""fp32 gradients that exist at a time; tested equal to ``build.precision.masters``."""


class Updater(NamedTuple):
    """What updates.

    Attributes:
        kernels: ``cuda`` or ``cpu``.
        chip: Of a GPU; None: nothing is known of it.
        num_shards: Devices that share each parameter.
    """

    kernels: str
    chip: Multiprocessors | None = None
    num_shards: int = 1


CUDA, CPU = Updater("cuda"), Updater("cpu")
"""Where nothing is asked that hangs on a chip."""


class Update(NamedTuple):
    """Bytes of an optimizer, above parameters and gradients: numbers, or [strategies] each.

    Attributes:
        kept: Its state, masters included; made before the first step.
        transient: The most there is in an update beside the state.
        why: What the state is, in words.
        paged: What else it keeps, in memory that CUDA manages, of which no allocator is asked.
    """

    kept: Any
    transient: Any
    why: str
    paged: Any = 0


def updater_of(device: Device, num_shards: int = 1) -> Updater:
    """Return a device that updates."""
    return Updater(device.kernels, chips().get(version_of(device.capability)), num_shards)


def settings_of(job: Job, updater: Updater) -> Settings:
    """Return what an optimizer's record is asked with."""
    element, chip = trained_recipe(job).updated, updater.chip
    plain = Settings(element, updater.kernels, job.beta1, job.weight_decay, updater.num_shards)
    if chip is None or updater.kernels != "cuda":
        return plain
    return plain._replace(
        partial_sums=lambda shape, dim: partial_sums_bytes(shape, dim, element, chip)
    )


def update_of(job: Job, updater: Updater, updated: Sequence[Updated] | None = None) -> Update:
    """Follow an update of a job that has a formula.

    ``updated``: what this device updates; None: everything that trains.
    """
    recipe, rule, settings = (
        trained_recipe(job),
        OPTIMIZERS[job.optimizer],
        settings_of(job, updater),
    )
    updated = trained_parameters(job) if updated is None else updated
    kept, transient, paged = sum(each.num for each in updated) * recipe.master, 0, 0
    for bucket in _buckets(job, updated):
        kept += bytes_kept(rule, bucket, settings)
        paged += bytes_kept(rule, bucket, settings, is_paged=True) if rule.pages else 0
        widened = sum(each.num for each in bucket) * recipe.master
        most = max(moment.num_bytes for moment in rule.moments(bucket, settings))
        transient = max(transient, widened + most)
    why = f"{rule.words}: {rule.keeps}" + (", fp32 masters" if recipe.master else "")
    return Update(kept, transient, why, paged)


def update_apart(job: Job, updater: Updater, groups: Iterable[Sequence[Updated]]) -> Update:
    """Follow the updates of what is updated together, one group after the other.

    ``groups``: what this device updates, at least one group.
    """
    each = [update_of(job, updater, some) for some in groups]
    kept, transient = sum(one.kept for one in each), max(one.transient for one in each)
    return Update(kept, transient, each[0].why, sum(one.paged for one in each))


def wider_state(job: Job, updater: Updater, every: Sequence[Updated]) -> int:
    """Return what the state of parameters that a class keeps in fp32 takes more than in 16 bits.

    ``job``: what is trained, in 16 bits.
    """
    rule, narrow = OPTIMIZERS[job.optimizer], settings_of(job, updater)
    wide = narrow._replace(num_bytes=FP32_BYTES)
    return bytes_kept(rule, every, wide) - bytes_kept(rule, every, narrow) if every else 0


def update_flops(job: Job, updated: Callable[[], Iterable[Updated]]) -> float:
    """Return what an update multiplies on one device.

    ``updated``: lists what that device updates; of pieces the rule knows what it multiplies.
    """
    rule = OPTIMIZERS[job.optimizer]
    if not rule.tells_hidden:
        return 0.0
    settings = settings_of(job, CUDA)
    return sum(rule.flops(each, settings) for each in updated())


def state_tensors(job: Job, parameter: Updated, *, is_wide: bool = False) -> tuple[int, ...]:
    """Return the bytes of every tensor that an optimizer keeps of one parameter on a GPU.

    Masters are left out, and what is paged.

    ``is_wide``: whether it is in fp32 whatever the recipe's type is.
    """
    settings = settings_of(job, CUDA)
    if is_wide:
        settings = settings._replace(num_bytes=FP32_BYTES)
    kept = OPTIMIZERS[job.optimizer].state(parameter, settings)
    here = (each for each in kept if not (each.on_host or each.is_paged))
    return tuple(each.num_bytes(settings.num_bytes) for each in here)


def transients(job: Job, updater: Updater, updated: Sequence[Updated]) -> Iterator[tuple[int, ...]]:
    """Yield what is there beside the state while parameters are updated, a bucket at a time.

    ``updated``: what this device updates, in the order of ``Module.parameters()``. Yields bytes of
    tensors that come one after the other and go together; what is still bound of a bucket before
    is taken for freed.
    """
    recipe, rule, settings = (
        trained_recipe(job),
        OPTIMIZERS[job.optimizer],
        settings_of(job, updater),
    )
    for bucket in _buckets(job, updated):
        widened = tuple(each.num * recipe.master for each in bucket if recipe.master)
        yield from ((*widened, *moment.made) for moment in rule.moments(bucket, settings))


def _buckets(job: Job, updated: Sequence[Updated]) -> Iterator[list[Updated]]:
    """Yield groups, each cut into runs whose fp32 gradients fit the bucket if there are masters.

    A parameter larger than the bucket is a run of its own.
    """
    is_cut = bool(trained_recipe(job).master)
    for group in groups_of(updated):
        bucket: list[Updated] = []
        num_bytes = 0
        for each in group:
            wide = each.num * FP32_BYTES
            if is_cut and bucket and num_bytes + wide > MASTERS_BUCKET_BYTES:
                yield bucket
                bucket, num_bytes = [], 0
            bucket.append(each)
            num_bytes += wide
        if bucket:
            yield bucket
