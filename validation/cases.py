"""What evidence is made of: a case is run as it stands here."""

from typing import Literal

import msgspec

from brimful.values.job import Job
from brimful.values.strategy import Strategy

Kernels = Literal["cpu", "cuda"]


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is run, in full: it can be run again from this alone."""

    job: Job
    strategy: Strategy
    kernels: Kernels
