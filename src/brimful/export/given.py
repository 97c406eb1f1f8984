"""What a target needs beside a plan, what it becomes, and the lines that it begins with."""

from collections.abc import Callable, Iterable, Mapping
from textwrap import wrap
from typing import Any, NamedTuple

from brimful.export.lost import Lost, lost_lines
from brimful.export.rows import Rows, length_words
from brimful.report.words import plan_words
from brimful.show.predicted import meter_of, verdict_of
from brimful.show.summary import on_each
from brimful.techniques.kernel_support import Place, why_not_simulated
from brimful.text.escaping import comments, shell_words, yaml_text
from brimful.values.plan import Plan

_WIDTH = 96


class Given(NamedTuple):
    """What the user said beside the plan.

    Attributes:
        plan: The plan's file.
        data: What it is trained on, as ``--data`` takes it.
        out: The run's folder.
        rows: What is in the data; None: unknown.
        written: What the text runs into, where it does not say all of the plan; empty: the same.
    """

    plan: str
    data: str
    out: str
    rows: Rows | None = None
    written: str = ""


class Exported(NamedTuple):
    """What a plan became.

    Attributes:
        spell: Writes the text for the target: of many plans only what is lost is asked.
        lost: What the text does not say of the plan, or says in part.
        settings: What a file of keys says; None: the text is of another kind.
    """

    spell: Callable[[], str]
    lost: tuple[Lost, ...] = ()
    settings: Mapping[str, Any] | None = None

    @property
    def text(self) -> str:
        """What the target takes."""
        return self.spell()


def in_yaml(  # noqa: PLR0913 - what a file says, and what is said of it
    plan: Plan,
    given: Given,
    to: str,
    content: Mapping[str, Any],
    lost: tuple[Lost, ...],
    *,
    use: str = "",
) -> Exported:
    """Return a target's settings as YAML, under the lines that say what the plan is.

    ``lost``: what they do not say. ``use``: how they are used, in words; empty: as the target's own
    of this kind are.
    """

    def spell() -> str:
        said = (*header(plan, given, to, lost), *comments(wrap(use, _WIDTH)))
        return "\n".join([*said, yaml_text(content)])

    return Exported(spell, lost, content)


def header(plan: Plan, given: Given, to: str, lost: Iterable[Lost] = ()) -> list[str]:
    """Say in comments what the plan is, what it is predicted to take, and what is lost.

    ``lost``: what the target does not say.
    """
    return comments((*about(plan, given, to), *lost_lines(lost)))


def about(plan: Plan, given: Given, to: str) -> list[str]:
    """Say what the plan is and what it is predicted to take, in lines."""
    devices = f"{plan.cluster.num_devices} x {plan.cluster.device.name}"
    lines = [f"brimful export --to {to}: {plan.job.model.name} on {devices}"]
    lines += wrap(plan_words(plan), _WIDTH)
    lines += wrap(length_words(plan, given.rows), _WIDTH)
    if plan.estimate is None:
        lines += _unpredicted(plan, given)
    else:
        cluster = plan.cluster
        meter = on_each(meter_of(plan.estimate), cluster.num_devices, cluster.device.kernels)
        planned = "as planned " if given.written else ""
        lines.append(f"{planned}{verdict_of(plan.estimate)}, {meter.label}: {meter.words}")
        lines += wrap(given.written, _WIDTH)
    return lines


def _unpredicted(plan: Plan, given: Given) -> list[str]:
    """Say what tells what a plan takes that no formula covers: a command that takes the plan."""
    device = plan.cluster.device
    place = Place(device.kernels, device.capability)
    if why := why_not_simulated(plan.job, plan.strategy, place):
        return wrap(f"no formula covers it: {why}", _WIDTH)
    # On one line, whatever the file is called: it is there to be copied.
    return [f"no formula covers it; what it takes: brimful simulate {shell_words([given.plan])}"]
