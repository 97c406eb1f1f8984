"""Why a run takes what it takes, by the sections of the report; and what can be taken along."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.cli import resolved
from brimful.cli.main import parse
from brimful.errors import InputError, UnsupportedError, unknown_name
from brimful.export import TARGETS
from brimful.export.given import Exported, Given
from brimful.export.lost import lost_lines
from brimful.report.answer import laid_out
from brimful.report.html import render_report
from brimful.report.ledger_section import ledger_section
from brimful.report.run_folder import RunFolder
from brimful.report.time_sections import breakdown_section, pipeline_section
from brimful.show import markup
from brimful.show.markup import Html
from brimful.text.terminal import forget_notes
from brimful.values.plan import PLAN_SCHEMA, Plan, to_yaml
from brimful.web.models import find_model
from brimful.web.state import INFERENCE, State, arguments
from brimful.web.words import Words

if TYPE_CHECKING:
    from brimful.values.results import Simulation

YAML, REPORT = "plan.yaml", "report"


def plan_of(state: State) -> Plan:
    """Return a question as the plan that it describes.

    Raises BrimfulError: it is refused, or is about no training.
    """
    from brimful.cost.estimate import estimate_or_none

    forget_notes()
    if state.what == INFERENCE:
        raise InputError("what=inference trains nothing, so that there is no plan; choose another")
    model = find_model(state)
    if model.unread:
        raise UnsupportedError(f"{model.unread}; trace it first")
    job, cluster, strategy = asked = resolved.asked(
        parse("estimate", arguments(state, model.argument))
    )
    return Plan(
        schema=PLAN_SCHEMA, job=job, cluster=cluster, strategy=strategy,
        estimate=estimate_or_none(*asked),
    )  # fmt: skip


def reasons(state: State, words: Words) -> Html:
    """Set why a run takes what it takes: savings, decisions, alternatives, time, pipeline."""
    plan = plan_of(state)
    sections = (
        ("ledger", ledger_section(plan)),
        ("tree", _decisions(plan)),
        ("breakdown", breakdown_section(plan.estimate)),
        ("pipeline", pipeline_section(plan)),
    )
    return markup.join(
        markup.section(key, words[f"why.{key}"], body) for key, body in sections if body is not None
    )


def _decisions(plan: Plan) -> Html | None:
    """Set the decision tree and the plan with one switch at another value."""
    from brimful.report.ledger import alternatives_table, decision_lines
    from brimful.search.alternatives import alternatives
    from brimful.search.decide import decide
    from brimful.search.ledger import ledger

    asked = (plan.job, plan.cluster, plan.strategy)
    if plan.estimate is None:
        return None
    try:
        rows, others = ledger(*asked), alternatives(*asked)
    except (InputError, UnsupportedError):
        return None
    tree = markup.bullets(decision_lines(decide(rows, others)))
    return markup.join([tree, *laid_out([alternatives_table(others)])])


def rules(state: State) -> Html:
    """Set the rules of thumb with their verdicts, as ``brimful rules -v`` prints them."""
    from brimful.report.rules import rules_tables
    from brimful.rules.subject import Subject, plain_strategy
    from brimful.rules.table import check_rules

    plan = plan_of(state)
    import msgspec

    alone = msgspec.structs.replace(
        plan.cluster, num_devices=1, num_nodes=1, devices_per_node=1, link="", network=""
    )
    plain = plain_strategy(plan.strategy.micro_batch, plan.strategy.attention)
    subject = Subject(plan.job, alone, plain, plan if plan.estimate else None)
    return markup.join(laid_out([rules_tables(tuple(check_rules(subject)))]))


def taken_along(state: State, target: str) -> Exported:
    """Write a question as what something else takes.

    ``target``: ``plan.yaml``, or a target of ``brimful export``. Raises BrimfulError: there is no
    such target, or it would train something else.
    """
    plan = plan_of(state)
    if target == YAML:
        return Exported(partial(to_yaml, plan))
    if target not in TARGETS:
        raise unknown_name("target", target[:40], (YAML, *TARGETS))
    return TARGETS[target](plan, Given("plan.yaml", "DATA", "runs/first"))


def lost_words(exported: Exported) -> list[str]:
    """Say what a target does not express, a sentence each; the lines of a file are narrower."""
    told: list[str] = []
    for line in lost_lines(exported.lost):
        if line.startswith(" ") and told:
            told[-1] += f" {line.strip()}"
        else:
            told.append(line)
    return told


def report_of(plan: Plan, simulation: "Simulation | None") -> str:
    """Set the page of a plan, as ``brimful report`` writes it; nothing of it was measured."""
    return render_report(folder_of(plan, simulation))


def folder_of(plan: Plan, simulation: "Simulation | None") -> RunFolder:
    """Return a run that was predicted and simulated only."""
    return RunFolder(
        run_dir=Path("brimful-web"), plan=plan, simulation=simulation, measurement=None,
        verdict=None, search=None, train_rows=(), eval_rows=(), expert_rows=(), events=(),
        data=None, commands=(),
    )  # fmt: skip
