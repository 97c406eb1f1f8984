"""What blocks keep for backward and send to the host: how much, as a trace counted the copies.

Source: ``build/offload/activations.py``. Every copy of a micro-batch's forward is there until its
backward, on the host, each in memory of its own. A frozen base that is brought in the same trace is
told apart (``on_host.py``).
"""

from typing import NamedTuple

from brimful.cost.base_copies import NUM_PASSES, base_sizes
from brimful.cost.family import Family, family_dimensions, family_variant
from brimful.cost.profiles import Profile
from brimful.cost.sending import traces_base
from brimful.cost.trajectory import evaluate_terms
from brimful.values.job import Job


class SentActivations(NamedTuple):
    """Of one micro-batch.

    Attributes:
        sizes: Bytes of every copy on the host.
        to_device: Bytes that are copied back.
    """

    sizes: tuple[int, ...] = ()
    to_device: float = 0.0


NOTHING_SENT = SentActivations()


def sent_activations(job: Job, profile: Profile, family: Family) -> SentActivations:
    """Return what one strategy sends; nothing where no block does."""
    if not family.away.activations:
        return NOTHING_SENT
    dims, away = family_dimensions(job, family), family.away
    base = sum(base_sizes(job, away.parameters)) if traces_base(job, away) else 0
    works = [profile.works[run.work] for run in family_variant(job, profile, family).first]
    return SentActivations(
        sizes=tuple(round(evaluate_terms(s, dims)) for work in works for s in work.to_host),
        to_device=sum(evaluate_terms(work.to_device, dims) for work in works) - NUM_PASSES * base,
    )
