"""``brimful simulate``: the code that trains, on the pretend GPU."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from brimful.cli import flags, for_program, inference, output_paths, parsing, programs, resolved
from brimful.cli.assumed import assumed_facts, run_of
from brimful.cli.output import inputs_json, show_json, tell
from brimful.cli.page import add_page
from brimful.cli.proof import add_accept_tight, word_code, word_of
from brimful.errors import InputError, UnsupportedError
from brimful.techniques.runnable import check_simulated
from brimful.text.escaping import json_text
from brimful.values.results import EVAL, RESUME, SAVE
from brimful.values.strategy import world_size
from brimful.values.unknown_memory import named_statement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from brimful.show.answer import Answer
    from brimful.show.summary import Fact
    from brimful.simulate.run import Simulated
    from brimful.techniques.parallel.routing import Routing
    from brimful.values.plan import Plan, Word
    from brimful.values.results import Simulation

    Routed = tuple[int | None, Routing]
    """A device and how tokens come to its experts."""

TOLD_EVERY = 500
"""Operations after which whoever waits is told how many there were."""
HELP = "run a plan's own code on a pretend GPU and read its memory"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    flags.add_model(parser, optional=True)
    flags.add_job(parser)
    flags.add_strategy(parser, searched=False)
    programs.add_arguments(parser)
    for_program.add_for(parser, "run a plan, or what flags say, as this program does")
    inference.add_arguments(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=output_paths.output_file("-o"),
        default=None,
        help="write the simulation (JSON)",
    )
    output_paths.add_recording_files(parser)
    parser.add_argument(
        "--rank",
        metavar="R",
        type=parsing.whole("--rank", least=0),
        help="which of many devices (default: one that holds as much as any)",
    )
    parser.add_argument(
        "--routing",
        metavar="NAME|RUN",
        default=None,
        help="of tokens to experts, where --ep parts them: balanced, worst, or the folder of a run "
        "that has seen it; default balanced, with the worst beside it",
    )
    names = f"{EVAL}, {SAVE}, {RESUME}"
    parser.add_argument(
        "--phases",
        metavar="NAMES",
        type=_phases,
        default=(),
        help=f"run more of a run's life than its steps: {names}, by comma, or all",
    )
    add_accept_tight(parser)
    add_page(parser)
    flags.add_verbose(parser)
    flags.add_json(parser)


def _phases(text: str) -> tuple[str, ...]:
    known = (EVAL, SAVE, RESUME)
    if text == "all":
        return known
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        parsing.choice("phase", known)(name)
    return names


def run(args: argparse.Namespace, *, with_costs: bool = False) -> int:
    """Simulate, compare with the prediction, and print.

    ``with_costs``: whether they have a length and prices, so that an answer tells time and money.
    """
    programs.check_alone(args, "simulate")
    if args.source is not None:
        return programs.run_simulate(args)
    if inference.is_asked(args):
        if args.routing is not None:
            raise InputError("--routing does not go with --task inference; leave it out")
        return inference.run_simulate(args)
    if args.program == for_program.MEGATRON:
        raise InputError(
            "simulate --for megatron needs a layout: brimful plan MODEL --for megatron -o FILE "
            "writes one, and simulate --from FILE runs it"
        )
    for_program.settle(args)
    for_program.take_told(args)
    asked = resolved.asked(args)
    if for_program.is_other(args):
        return _run_program(args, asked)
    routed = _checked(args, asked)
    from brimful.cost.estimate import estimate_or_none, limit_bytes
    from brimful.files.writing import write_text
    from brimful.process.library_output import quiet_libraries
    from brimful.values.plan import PLAN_SCHEMA, Plan

    quiet_libraries()
    from brimful.models.config import check_buildable
    from brimful.simulate.attempt import is_timed

    plan = Plan(
        schema=PLAN_SCHEMA,
        job=asked.job,
        cluster=asked.cluster,
        strategy=asked.strategy,
        estimate=estimate_or_none(*asked),
    )
    check_buildable(asked.job.model)
    counts = (with_costs or args.json) and is_timed(asked.job, asked.strategy)
    simulated = _simulated(args, asked, routed, count_costs=counts)
    simulation = simulated.simulation
    if args.output is not None:
        write_text(args.output, json_text(simulation))
    output_paths.write_simulated_files(
        args, simulated.recording, asked.cluster, allocator=asked.strategy.allocator
    )
    word = word_of(simulation, limit_bytes(plan))
    step_s = _step_s(asked, simulated) if counts else None
    if args.json:
        show_json(_json(plan, simulation, word, step_s))
    has_costs = with_costs and counts and word == "fits"
    costs = run_of(args, asked, None, step_s).fitting if has_costs else ()
    tell(args, lambda: _answer(args, plan, simulation, word, costs))
    return word_code(args, word)


def _json(
    plan: "Plan", simulation: "Simulation", word: "Word", step_s: float | None
) -> dict[str, object]:
    """Return what ``--json`` prints; the time is by what was recorded."""
    from brimful.cost.estimate import limit_bytes
    from brimful.cost.outside import middle_outside, num_groups

    estimate, reserved = plan.estimate, simulation.reserved
    asked = resolved.Asked(plan.job, plan.cluster, plan.strategy)
    outside = middle_outside(plan.cluster.device, num_groups=num_groups(plan.strategy))
    return {
        "statement": named_statement(
            simulation.simulated_peak_allocated_bytes, simulation.unknown_ops
        ),
        **inputs_json(asked),
        **msgspec.structs.asdict(simulation),
        "simulated_process_bytes": reserved and reserved.simulated_peak_reserved_bytes + outside,
        "usable_bytes": limit_bytes(plan),
        "predicted_peak_allocated_bytes": estimate and estimate.predicted_peak_allocated_bytes,
        "simulated_step_s": step_s,
        "simulated_tokens_per_s": step_s and plan.job.tokens_per_step / step_s,
        "fits": word == "fits",
        "word": word,
    }


def _run_program(args: argparse.Namespace, asked: resolved.Asked) -> int:
    """Simulate what flags say as another program runs it."""
    if args.output is not None:
        raise InputError(f"-o {args.output} does not go with --for; write --json into a file")
    from brimful.export.programs import program_of
    from brimful.models.config import check_buildable
    from brimful.process.library_output import quiet_libraries
    from brimful.values.plan import PLAN_SCHEMA, Plan

    quiet_libraries()
    check_buildable(asked.job.model)
    job, cluster, strategy = asked
    plan = Plan(schema=PLAN_SCHEMA, job=job, cluster=cluster, strategy=strategy, estimate=None)
    return programs.show_run(args, program_of(args.program, plan), cluster.device.name)


def _checked(args: argparse.Namespace, asked: resolved.Asked) -> "list[Routed]":
    """Refuse what flags alone tell, before anything is loaded; return what is simulated."""
    check_simulated(asked.strategy)
    if args.phases and args.routing not in {None, "balanced"}:
        raise UnsupportedError(
            f"--phases with --routing {args.routing} is not simulated by this version, whose other "
            f"phases are balanced; leave one of them out"
        )
    if args.phases and asked.strategy.pp > 1:
        raise UnsupportedError(
            f"--phases with pp={asked.strategy.pp} is not simulated by this version; leave it out, "
            f"or use pp=1"
        )
    num = world_size(asked.strategy)
    if args.rank is not None and args.rank >= num:
        raise InputError(f"--rank {args.rank} is not in a world of {num}; use 0 to {num - 1}")
    return _routed(args, asked)


def _step_s(asked: resolved.Asked, simulated: "Simulated") -> float | None:
    """Predict the seconds of a step by what its operations compute."""
    from brimful.simulate.attempt import seconds_of_step
    from brimful.simulate.items import read_host

    return seconds_of_step(*asked, (simulated.recording, read_host(simulated.host)))


def _simulated(
    args: argparse.Namespace, asked: resolved.Asked, routed: "list[Routed]", *, count_costs: bool
) -> "Simulated":
    from brimful.process.quick_imports import quick_imports

    with quick_imports():
        from brimful.simulate.run import fullness, simulate_recorded
    from brimful.cli.progress import Progress

    num_ops = 0
    with Progress("simulating", quiet=args.json) as progress:

        def on_op() -> None:
            nonlocal num_ops
            num_ops += 1
            if num_ops % TOLD_EVERY == 0:
                progress.report(f"{num_ops:,} operations", 0.0)

        each = (
            simulate_recorded(
                *asked, rank=rank, routing=routing, count_costs=count_costs, on_op=on_op
            )
            for rank, routing in routed
        )
        simulated = max(each, key=fullness)
    if not args.phases:
        return simulated
    from brimful.simulate.lifetime import simulate_phases, with_phases
    from brimful.train.keeping import KEEPING

    phases = simulate_phases(*asked, KEEPING, args.phases)
    return simulated._replace(simulation=with_phases(simulated.simulation, phases))


def _routed(args: argparse.Namespace, asked: resolved.Asked) -> "list[Routed]":
    """List which devices are simulated, and how tokens come to their experts."""
    from brimful.techniques.parallel.routing import BALANCED, worst
    from brimful.train.observed_routing import heaviest_ranks, observed

    job, strategy = asked.job, asked.strategy
    if args.routing is None or args.routing == "balanced":
        return [(args.rank, BALANCED)]
    if strategy.ep == 1:
        raise InputError(
            f"--routing {args.routing} says how many rows a device's experts get and ep=1 parts "
            f"none among devices; leave it out, or give --ep"
        )
    if args.routing == "worst":
        return [(args.rank, worst(job, strategy.ep))]
    seen = observed(Path(args.routing), job, strategy)
    ranks = heaviest_ranks(seen, strategy) if args.rank is None else [args.rank]
    if ranks[0] not in seen:
        last = len(seen) - 1
        raise InputError(f"rank {ranks[0]} is not in a world of {len(seen)}; use 0 to {last}")
    return [(rank, seen[rank]) for rank in ranks]


def _worst_sentence(args: argparse.Namespace, asked: resolved.Asked) -> str:
    """Say what the peak is if every token prefers the simulated device's experts."""
    from brimful.simulate.run import simulate
    from brimful.techniques.parallel.routing import worst
    from brimful.units import format_bytes

    routing = worst(asked.job, asked.strategy.ep)
    found = simulate(*asked, rank=args.rank, routing=routing)
    return (
        f"balanced; if every token of the {asked.strategy.ep} devices "
        f"preferred this one's experts it would get {routing.share:.3g} x the rows and peak at "
        f"{format_bytes(found.simulated_peak_allocated_bytes)}"
    )


def _routed_sentence(args: argparse.Namespace, asked: resolved.Asked) -> str:
    """Say what a router is taken to do that is not even, and what it says of others."""
    from brimful.techniques.parallel.routing import worst

    if args.routing != "worst":
        return f"as {args.routing} was observed to route"
    share = worst(asked.job, asked.strategy.ep).share
    return (
        f"worst: every token of the {asked.strategy.ep} devices prefers this one's experts, "
        f"{share:.3g} x the rows of an even router; no router takes more"
    )


def _answer(
    args: argparse.Namespace,
    plan: "Plan",
    simulation: "Simulation",
    word: "Word",
    costs: "tuple[Fact, ...]",
) -> "Answer":
    from brimful.show.answer import Answer
    from brimful.show.left_out import left_out_facts
    from brimful.show.simulate import simulate_summary
    from brimful.show.summary import Fact

    asked = resolved.Asked(plan.job, plan.cluster, plan.strategy)
    routing: tuple[Fact, ...] = ()
    is_even = args.routing in {None, "balanced"}
    if plan.strategy.ep > 1 and args.routing != "balanced":
        said = _worst_sentence if is_even else _routed_sentence
        routing = (Fact("routing", said(args, asked)),)
    is_plan = resolved.is_plan(args.model)
    fits = f"brimful train {args.model}{'' if is_plan else ' with the same flags'} runs it"
    # What is predicted, of other settings too, is of an even router.
    beside = _beside(plan, word) if is_even else ()
    return Answer(
        simulate_summary(plan, simulation, word, (*costs, *beside), is_alike=is_even),
        (
            *routing,
            *output_paths.written_facts(args),
            *left_out_facts(plan.job),
            *assumed_facts(args, plan.job, is_timed=False),
            *([Fact("next", fits)] if word == "fits" else []),
        ),
        tuple(_tables(plan, simulation)),
        simulation.timeline,
    )


def _beside(plan: "Plan", word: "Word") -> "tuple[Fact, ...]":
    """Say what would make it fit, and what other settings take."""
    from brimful.cli.fixes import NO_FIXES, fixes_of, simulated_fixes

    if plan.estimate is None:
        return () if word == "fits" else simulated_fixes(plan)
    from brimful.search.beside import beside
    from brimful.show.beside import beside_facts, spread_facts
    from brimful.show.stages import stage_facts

    asked = resolved.Asked(plan.job, plan.cluster, plan.strategy)
    others = beside(*asked)
    fixes = NO_FIXES if word == "fits" else fixes_of(asked, others)
    return (
        *fixes.facts,
        *stage_facts(*asked),
        *spread_facts(plan.job, plan.cluster, plan.strategy, plan.estimate, others),
        *beside_facts(*asked, plan.estimate, fixes.others(others)),
    )


def _tables(plan: "Plan", simulation: "Simulation") -> "Iterator[RenderableType]":
    from brimful.measure.verdict import judge
    from brimful.report.text import inputs_table, owners_table, verdict_table
    from brimful.report.words import collectives_sentence

    yield inputs_table(plan.job, plan.cluster, plan.strategy)
    yield ""
    yield verdict_table(judge(plan, simulation, None))
    yield ""
    yield owners_table(simulation)
    yield ""
    if plan.strategy.pp > 1:
        from brimful.report.pipeline_chart import chart_text, schedule_of

        yield f"{chart_text(schedule_of(plan.job, plan.strategy))}\n"
    if simulation.collectives:
        yield collectives_sentence(simulation.collectives)
    yield (
        f"simulated {simulation.num_events} allocations and frees in "
        f"{simulation.simulate_s:.2f} s ({simulation.kernels} kernels)"
    )
