"""``brimful plan``: the fastest strategy that fits, and why."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from brimful.cli import (
    by_deepspeed,
    defaults,
    flags,
    for_program,
    output_paths,
    parsing,
    programs,
    resolved,
)
from brimful.cli.assumed import assumed_facts, fused_facts, limits_json, prices_from
from brimful.cli.compared import compared_facts
from brimful.cli.file_changes import tell_changes
from brimful.cli.limits import add_limits, in_dollars
from brimful.cli.output import (
    DOES_NOT_FIT,
    FITS,
    INTERRUPTED,
    OUT_OF_TIME,
    estimate_json,
    host_may_fit,
    show,
    show_facts,
    show_json,
)
from brimful.cli.page import add_page, write_page
from brimful.cli.plan_told import proven_facts, proven_or_told, show_first, show_proof, summary_of
from brimful.cli.proof import add_proof, word_code
from brimful.cli.run_length import is_length_said
from brimful.cli.searching import no_at_once, pins_from, search
from brimful.cli.sources import show_source, take_gpus, take_model, take_source
from brimful.cli.usual import attention_from
from brimful.cli.ways_out import tell_ways_out
from brimful.errors import InputError
from brimful.text.terminal import say

if TYPE_CHECKING:
    from brimful.search.gains import Search
    from brimful.search.solve import Solution
    from brimful.show.answer import Answer
    from brimful.show.summary import Fact
    from brimful.simulate.proof import Proof, ProofWord
    from brimful.values.plan import Plan, Word

HELP = "find the fastest strategy that fits; a strategy flag pins it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    parser.set_defaults(is_searched=True)
    flags.add_model(parser, optional=True)
    flags.add_job(parser)
    flags.add_strategy(parser, searched=True)
    flags.add_pipeline(parser, searched=True)
    add_objective(parser)
    for_program.add_for(parser, "search what this program can be told, and simulate it")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        type=programs.file_or_refusal("plan"),
        default=None,
        help="settings of DeepSpeed, Accelerate, Axolotl, LitGPT, LLaMA-Factory, ms-swift, "
        "nanotron, torchtitan, torchtune, TRL or transformers' Trainer, or a "
        "shell script: what no flag says",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=output_paths.output_file("-o", suffixes=resolved.PLAN_SUFFIXES),
        default=None,
        help="write the plan here (YAML)",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="also say why: savings switch by switch, a decision tree, what else you could allow",
    )
    parser.add_argument(
        "--pareto",
        action="store_true",
        help="also show what fits and is beaten in both time and peak by nothing",
    )
    add_proof(parser)
    flags.add_prices(parser)
    add_limits(parser)
    add_page(parser)
    flags.add_verbose(parser)
    flags.add_json(parser)


def add_objective(parser: argparse.ArgumentParser) -> None:
    """Add ``--objective`` and ``--budget``, which belong to every verb that searches."""
    from brimful.search.table import Objective

    parser.add_argument(
        "--objective",
        metavar="NAME",
        type=parsing.choice("objective", get_args(Objective)),
        help=f"what to make least: {', '.join(get_args(Objective))} (GPU-seconds, on some of the "
        f"devices or all); default {defaults.OBJECTIVE}",
        default=defaults.OBJECTIVE,
    )
    parser.add_argument(
        "--budget",
        metavar="S",
        type=parsing.whole("--budget"),
        help="seconds after which simulating ends: a search that has no formula, with what it has "
        f"found, or a plan's proof; default {defaults.SEARCH_BUDGET_S}",
        default=defaults.SEARCH_BUDGET_S,
    )


def run(args: argparse.Namespace) -> int:
    """Search and print."""
    from brimful.search.budget import Budget
    from brimful.values.plan import write_yaml

    take_gpus(args)
    take_model(args)
    if args.program == for_program.MEGATRON:
        return programs.run_plan(args)
    in_dollars(args)
    if resolved.is_plan(args.model):
        raise InputError(f"{args.model} already is a plan; give a model to plan for")
    source = take_source(args)
    if (code := _at_once(args, source)) is not None:
        return code
    searched = search(args, budget := Budget(args.budget))
    if args.output is not None:  # before anything is said: a disk may be full
        write_yaml(_as_typed(args, searched.plan), args.output)
    if not args.json:
        show_first(args, searched)
    found, proof = proven_or_told(args, searched, budget)
    if args.output is not None and found.plan != searched.plan:
        write_yaml(_as_typed(args, found.plan), args.output)
    word = _replayed_word(found) if proof is None else proof.word
    # what it traces is told before the answer, where that is still to come
    compared = () if args.json else compared_facts(args, found, search, proof)
    told = () if args.json else show_proof(args, searched, found, proof)
    args.file_changes = tell_changes(args, found, word)
    if not args.json:
        show_facts(*told, *compared)
    out = (
        ()
        if word == "fits"
        else tell_ways_out(args, found, _search_of(args, found.plan), budget, word)
    )
    word = _with_left_out(found, word)
    why = explain(args, found.plan) if args.explain else {}
    if args.json:
        said: dict[str, Any] = {"proof": proof}
        said |= {"from": source, "file_changes": args.file_changes} if source else {}
        said |= for_program.program_json(args, found.plan, is_proven=proof is not None)
        said |= _as_text_says(args, found, proof, word)
        show_json(plan_json(found, out) | said | ({"explain": why} if args.explain else {}))
    else:
        whose = for_program.program_facts(args, found.plan, is_proven=proof is not None)
        facts = (*whose, *(_traced_facts(found) if args.verbose else ()))
        facts = (*facts, *assumed_facts(args, found.plan.job))
        show_facts(*facts, *fused_facts(found.plan.strategy), *_next(args, found, word))
        show_source(args.source, source)
        _show_more(args, found, why)
    if args.page is not None:
        write_page(args, _answer(args, found, proof, word))
    code = exit_code(found)
    return code if word is None or code != FITS else word_code(args, word)


def _as_typed(args: argparse.Namespace, plan: "Plan") -> "Plan":
    """Return a plan with what exports pass on of what was typed: the weights, and how long."""
    typed = str(args.model)
    is_of_hub = typed.count("/") == 1 and not Path(typed).exists()
    return msgspec.structs.replace(
        plan,
        typed_model=typed if is_of_hub else "",
        is_length_given=is_length_said(args),
        asked_tokens=0 if args.tokens is None else int(args.tokens),
    )


def _as_text_says(
    args: argparse.Namespace, found: "Solution", proof: "Proof | None", word: "ProofWord | None"
) -> dict[str, Any]:
    """Return what the text says beside the numbers: the word, hours and money, what comes next."""
    from brimful.cost.money import cost_of

    plan, step_s = found.plan, found.record.rows[0].step_s
    return {
        "verdict": summary_of(args, found, proof).verdict,
        "cost": cost_of(plan.job, plan.cluster, step_s, prices_from(args)),
        "next": [fact.text for fact in _next(args, found, word)],
        **limits_json(args, plan.job, plan.cluster, step_s),
    }


def _answer(
    args: argparse.Namespace, found: "Solution", proof: "Proof | None", word: "ProofWord | None"
) -> "Answer":
    """Put together all that is known in the end, for a page."""
    from brimful.report.text import plan_tables
    from brimful.show.answer import Answer

    return Answer(
        summary_of(args, found, proof),
        (
            *proven_facts(found, proof),
            *for_program.program_facts(args, found.plan, is_proven=proof is not None),
            *_traced_facts(found),
            *assumed_facts(args, found.plan.job),
            *fused_facts(found.plan.strategy),
            *_next(args, found, word),
        ),
        (plan_tables(found.plan, found.record),),
    )


def _traced_facts(found: "Solution") -> "tuple[Fact, ...]":
    from brimful.cli.on_demand import traced_facts

    plan = found.plan
    return traced_facts(resolved.Asked(plan.job, plan.cluster, plan.strategy))


def _next(
    args: argparse.Namespace, found: "Solution", word: "ProofWord | None"
) -> "tuple[Fact, ...]":
    """Say what to do with the plan; nothing with one that does not fit."""
    from brimful.show.summary import Fact

    host = found.plan.estimate.host if found.plan.estimate else None
    fits = found.record.rows[0].fits and word != "no" and host_may_fit(host)
    if args.output is not None:
        told = f"; {_runs_it(args, str(args.output))}" if fits else ""
        return (Fact("next", f"plan written to {args.output}{told}"),)
    if not fits:
        return ()
    if word == "tight" and not args.accept_tight:
        words = "take what would fit, or risk this one: --accept-tight -o plan.yaml"
        return (Fact("next", words),)
    if for_program.is_other(args):
        return (Fact("next", f"add -o plan.yaml; then {_runs_it(args, 'plan.yaml')}"),)
    if found.plan.job.quantization is not None:
        words = "add -o plan.yaml, then brimful train plan.yaml, and brimful convert its folder to"
        return (Fact("next", f"{words} {found.plan.job.quantization.scheme} weights"),)
    return (Fact("next", "add -o plan.yaml, then brimful train plan.yaml, or brimful export"),)


def _runs_it(args: argparse.Namespace, plan: str) -> str:
    if for_program.is_other(args):
        return f"brimful export {plan} --to {args.program} writes its settings"
    return f"brimful train {plan} runs it"


def _with_left_out(found: "Solution", word: "ProofWord | None") -> "ProofWord | None":
    """Return a word as it is where an encoder that is not planned has room too."""
    from brimful.show.left_out import lacking_bytes
    from brimful.show.predicted import meter_of

    plan = found.plan
    if word != "fits" or plan.estimate is None:
        return word
    return "tight" if lacking_bytes(plan.job, plan.strategy, meter_of(plan.estimate)) else word


def _replayed_word(found: "Solution") -> "Word | None":
    """Return whether a plan holds by the replay of its prediction; None: it was not replayed."""
    made = found.plan.estimate
    return made.predicted_reserved.word if made and made.predicted_reserved else None


def _show_more(args: argparse.Namespace, found: "Solution", why: dict[str, Any]) -> None:
    """Print the tables that were asked for."""
    if args.verbose:
        from brimful.report.text import plan_tables

        show("", plan_tables(found.plan, found.record))
    if args.pareto:
        from brimful.cost.estimate import limit_bytes
        from brimful.report.text import strategies_table

        say()
        title = "Pareto set of time and peak (predicted), fastest first"
        usable_bytes = limit_bytes(found.plan)
        show(strategies_table(title, found.frontier, usable_bytes=usable_bytes))
    if args.explain:
        from brimful.report.ledger import explain_tables

        say()
        if why:
            show(explain_tables(*why.values()))
        else:
            say("no formula covers this job, so there is no ledger: brimful simulate traces it")


def exit_code(found: "Solution") -> int:
    """Return what a search ends with; that nothing fits is said only where all was looked at."""
    from brimful.search.record import INTERRUPTED as BY_CTRL_C

    host = found.plan.estimate.host if found.plan.estimate else None
    untried = found.record.untried
    if untried is not None and untried.why == BY_CTRL_C:
        return INTERRUPTED
    if found.record.rows[0].fits and host_may_fit(host):
        return FITS
    return OUT_OF_TIME if untried is not None else DOES_NOT_FIT


def _at_once(args: argparse.Namespace, source: dict[str, Any]) -> int | None:
    """Answer what is not searched; None: it is."""
    if by_deepspeed.is_meant(args, source):
        return by_deepspeed.answer(args, lambda: show_source(args.source, source))
    for_program.narrow(args)
    return no_at_once(args)


def _search_of(args: argparse.Namespace, plan: "Plan") -> "Search":
    from brimful.search.gains import Search

    pins, *also = pins_from(args)
    usual = None
    if args.attention is None:
        usual = attention_from(args, plan.job, plan.cluster.device)
    return Search(plan.cluster, pins, plan.strategy.attention, args.objective, also, usual)


def explain(args: argparse.Namespace, plan: "Plan") -> dict[str, Any]:
    """Return why a plan is what it is; nothing where no formula covers its job."""
    from brimful.search.alternatives import alternatives
    from brimful.search.decide import decide
    from brimful.search.gains import gains
    from brimful.search.ledger import ledger

    if plan.estimate is None:
        return {}
    asked = (plan.job, plan.cluster, plan.strategy)
    rows, others = ledger(*asked), alternatives(*asked)
    return {
        "ledger": rows,
        "decisions": decide(rows, others),
        "alternatives": others,
        "gains": gains(plan, _search_of(args, plan)),
    }


def plan_json(found: "Solution", ways_out: tuple[str, ...]) -> dict[str, Any]:
    """Return a search as the JSON object of DESIGN; what no formula predicts is null."""
    from brimful.cost.estimate import limit_bytes

    plan, record = found.plan, found.record
    asked = resolved.Asked(plan.job, plan.cluster, plan.strategy)
    best, *others = record.rows
    return {
        **estimate_json(asked, plan.estimate, usable_bytes=limit_bytes(plan), fits=best.fits),
        "schema": "brimful.plan-search/1",
        "rung": record.rung,
        "num_considered": record.num_considered,
        "num_fitting": record.num_fitting,
        "untried": record.untried,
        "left_out": record.left_out,
        "best": msgspec.structs.asdict(best),
        "runners_up": [row for row in others if row.fits],
        "rejected": [row for row in others if not row.fits],
        "pareto": found.frontier,
        "ways_out": ways_out,
    }
