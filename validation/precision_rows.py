"""Rows of evidence on the precision doctor."""

from typing import Literal

import msgspec
from cases import Case


class PrecisionRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that was asked of the doctor.

    Attributes:
        what: ``fault``: one was planted; ``healthy``: none was; ``scale``: Inf in scripted steps;
            ``shares``: shares beside fp64.
        label: What was planted, in words.
        case: Into what.
        expected: What must be said: fault, name, kind and, of many processes, the ranks.
        said: What was said first; empty: nothing is wrong.
        num_findings: Said in all.
        difference: Of shares the largest, of loss scales the steps that were not as worked out by
            hand on any process; else 0.
        num_compared: Shares, or steps of all processes.
        holds: Whether it is as it must be.
    """

    what: Literal["fault", "healthy", "scale", "shares"]
    label: str
    case: Case
    expected: str
    said: str
    num_findings: int
    difference: float
    num_compared: int
    holds: bool
