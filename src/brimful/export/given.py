"""What a target needs beside a plan, and the lines that every target begins with."""

from textwrap import wrap
from typing import NamedTuple

from brimful.cost.estimate import limit_bytes
from brimful.plan import Plan
from brimful.report.words import fit_sentence, plan_words

_WIDTH = 96


class Given(NamedTuple):
    """What the user said beside the plan.

    Attributes:
        plan: The plan's file.
        data: What it is trained on, as ``--data`` takes it.
        out: The run's folder.
    """

    plan: str
    data: str
    out: str


def header(plan: Plan, to: str) -> list[str]:
    """Say in comments what the plan is, and what it is predicted to take.

    Args:
        plan: The plan.
        to: The target.
    """
    devices = f"{plan.cluster.num_devices} x {plan.cluster.device.name}"
    lines = [f"brimful export --to {to}: {plan.job.model.name} on {devices}"]
    lines += wrap(plan_words(plan), _WIDTH)
    if plan.estimate is None:
        lines.append("no formula covers it: brimful simulate says what it takes")
    else:
        peak = plan.estimate.predicted_peak_allocated_bytes
        lines.append(f"predicted: {fit_sentence(peak_bytes=peak, usable_bytes=limit_bytes(plan))}")
    return [f"# {line}" for line in lines]
