"""What a strategy asks of the allocator, request by request: the sequence behind its live bytes.

``trajectory.py`` adds changes of live bytes up; here each is an allocation or the end of one, so
that the caching allocator can be replayed (decision 53). Compared with the simulation's requests by
``tests/cost/test_requests.py`` and, on drawn jobs, by ``validation/reserved_part.py``.

A run is loading, the optimizer's state and two steps of as many micro-batches as differ.
"""

from collections.abc import Mapping, Sequence

from brimful.allocator.replay import Requests
from brimful.cost.asked import Asked
from brimful.cost.family import Family, family_counts, family_of
from brimful.cost.flat_made import begin, flatten
from brimful.cost.memory import Alter, Step, family_steps, profile_for, step_sizes, unaltered
from brimful.cost.micro_batch import MicroBatch, Work, marked_bytes, sizes_in
from brimful.cost.piece_tensors import Tensors, piece_tensors
from brimful.cost.profiles import Mark
from brimful.cost.reference_requests import reference_made, reference_of
from brimful.cost.resident import loaded, num_shards_of, optimizer_state, updated_groups_of
from brimful.cost.row_sums import RowSums, chips_of, row_sums
from brimful.cost.shards import piece_bytes
from brimful.cost.states import states_of, updates_of
from brimful.cost.trained import trained_parts
from brimful.cost.trajectory import middles
from brimful.cost.update import transients, updater_of
from brimful.hardware.cluster import Device
from brimful.values.job import Job
from brimful.values.strategy import Strategy

NUM_STEPS = 2
"""The first fills the allocator's cache, the second finds it full; later ones are like that."""


def requests_of(job: Job, strategy: Strategy, device: Device) -> Requests:
    """Return what a strategy asks of a device's allocator, in bytes; see ``asked_of``."""
    return asked_of(job, strategy, device).requests()


def asked_of(
    job: Job,
    strategy: Strategy,
    device: Device,
    alter: Alter = unaltered,
    *,
    is_state_late: bool = False,
) -> Asked:
    """Follow a strategy from loading to the end of its second step.

    ``strategy``: how; it has a formula, and no pipeline. ``device``: on what; its kernels are
    CUDA's. ``alter``: what another program does instead in a micro-batch. ``is_state_late``:
    whether optimizer state comes in the first update, as in torch, and not before the first step,
    as in ours: behind what the cache keeps of a step.
    """
    family = family_of(job, strategy)
    profile = profile_for(job, strategy.attention, device, family)
    asked = Asked(leaves=family.away.optimizer)
    held = states_of(job, family, updates_of(job, family, device), device.kernels)
    asked.make(loaded(job, family, held))
    if family.is_flat:
        flatten(asked, job, num_shards_of(family))
    asked.make(reference_made(job, family))
    if not is_state_late:
        asked.make(optimizer_state(job, family))
    steps = [alter(step) for step in family_steps(job, profile, family)]
    marked = marked_bytes(job, family, device, profile)
    sums = row_sums(job, family, chips_of(job, device))
    reference = reference_of(job, family, strategy.attention, device, sums)
    works = works_of(job, family, steps, marked, sums, opens=reference is None)
    if family.is_flat:
        begin(asked, job, num_shards_of(family))
    for step in range(NUM_STEPS):
        for batch, every in works:
            if reference is not None:
                reference.ask(asked, marked)
            batch._replace(marked=marked).ask(asked, every)
            marked = {"embedding": marked["embedding"]}  # libraries keep what they have
        if is_state_late and step == 0:
            asked.make(optimizer_state(job, family))
        updater = updater_of(device, num_shards_of(family))
        for group in () if family.away.optimizer else updated_groups_of(job, family):
            for bucket in transients(job, updater, group):
                asked.pass_by(bucket)
        asked.drop_gradients()
    return asked


def works_of(  # noqa: PLR0913 - what a micro-batch is made of
    job: Job,
    family: Family,
    steps: Sequence[Step],
    marked: Mapping[Mark, int],
    sums: RowSums,
    *,
    opens: bool = True,
    lends: bool = False,
) -> list[tuple[MicroBatch, tuple[Work, ...]]]:
    """Return what micro-batches that differ ask for.

    ``steps``: their runs. ``opens``: whether the first product of all is in their forward.
    ``lends``: whether another stream uses gradients that are on their way.
    """
    counts, pieces = family_counts(job, family), _pieces(job, family)
    sizes = step_sizes(job, [*steps], family, by_item=False)
    found = list[tuple[MicroBatch, tuple[Work, ...]]]()
    for (profile, runs), mine in zip(steps, sizes, strict=True):
        sizes_of = sizes_in(job, family, profile, mine[0, :, 0])
        batch = MicroBatch(profile, sizes_of, middles(counts, runs), pieces, marked, sums, lends)
        found.append((batch, batch.works_of(runs, opens=opens)))
    return found


def _pieces(job: Job, family: Family) -> dict[int, Tensors]:
    if not family.is_spread or not family.gathers:
        return {}
    parts = trained_parts(job, family.tp, apart=family.ep > 1)
    return piece_tensors(job, family, parts, piece_bytes(job, family)[:, 0])
