"""``brimful estimate``: what arithmetic says of one strategy."""

import argparse
import sys
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from brimful.cli import flags, inference, programs, resolved
from brimful.cli.assumed import assumed_facts, fused_facts, limits_json, prices_from, run_of
from brimful.cli.limits import add_limits, in_dollars, refuse_limits, unchecked_facts
from brimful.cli.output import DOES_NOT_FIT, FITS, estimate_json, host_may_fit, show_json, tell
from brimful.cli.page import add_page
from brimful.show.summary import Fact
from brimful.text.terminal import say

if TYPE_CHECKING:
    from brimful.cost.money import Cost
    from brimful.show.answer import Answer
    from brimful.show.estimate import Around
    from brimful.show.summary import Verdict
    from brimful.values.plan import Estimate

_WAY_LABELS = frozenset({"would fit", "instead", "or allow", ""})
WAY_FITS = " would fit"
"""What follows the flags of a way out."""
HELP = "predict peak memory and step time of one strategy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    flags.add_model(parser, optional=True)
    flags.add_job(parser)
    flags.add_strategy(parser, searched=False)
    inference.add_arguments(parser)
    programs.add_arguments(parser)
    flags.add_prices(parser)
    add_limits(parser)
    add_page(parser)
    flags.add_verbose(parser)
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Estimate and print."""
    programs.check_alone(args, "estimate")
    if args.source is not None:
        return programs.run_estimate(args)
    if inference.is_asked(args):
        refuse_limits(args, f"--task {inference.TASK} trains nothing")
        return inference.run_estimate(args)
    in_dollars(args)
    from brimful.cli import no_gpu

    if no_gpu.is_asked(args):
        by_method, told = no_gpu.answer(args)
        unchecked = unchecked_facts(args, "no GPU was named; add --gpus")
        tell(args, lambda: told._replace(facts=(*unchecked, *told.facts)))
        return by_method
    from msgspec.structs import replace

    from brimful.cli.least import no_by_states, spread_of, tell_least
    from brimful.cli.on_demand import traced_or_untold
    from brimful.cost.estimate import estimate
    from brimful.cost.needed import needed
    from brimful.cost.reserved import predicted_reserved
    from brimful.show.left_out import judged_with
    from brimful.show.predicted import meter_of, verdict_of

    asked = resolved.asked(args)
    needs, spread = needed(asked.job, asked.strategy), spread_of(asked.strategy)
    if (code := no_by_states(args, asked, needs, spread)) is not None:
        return code
    untold = traced_or_untold(args, asked, needs, partial(tell_least, asked, spread))
    is_simulated = asked.strategy.engine == "torch" and find_spec("torch") is not None
    if untold and is_simulated and not args.json:
        return _simulated(args, untold)
    predicted = replace(estimate(*asked), predicted_reserved=predicted_reserved(*asked))
    cost = _cost(args, asked, predicted)
    verdict = verdict_of(predicted)
    verdict = judged_with(verdict, asked.job, asked.strategy, meter_of(predicted))
    if args.json:
        content = estimate_json(
            asked, predicted, usable_bytes=predicted.usable_bytes, fits=verdict == "FITS"
        )
        content |= _said(args, asked, predicted)
        content |= limits_json(args, asked.job, asked.cluster, predicted.predicted_step_s)
        show_json(content if cost is None else {**content, "cost": cost})
    tell(args, lambda: _answer(args, asked, predicted, cost))
    return FITS if verdict == "FITS" and host_may_fit(predicted.host) else DOES_NOT_FIT


def _said(
    args: argparse.Namespace, asked: resolved.Asked, predicted: "Estimate"
) -> dict[str, object]:
    """Return what the text says beside the numbers: the word, why, and what would make it fit."""
    from brimful.cli.fixes import NO_FIXES, fixes_of
    from brimful.cli.on_demand import trace_leaner
    from brimful.search.beside import beside
    from brimful.search.typed import fix_words
    from brimful.show.beside import WOULD_FIT
    from brimful.show.estimate import verdict_and_host
    from brimful.show.predicted import meter_of, tight_facts, verdict_of

    verdict, host = verdict_and_host(asked.cluster, predicted)
    fixes = NO_FIXES
    if verdict_of(predicted) != "FITS":
        trace_leaner(args, asked)
        fixes = fixes_of(asked, beside(*asked))
    reasons = [f"{each.label} {each.words}" for each in (host,) if each is not None]
    if verdict == "NO" and not reasons:
        reasons = [f"memory {meter_of(predicted).words}"]
    reasons += [fact.text for fact in tight_facts(predicted.predicted_reserved)]
    ways = []
    for fact in fixes.facts:
        if fact.label not in _WAY_LABELS:  # what it needs at least, or what was not tried
            reasons.append(f"{fact.label} {fact.text}")
            continue
        typed, found, _ = fact.text.partition(WAY_FITS)
        typed = typed if found and typed.startswith("--") else ""
        if fact.label == WOULD_FIT and fixes.found is not None:
            typed = fix_words(asked.job, asked.strategy, fixes.found.strategy)
        ways.append({"words": fact.text, "flags": typed})
    return {"verdict": verdict, "reason": "; ".join(reasons), "ways_out": ways}


def _simulated(args: argparse.Namespace, untold: str) -> int:
    """Answer by simulating what no formula covers, as ``brimful simulate`` does."""
    from brimful.cli import simulate
    from brimful.cli.main import parser_of
    from brimful.cost.formula import told_short

    say(f"{told_short(untold)}: it is simulated", file=sys.stderr, flush=True)
    simulated = parser_of("simulate").parse_args([args.model])
    for name, value in vars(args).items():
        setattr(simulated, name, value)
    return simulate.run(simulated, with_costs=True)


def _answer(
    args: argparse.Namespace, asked: resolved.Asked, predicted: "Estimate", cost: "Cost | None"
) -> "Answer":
    from brimful.cli.on_demand import traced_facts
    from brimful.report.text import estimate_tables
    from brimful.show.answer import Answer
    from brimful.show.estimate import estimate_summary

    around = around_of(args, asked, predicted)
    summary = estimate_summary(*asked, predicted, around)
    below = (
        *(traced_facts(asked) if args.verbose or args.page else ()),
        *assumed_facts(args, asked.job),
        *fused_facts(asked.strategy),
        *_next(args, asked, summary.verdict, around.fixes),
    )
    return Answer(summary, below, (estimate_tables(*asked, predicted, cost=cost),))


def around_of(args: argparse.Namespace, asked: resolved.Asked, predicted: "Estimate") -> "Around":
    """Find what is said beside a prediction: its run, or what would make it fit."""
    from brimful.cli.fixes import NO_FIXES, fixes_of
    from brimful.cli.on_demand import trace_leaner
    from brimful.search.beside import beside
    from brimful.show.estimate import Around
    from brimful.show.predicted import verdict_of
    from brimful.show.stages import stage_facts

    fits = verdict_of(predicted) == "FITS"
    if not fits:
        trace_leaner(args, asked)
    others = beside(asked.job, asked.cluster, asked.strategy)
    fixes = NO_FIXES if fits else fixes_of(asked, others)
    return Around(
        run_of(args, asked, predicted, predicted.predicted_step_s),
        fixes.facts,
        stage_facts(*asked),
        fixes.others(others),
    )


def _next(
    args: argparse.Namespace,
    asked: resolved.Asked,
    verdict: "Verdict | None",
    fixes: tuple[Fact, ...],
) -> tuple[Fact, ...]:
    """Say what to do; what does not fit was told what would."""
    from brimful.hardware.cuda_chips import has_known_kernels
    from brimful.show.beside import WOULD_FIT

    if verdict == "FITS":
        engine = asked.strategy.engine
        own = "" if engine == "torch" else f" and --for {engine}"
        words = f"brimful simulate {args.model} with the same flags{own} proves it"
        if not has_known_kernels(asked.cluster.device):
            words = "brimful plan with the same flags finds the fastest that fits"
        return (Fact("next", words),)
    if all(fact.label != WOULD_FIT for fact in fixes):
        return ()
    return (Fact("next", "brimful plan with the same flags finds the fastest that fits"),)


def _cost(args: argparse.Namespace, asked: resolved.Asked, predicted: "Estimate") -> "Cost | None":
    """Predict what the whole run costs, where the user said how long it is or at what price."""
    if args.tokens is None and args.rows is None and args.prices is None:
        return None
    from brimful.cost.money import cost_of

    return cost_of(asked.job, asked.cluster, predicted.predicted_step_s, prices_from(args))
