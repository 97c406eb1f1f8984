"""``brimful rules``: rules of thumb beside our numbers, for one model on one GPU."""

import argparse
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from brimful.cli import defaults, flags, parsing, resolved, usual
from brimful.cli.output import show, show_answer, show_facts, show_json, show_summary
from brimful.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brimful.hardware.cluster import Cluster
    from brimful.rules.base import Checked
    from brimful.rules.subject import Subject
    from brimful.show.summary import Fact
    from brimful.values.job import Job
    from brimful.values.plan import Plan
    from brimful.values.strategy import Attention

HELP = "check the rules of thumb that circulate on your model and GPU, each with a verdict"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    flags.add_model(parser)
    flags.add_job(parser)
    parser.add_argument(
        "--micro-batch",
        metavar="N",
        type=parsing.whole("--micro-batch"),
        help=f"sequences a forward pass, in every check; default {defaults.MICRO_BATCH}",
    )
    parser.add_argument(
        "--about",
        metavar="TEXT",
        help="the rules that have this in their words or names, each with its reason",
    )
    flags.add_verbose(parser)
    parser.set_defaults(is_searched=True)
    parser.set_defaults(attention=None)  # checks choose theirs; the rest takes the usual one
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Check and print."""
    from brimful.rules.subject import Subject, plain_strategy
    from brimful.rules.table import check_rules

    job, cluster = resolved.job_from(args), resolved.cluster_from(args)
    attention = usual.attention_from(args, job, cluster.device)
    alone = msgspec.structs.replace(
        cluster, num_devices=1, num_nodes=1, devices_per_node=1, link="", network=""
    )
    micro_batch = defaults.MICRO_BATCH if args.micro_batch is None else args.micro_batch
    plan, why_none = _planned(args, job, cluster, attention)
    about = args.about or ""
    subject = Subject(job, alone, plain_strategy(micro_batch, attention), plan)
    rows = tuple(row for row in check_rules(subject) if _is_about(row, about))
    if about:
        rows = tuple(sorted(rows, key=lambda row: -_how_much(row, about)))
    if not rows:
        raise _no_rule(about)
    if args.json:
        verdicts = Counter(row.verdict for row in rows)
        content = {"schema": "brimful.rules/1", "num_rules": len(rows), "verdicts": verdicts}
        asked = {"rules": rows, "job": job, "cluster": cluster, "strategy": subject.strategy}
        show_json({**content, **asked, "plan": _plan_json(plan)})
        return 0
    from brimful.show.rules import asked_about, misfit_facts, rule_facts, rules_summary
    from brimful.show.summary import Fact

    summary = rules_summary(rows, job, cluster, about=about)
    if about:
        own = asked_about(rows, about)
        why = _cause(own[0].key, subject)
        show_summary(summary._replace(facts=(*misfit_facts(plan), *summary.facts[:2])))
        show_facts(*why, *rule_facts(rows, about))
    else:
        more = "-v prints every rule with its reason, --about 16 those with that in their words"
        facts = (*misfit_facts(plan), *summary.facts)
        show_answer(summary._replace(facts=facts), [Fact("next", more)])
    if args.verbose:
        show("", *_tables(cluster, subject, why_none, rows))
    return 0


def _cause(key: str, subject: "Subject") -> "tuple[Fact, ...]":
    """Say why the technique that a rule is about does what it does."""
    from brimful.rules.causes import cause_of
    from brimful.show.summary import Fact

    try:
        words = cause_of(key, subject)
    except (InputError, UnsupportedError):
        return ()
    return (Fact("because", words),) if words else ()


def _is_about(row: "Checked", text: str) -> bool:
    """Whether a rule has every word of a text in its own, whatever their order."""
    from brimful.show.rules import has_words

    return has_words(f"{row.key} {row.group} {row.statement} {row.stated} {row.says}".lower(), text)


def _how_much(row: "Checked", text: str) -> float:
    """Return what rules are sorted by: those that hold, and the shortest statements."""
    words = f"{row.statement} {row.says}".lower()
    share = sum(words.count(each) * len(each) for each in text.lower().split()) / len(words)
    return share + (row.verdict == "holds")


def _no_rule(text: str) -> InputError:
    """Say what rules are about, and answer with all of them."""
    from brimful.rules.table import RULES

    groups = dict.fromkeys(rule.group for rule in RULES)
    return InputError(
        f"--about {text!r}: no rule has that in its words; they are about {'; '.join(groups)}",
        nearest={"about": None},
    )


def _tables(
    cluster: "Cluster", subject: "Subject", why_none: str, rows: "Sequence[Checked]"
) -> "tuple[Any, ...]":
    from brimful.hardware.cluster import spelled
    from brimful.report.rules import plan_sentence, rules_tables
    from brimful.report.tables import line_of
    from brimful.report.text import inputs_table

    plan, alone = subject.plan, subject.cluster.name
    said = f"rules are checked on one {alone}; no plan for {spelled(cluster)}: {why_none}"
    said = plan_sentence(cluster, plan) if plan else said
    shown = subject.strategy if plan is None else plan.strategy
    inputs = inputs_table(subject.job, cluster, shown)
    return inputs, "", line_of(said), "", rules_tables(rows)


def _planned(
    args: argparse.Namespace, job: "Job", cluster: "Cluster", attention: "Attention"
) -> "tuple[Plan | None, str]":
    """Plan as ``brimful plan`` does, on every device that was given; or say why no formula can."""
    from brimful.cli.least import spread_at_best, tell_least
    from brimful.cli.on_demand import traced_or_untold
    from brimful.search.pins import Pins, pinned_strategy
    from brimful.search.solve import solve
    from brimful.search.space import needs
    from brimful.values.strategy import default_reference

    pins = Pins(args.micro_batch, None, None, reference=default_reference(job))
    asked = resolved.Asked(job, cluster, pinned_strategy(pins, attention, cluster.num_devices))
    num = cluster.num_devices
    wanted = needs(job, [pins], attention, cluster)
    tell = partial(tell_least, asked, spread_at_best(args, num))
    traced_or_untold(args, asked, wanted, tell)
    try:
        found = solve(job, cluster, pins, attention=attention, objective="time")
    except (InputError, UnsupportedError) as error:
        return None, str(error)
    return found.plan, ""


def _plan_json(plan: "Plan | None") -> dict[str, Any] | None:
    """Return the figures that ``brimful plan`` prints too."""
    if plan is None or plan.estimate is None:
        return None
    names = ("predicted_peak_allocated_bytes", "predicted_step_s", "fits")
    return {"strategy": plan.strategy, **{name: getattr(plan.estimate, name) for name in names}}
