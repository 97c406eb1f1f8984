"""The answer to ``rules``: which rules of thumb hold for a job, those of its method first."""

import re
from collections import Counter
from collections.abc import Sequence

from brimful.cost.states import held_bytes
from brimful.hardware.cluster import Cluster
from brimful.models.names import has_experts
from brimful.rules.base import Checked, verdict_words
from brimful.rules.calculators import GROUP as CALCULATORS
from brimful.rules.memory import ADAPTERS, FULL, MOE
from brimful.rules.subject import num_parameters
from brimful.show.predicted import subject_words
from brimful.show.summary import Fact, Summary
from brimful.units import format_bytes
from brimful.values.job import Job
from brimful.values.plan import Plan

NUM_TOLD = 4
"""Rules that are told in a line each."""
_SAID = {
    "holds": ("holds", "hold"),
    "holds only when": ("holds only under a condition", "hold only under a condition"),
}
"""A verdict of one rule, and of several; any other follows a verb: ``is wrong``."""


def rules_summary(rows: Sequence[Checked], job: Job, cluster: Cluster, *, about: str) -> Summary:
    """Say what was found, what a parameter takes first.

    ``rows``: what the checks found, of every rule or of those that were asked about. ``about``:
    what was asked about; empty: everything.
    """
    rows = asked_about(rows, about)
    counts = Counter(row.verdict for row in rows)
    said = ", ".join(f"{num} {_words(word, num)}" for word, num in counts.items())
    told = sorted(rows, key=lambda row: _rank(row, job))
    facts = [
        Fact("states", _states(job)),
        Fact(
            "verdicts",
            f"of {len(rows)} rule{'s' * (len(rows) != 1)}{f' on {about!r}' * bool(about)} "
            f"{said or 'none'}",
        ),
    ]
    if cluster.num_devices > 1:
        facts.append(Fact("checked", "on one of them; rules of several on the best plan for all"))
    for row in told[:NUM_TOLD]:
        words = f"{row.statement}: {row.says}, here {row.ours}"
        facts.append(Fact(_LABELS.get(row.verdict, "unknown"), words))
    return Summary(None, f"rules of thumb, {subject_words(job, cluster)}", None, tuple(facts))


def _words(verdict: str, num: int) -> str:
    """Say a verdict of one rule or of several."""
    one, several = _SAID.get(verdict, (f"is {verdict}", f"are {verdict}"))
    return one if num == 1 else several


_LABELS = {"holds": "holds", "holds only when": "in part", "wrong": "wrong"}


def _states(job: Job) -> str:
    """Say how many bytes a parameter takes between steps: of this job, and of full training."""
    num, held = num_parameters(job), held_bytes(job)
    words = f"{held / num:.2f} bytes a parameter, {format_bytes(held)} of {num / 1e9:.2f}B of them"
    if job.adapter is not None:
        words += f": {job.method} trains few; rules of 16 bytes are of training all"
    return words


def _rank(row: Checked, job: Job) -> tuple[int, float]:
    """Order rules: of the job's own method, then others by how far they are off."""
    own = {ADAPTERS} if job.adapter is not None else {FULL, CALCULATORS}
    own |= {MOE} if has_experts(job.model.hf_config) else set()
    first = 0 if row.group in own else 1
    return first, -abs(row.error or 0.0)


def rule_facts(rows: Sequence[Checked], about: str) -> tuple[Fact, ...]:
    """Say of rules that were asked about what was found, and why; of others that they are there.

    ``rows``: those that have what was asked about in their words. ``about``: what was asked about.
    A rule is about that where its statement says so.
    """
    own = asked_about(rows, about)
    facts = [
        Fact(
            _LABELS.get(row.verdict, "unknown"),
            f"{row.statement}: {row.says}. Here: {row.ours}. {verdict_words(row)}: {row.why} "
            f"({row.key})",
        )
        for row in own
    ]
    others = [row.key for row in rows if row not in own]
    if others:
        facts.append(Fact("see too", f"{', '.join(others)}: --about with one of these"))
    return tuple(facts)


def asked_about(rows: Sequence[Checked], about: str) -> list[Checked]:
    """Return the rules that are about something, and not those that only name it too.

    ``about``: what was asked about: what statements begin with it say something of, where any do.
    """
    words = about.lower().split()
    own = [row for row in rows if has_words(_head(row), about)] or list(rows)
    first = [row for row in own if words and row.statement.lower().startswith(words[0])]
    return [row for row in own if has_phrase(row, about)] or first or own


def misfit_facts(plan: Plan | None) -> tuple[Fact, ...]:
    """Say that the job does not fit there, which rules are checked on all the same.

    ``plan``: the best for it; None: nobody knows of any.
    """
    made = None if plan is None else plan.estimate
    if made is None or made.fits:
        return ()
    peak, short = made.predicted_peak_allocated_bytes, made.predicted_peak_allocated_bytes
    short -= made.usable_bytes
    words = (
        f"NO: {format_bytes(peak)} at least of {format_bytes(made.usable_bytes)}, short by "
        f"{format_bytes(short)}; rules are checked as if there were more"
    )
    return (Fact("fits", words),)


def has_words(text: str, about: str) -> bool:
    """Whether a text has every word that was asked about, a number as one: 16 is not in fp16."""
    return all(
        re.search(rf"(?<![\w.]){each}(?![\w.])", text) if each.isdigit() else each in text
        for each in about.lower().split()
    )


def has_phrase(row: Checked, about: str) -> bool:
    """Whether a rule's own figure is what was asked about: ``16 bytes``, spelt ``16 B`` too."""
    first, *others = _short_units(about).split() or [""]
    figures = _short_units(f"{row.statement} {row.stated} {row.says}")
    asked = re.escape(" ".join((first, *others)))
    return first.isdigit() and bool(others) and bool(re.search(rf"(?<![\w.]){asked}\b", figures))


def _short_units(text: str) -> str:
    return re.sub(r"\bbytes?\b", "b", text.lower())


def _head(row: Checked) -> str:
    """Return what says of a rule what it is about."""
    return f"{row.key} {row.statement}".lower()
