"""What a job would gain from what only its owner may allow, each searched anew."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from brimful.cost.formula import told_beside
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.offers import Offer, offers
from brimful.search.offloading import solve_offloading
from brimful.search.pins import Pins
from brimful.search.table import Objective
from brimful.units import format_bytes, format_seconds, format_signed_percent
from brimful.values.job import check_job
from brimful.values.plan import Estimate, Plan
from brimful.values.strategy import Attention, Strategy


class Gain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one permission would bring.

    Attributes:
        allow: What would have to be allowed, as it is typed: ``--optimizer adamw-8bit``.
        price: What it changes.
        strategy: The best then; None: unknown.
        peak_bytes: Its predicted peak; None: unknown.
        step_s: Its predicted seconds per step; None: unknown.
        fits: Whether it fits; None: unknown.
        words: Against the plan, or why it is unknown.
    """

    allow: str
    price: str
    strategy: Strategy | None
    peak_bytes: int | None
    step_s: float | None
    fits: bool | None
    words: str


class Search(NamedTuple):
    """How the plan was searched for, so that every offer is searched for alike.

    Attributes:
        cluster: On what.
        pins: What the user fixed.
        attention: How the model attends in the plan.
        objective: What is made least.
        also: More that may be fixed instead.
        usual: How it attends where nobody says, of which others are searched; None: the user said.
    """

    cluster: Cluster
    pins: Pins
    attention: Attention
    objective: Objective
    also: Sequence[Pins] = ()
    usual: Attention | None = None


def gains(plan: Plan, search: Search) -> tuple[Gain, ...]:
    """Search again under each permission that the job does not give.

    ``plan``: what was found without. Returns 8-bit AdamW, LoRA, QLoRA and pure bf16, those that the
    job has already left out.
    """
    return tuple(_gain(offer, plan, search) for offer in offers(plan.job))


def _gain(offer: Offer, plan: Plan, search: Search) -> Gain:
    try:
        check_job(offer.job)
        found = solve_offloading(
            offer.job,
            search.cluster,
            search.pins,
            attention=search.attention,
            objective=search.objective,
            also=search.also,
        ).plan
    except (UnsupportedError, InputError) as error:
        return _unknown(offer, str(error))
    assert found.estimate is not None
    return Gain(
        allow=offer.allow,
        price=offer.price,
        strategy=found.strategy,
        peak_bytes=found.estimate.predicted_peak_allocated_bytes,
        step_s=found.estimate.predicted_step_s,
        fits=found.estimate.fits,
        words=_compared(found.estimate, plan.estimate),
    )


def _unknown(offer: Offer, why: str) -> Gain:
    return Gain(
        allow=offer.allow,
        price=offer.price,
        strategy=None,
        peak_bytes=None,
        step_s=None,
        fits=None,
        words=f"unknown: {told_beside(why)}",
    )


def _compared(found: Estimate, plan: Estimate | None) -> str:
    if not found.fits:
        short = format_bytes(found.predicted_peak_allocated_bytes - found.usable_bytes)
        return f"would still be short by {short}"
    time_s = found.predicted_step_s
    if plan is None or not plan.fits:
        return "would fit" + (f", {format_seconds(time_s)} a step" if time_s is not None else "")
    delta = found.predicted_peak_allocated_bytes - plan.predicted_peak_allocated_bytes
    size = f"{format_bytes(abs(delta))} {'more' if delta > 0 else 'less'}"
    if time_s is None or plan.predicted_step_s is None:
        return size
    return f"{format_signed_percent(time_s, plan.predicted_step_s)} time, {size}"
