"""What looking at a program has come to, as a value. No torch."""

import msgspec

from brimful.doctor.advice import BAD_SHARE, Advice
from brimful.doctor.findings import Finding
from brimful.doctor.seen import Seen
from brimful.values.job import Job
from brimful.values.strategy import Strategy

PRECISION_SCHEMA = "brimful.precision/1"


class ExamineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How closely a run is looked at.

    Attributes:
        num_steps: Steps that are run, from the first one on.
        every: Steps from one that is watched to the next.
        bad_share: Steps that may overflow at the initial loss scale that is advised.
    """

    num_steps: int = 10
    every: int = 3
    bad_share: float = BAD_SHARE


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a program, what is wrong with it, and what to do.

    Attributes:
        schema: ``PRECISION_SCHEMA``.
        job: That was run.
        strategy: How.
        settings: How closely it was looked at.
        losses: Of every step, in nats; None where it was no number.
        grad_norms: Of every step; None where it was no number.
        seen: Everything that was counted.
        findings: What is wrong, the first cause first; empty where all is well.
        advice: What to do.
    """

    schema: str
    job: Job
    strategy: Strategy
    settings: ExamineSettings
    losses: tuple[float | None, ...]
    grad_norms: tuple[float | None, ...]
    seen: Seen
    findings: tuple[Finding, ...]
    advice: tuple[Advice, ...]
