"""What a preference task's reference asks of the allocator: its weights, and a forward a batch.

Compared with the simulation's requests by ``tests/cost/test_preference.py``. Known error: under
autocast and in 4 bits the forward has adapters too, which a reference has not (up to 1 %).
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from brimful.cost.asked import Asked
from brimful.cost.family import Family, family_counts, family_dimensions
from brimful.cost.micro_batch import MicroBatch, Work, sizes_in
from brimful.cost.preference import judging, runs_reference
from brimful.cost.profiles import Mark
from brimful.cost.resident import Made, base_alone
from brimful.cost.row_sums import RowSums
from brimful.cost.trajectory import kind_bytes, middles
from brimful.hardware.cluster import Device
from brimful.values.job import Job
from brimful.values.strategy import Attention

_OWN = 1
"""The reference's rows are apart from those of the model that trains, which are 0."""


class Reference(NamedTuple):
    """A reference's forward.

    Attributes:
        batch: What its events are made of.
        works: Of its runs.
    """

    batch: MicroBatch
    works: tuple[Work, ...]

    def ask(self, asked: Asked, marked: Mapping[Mark, int]) -> None:
        """Ask for what one micro-batch takes, of which nothing stays.

        ``asked``: what was asked for before. ``marked``: bytes of what is marked.
        """
        asked.enter(0, _OWN)
        self.batch._replace(marked=marked).ask(asked, self.works)
        asked.leave()
        asked.enter(0, 0)


def reference_made(job: Job, family: Family) -> Iterator[Made]:
    """Yield what a reference holds on the device from the start to the end."""
    if family.reference == "resident":
        yield from base_alone(job)


def reference_of(
    job: Job, family: Family, attention: Attention, device: Device, sums: RowSums
) -> Reference | None:
    """Return the forward that goes before every micro-batch; None where none does."""
    if not runs_reference(family.reference):
        return None
    plain = family._replace(body="plain", num_blocks=0, recompute="full")
    profile, runs = judging(job, plain, attention, device)
    sizes = sizes_in(job, plain, profile, kind_bytes(profile, family_dimensions(job, plain)))
    middle = middles(family_counts(job, plain), runs)
    batch = MicroBatch(profile, sizes, middle, {}, {}, sums)
    return Reference(batch, batch.works_of(runs))
