"""``brimful precision``: a plan's first steps under the precision doctor's eyes."""

import argparse
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING

from brimful.cli import compare, data_flags, flags, output_paths, parsing, resolved
from brimful.cli.output import DOES_NOT_FIT, FITS, show, show_json
from brimful.cli.progress import Progress
from brimful.doctor.examination import ExamineSettings
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.probe import check_present
from brimful.show.summary import Fact
from brimful.show.terminal import fact_lines
from brimful.techniques.dropout import check_undropped
from brimful.techniques.runnable import check_examined
from brimful.text.escaping import json_text
from brimful.values.strategy import world_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from brimful.cli.resolved import Asked
    from brimful.doctor.examination import Examination
    from brimful.train.world import Place

HELP = "run a plan's first steps on real data and look at every module's numbers: what overflows, "
HELP += (
    "what vanishes, which updates are lost, and what to do; exit code 1 where something is wrong. "
    "With --compare: train it in one recipe after another, and lay quality and costs side by side"
)
_USUAL = ExamineSettings()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    flags.add_model(parser)
    add = parser.add_argument
    every = parsing.whole("--watch-every")
    add(
        "--watch-every",
        type=every,
        metavar="K",
        help=f"steps from one that is watched to the next; default {_USUAL.every}",
    )
    share = parsing.number("--overflow-share")
    add(
        "--overflow-share",
        type=share,
        metavar="X",
        help=f"of steps, at the initial loss scale that is advised; default {_USUAL.bad_share:g}",
    )
    add(
        "--out",
        metavar="DIR",
        type=output_paths.output_folder("--out"),
        help="folder for plots and JSON",
    )
    compare.add_arguments(parser)
    data_flags.add_data(parser)
    flags.add_job(parser)
    steps = next(a for a in parser._actions if a.dest == "steps")  # noqa: SLF001
    steps.help = f"steps that are run; default {_USUAL.num_steps}"
    flags.add_strategy(parser, searched=False)
    flags.add_verbose(parser)
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Look, print, and keep."""
    from brimful.process.library_output import quiet_libraries

    quiet_libraries()
    compare.refuse_without(args)
    if args.compare is not None:
        return compare.run(args)
    settings = _settings(args)
    asked = resolved.asked(args)
    check_undropped(asked.job)
    check_examined(asked.strategy)
    check_present(asked.cluster.device.kernels)
    from brimful.train.world import place_here

    place = place_here()
    _check_group(asked, place)
    is_quiet = args.json or (place is not None and place.rank > 0)
    with _joined(place, asked), ExitStack() as shown:
        examined = _examined(args, asked, settings, _watch(asked, shown, is_quiet=is_quiet))
    if place is not None and place.rank:
        return FITS
    _keep(args, examined)
    if args.json:
        from brimful.report.precision import precision_json

        show_json({**precision_json(examined), "cluster": asked.cluster})
    else:
        from brimful.report.precision import precision_tables
        from brimful.report.text import inputs_table

        tables = precision_tables(examined, is_whole=args.verbose)
        inputs = inputs_table(asked.job, asked.cluster, asked.strategy)
        show(tables, *(["", inputs] if args.verbose else []))
    return DOES_NOT_FIT if examined.findings else FITS


def _watch(asked: "Asked", shown: ExitStack, *, is_quiet: bool) -> "Callable[[str, float], None]":
    """Return what shows how far it is, and whose weights these are; a refusal comes before both."""
    progress: list[Progress] = []

    def watch(stage: str, share: float) -> None:
        if not progress:
            if not is_quiet and (words := _weights_words(asked)):
                show(*fact_lines([Fact("weights", words)]))
            progress.append(shown.enter_context(Progress("looking", quiet=is_quiet)))
        progress[0].note_stage(stage, share)

    return watch


def _weights_words(asked: "Asked") -> str:
    """Say that nothing was learnt, so that the numbers are not the model's; empty where it was."""
    if asked.job.weights is not None:
        return ""
    return (
        f"random: none were given, so that these are the numbers of an untrained model of the "
        f"shape of {asked.job.model.name}; what overflows in the trained one --weights shows"
    )


def _settings(args: argparse.Namespace) -> ExamineSettings:
    """Take the steps that are run: those of the job are the plan's, or the default."""
    num_steps, args.steps = args.steps or _USUAL.num_steps, None
    share = _USUAL.bad_share if args.overflow_share is None else args.overflow_share
    if not 0 <= share < 1:
        raise InputError(f"--overflow-share {share} is out of range; give 0 or more, less than 1")
    return ExamineSettings(
        num_steps=num_steps, every=args.watch_every or _USUAL.every, bad_share=share
    )


def _check_group(asked: "Asked", place: "Place | None") -> None:
    num = world_size(asked.strategy)
    here = 1 if place is None else place.size
    if num != here:
        raise UnsupportedError(
            f"the plan is for {num} processes and there is {here}; start it with torchrun "
            f"--nproc-per-node {num} -m brimful precision"
        )


def _joined(place: "Place | None", asked: "Asked") -> "AbstractContextManager[None]":
    from brimful.train.world import joined

    return nullcontext() if place is None else joined(place, asked.cluster.device.kernels)


def _examined(
    args: argparse.Namespace,
    asked: "Asked",
    settings: ExamineSettings,
    watch: "Callable[[str, float], None]",
) -> "Examination":
    from pathlib import Path

    from brimful.models.config import check_buildable
    from brimful.train.examine import examine_plan
    from brimful.train.out_folder import token_cache
    from brimful.values.plan import PLAN_SCHEMA, Plan

    check_buildable(asked.job.model)
    plan = Plan(
        schema=PLAN_SCHEMA,
        job=asked.job,
        cluster=asked.cluster,
        strategy=asked.strategy,
        estimate=None,
    )
    cache = token_cache(args.out or Path())
    source = data_flags.source_from(args)
    return examine_plan(plan, source, settings, cache=cache, watch=watch)


def _keep(args: argparse.Namespace, examined: "Examination") -> None:
    """Write plots and JSON into the folder that was asked for."""
    if args.out is None:
        return

    from brimful.files.writing import write_text
    from brimful.report.precision import precision_json, spectra
    from brimful.report.precision_plots import exponents_svg, scale_svg

    told = json_text(precision_json(examined), indent=1)
    write_text(args.out / "precision.json", told + "\n")
    found = spectra(examined)
    if found:
        write_text(args.out / "exponents.svg", exponents_svg(found))
    scales = examined.seen.ranks[0].scales
    if scales:
        write_text(args.out / "loss_scale.svg", scale_svg(scales))
