"""What a checkpoint holds, tensor by tensor: in memory, in pinned memory, and on disk.

Saved are what trains, the optimizer's state of it, a frozen base that is random and no quantised
copy, and torch's random states (``train/program_state.py``); tests hold these sizes against what
that lists. Knows nothing of files but how many bytes torch and DCP write around a tensor.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from math import prod

from brimful.cost.expert_shards import held_shape
from brimful.cost.family import Family, family_of, parting_of
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.resident import num_shards_of
from brimful.cost.shapes import Shape, groups_of
from brimful.cost.shards import first_shard
from brimful.cost.states import updated_apart, updated_of_all
from brimful.cost.trained import frozen_element, trained_parameters, trained_recipe
from brimful.cost.update import CPU, settings_of
from brimful.files.remembered import once_for_each
from brimful.models.config import layout_of
from brimful.models.layout import Parameter, parts
from brimful.models.targets import PACKED
from brimful.techniques.optimizers import OPTIMIZERS, Updated
from brimful.values.job import QUANTIZED, Job
from brimful.values.strategy import Strategy

RANDOM_BYTES = 5056
"""State of torch's generator of the host: ``torch.get_rng_state()``."""
CUDA_RANDOM_BYTES = 16
MOST_LISTS = 64
"""Of thousands of sizes each, that are kept: a search shards one job in a few ways."""


def saved_sizes(
    job: Job, strategy: Strategy | None, kernels: str, *, has_state: bool = True
) -> list[int]:
    """List the bytes of every tensor that is saved.

    ``strategy``: of one device, the fullest; None: of all together, whole. ``kernels``: ``cuda`` or
    ``cpu``. ``has_state``: whether the optimizer's state is among them.
    """
    one = None if strategy is None else parting_of(family_of(job, strategy), strategy.dp_shard)
    return list(_saved(job, one, kernels, has_state))


@partial(once_for_each, most=MOST_LISTS)
def _saved(
    job: Job,
    family: Family | None,
    kernels: str,
    has_state: bool,  # noqa: FBT001 - a key of what is kept
) -> tuple[int, ...]:
    """List them of one device of some strategies, or of all together."""
    held, updated = _held(job, family)
    element = trained_recipe(job).parameter
    return (
        *(each.num * element for each in held),
        *_frozen_sizes(job, family),
        *(_state_sizes(job, updated) if has_state else ()),
        *((RANDOM_BYTES, CUDA_RANDOM_BYTES) if kernels == "cuda" else (RANDOM_BYTES,)),
    )


def _share(parameter: Parameter, family: Family | None) -> Shape:
    """Return what a device holds of a parameter of a frozen base."""
    if family is None or not family.gathers:
        return parameter.shape
    if family.ep > 1:
        return held_shape(parameter, family, num_shards_of(family))
    return first_shard(parameter.shape, num_shards_of(family))


def _held(job: Job, family: Family | None) -> tuple[Sequence[Updated], Sequence[Updated]]:
    """List what trains, as a device holds it and as it updates it."""
    if family is not None and family.ep > 1 and job.adapter is None:  # it has some of the experts
        held = updated_of_all(job, family, num_shards_of(family))
        return held, held
    whole = trained_parameters(job, 1 if family is None else family.tp)
    if family is None:
        return whole, whole
    updated = list(chain(*updated_apart(job, family, (), whole, num_shards_of(family))))
    return (updated if family.gathers else whole), updated


def _frozen_sizes(job: Job, family: Family | None) -> Iterator[int]:
    """Yield the sizes of a frozen base that no file holds; quantised copies are made anew."""
    if job.adapter is None or job.weights is not None:
        return
    element, is_quantized = frozen_element(job), job.adapter.base in QUANTIZED
    blocks = {id(run.parameters) for run in layout_of(job.model).blocks}
    for group, times in parts(layout_of(job.model)):
        for parameter in group:
            if is_quantized and id(group) in blocks and parameter.kind in PACKED:
                continue
            wide = parameter.kind == "norm" and job.adapter.upcast == "norms"
            size = prod(_share(parameter, family))
            yield from [size * (FP32_BYTES if wide else element)] * times


def _state_sizes(job: Job, updated: Sequence[Updated]) -> Iterator[int]:
    """Yield the sizes of the optimizer's state, a master first where there is one."""
    recipe, settings = trained_recipe(job), settings_of(job, CPU)
    every, state = tuple(chain(*groups_of(updated))), OPTIMIZERS[job.optimizer].state
    sizes = {}
    for each in set(every):  # blocks are alike: a few shapes are all there are
        kept = (one.num_bytes(settings.num_bytes) for one in state(each, settings))
        sizes[each] = (*((each.num * recipe.master,) if recipe.master else ()), *kept)
    for each in every:
        yield from sizes[each]


def pinned_bytes(sizes: Sequence[int]) -> int:
    """Return what copies in pinned memory take: each block is a power of two.

    Source: ``CachingHostAllocator.h``, ``PowerOf2Ceil``; the blocks are kept for later copies.
    """
    return sum(num << (size - 1).bit_length() for size, num in Counter(sizes).items() if size)


_ALIGNMENT = 64
_AROUND_TENSOR = 1577
"""Of ``torch.save`` (2.13) around a tensor, up to the next multiple of 64: a zip archive with seven
entries. Measured; exact for names of entries and shapes as they are here."""
_METADATA_BYTES = 400
"""Of DCP's ``.metadata`` for each tensor: where it lies, its shape, type and name. About."""
_MANIFEST_BYTES = 6000
"""Of ``checkpoint.json``, which holds the plan. About."""


def disk_bytes(sizes: Sequence[int], *, num_shards: int) -> int:
    """Return the bytes of a checkpoint's files.

    ``num_shards``: pieces that each is written in, one by each device.

    Known error: below 1 % from a few MB on; names and the plan have lengths of their own, and of

    shards the few that all hold alike (counts of steps) are counted for each.
    """
    each = [-(-size // num_shards) for size in sizes]
    pieces = sum(size // _ALIGNMENT * _ALIGNMENT + _AROUND_TENSOR for size in each) * num_shards
    return pieces + len(sizes) * num_shards * _METADATA_BYTES + _MANIFEST_BYTES
