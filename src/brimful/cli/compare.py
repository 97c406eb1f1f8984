"""``brimful precision --compare``: the plan's job in several recipes, side by side."""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from brimful.cli import data_flags, defaults, parsing, resolved
from brimful.cli.output import DOES_NOT_FIT, FITS, INTERRUPTED, show, show_json
from brimful.cli.progress import Progress
from brimful.compare.recipes import RECIPES, shortened
from brimful.compare.record import MOST_STEPS, NUM_SEEDS, CompareSettings
from brimful.errors import InputError
from brimful.hardware.probe import check_present
from brimful.text.escaping import json_text
from brimful.text.terminal import say
from brimful.units import format_seconds

if TYPE_CHECKING:
    from brimful.cli.resolved import Asked
    from brimful.compare.record import Comparison, RecipeRun
    from brimful.values.job import Precision
    from brimful.values.plan import Plan

COMPARISON_FILE, PLOT_FILE = "comparison.json", "comparison.svg"
_ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a comparison."""
    add = parser.add_argument
    add(
        "--compare",
        nargs="?",
        const=_ALL,
        metavar="RECIPES",
        type=_recipes,
        help=f"train in each of these recipes (by comma; default: all) and compare, for --steps "
        f"(default: the plan's, at most {MOST_STEPS})",
    )
    seeds = parsing.whole("--seeds")
    add("--seeds", type=seeds, metavar="N", help=f"runs of each recipe; default {NUM_SEEDS}")


def _recipes(text: str) -> "tuple[Precision, ...]":
    if text == _ALL:
        return RECIPES
    kind = parsing.choice("recipe", RECIPES)
    return tuple(dict.fromkeys(kind(part.strip()) for part in text.split(",")))  # type: ignore[misc]


def refuse_without(args: argparse.Namespace) -> None:
    """Refuse a flag of a comparison where there is none, and the other way round."""
    if args.compare is None and args.seeds is not None:
        raise InputError(f"--seeds {args.seeds} has no meaning without --compare; add it")
    for name in ("watch_every", "overflow_share"):
        if args.compare is not None and getattr(args, name) is not None:
            raise InputError(
                f"--{name.replace('_', '-')} {getattr(args, name)} has no meaning with --compare; "
                f"leave it out"
            )


def run(args: argparse.Namespace) -> int:
    """Compare, print, and keep."""
    plan = _plan(args)
    check_present(plan.cluster.device.kernels)
    from brimful.compare.run import compare_recipes
    from brimful.models.config import check_buildable
    from brimful.train.out_folder import token_cache

    source = data_flags.source_from(args)
    settings = CompareSettings(
        recipes=args.compare, loss_scale=defaults.LOSS_SCALE, num_seeds=args.seeds or NUM_SEEDS
    )
    check_buildable(plan.job.model)
    cache = token_cache(args.out or Path())
    with Progress("comparing", quiet=args.json) as progress:
        told = _Told(progress, args.out, num_runs=len(settings.recipes) * settings.num_seeds)
        is_interrupted = False
        try:
            made = compare_recipes(plan, source, settings, cache=cache, watching=told)
        except KeyboardInterrupt:
            if told.so_far is None:
                raise
            made, is_interrupted = told.so_far, True
    _keep(args.out, made)
    if args.json:
        show_json(msgspec.structs.asdict(made))
    else:
        _show(made, is_verbose=args.verbose)
    if is_interrupted:
        say(f"interrupted, up to {told.num_left} runs were not made", file=sys.stderr)
        return INTERRUPTED
    return FITS if any(row.heldout_loss is not None for row in made.rows) else DOES_NOT_FIT


def _plan(args: argparse.Namespace) -> "Plan":
    """Resolve what is run, for as many steps as are asked for."""
    from brimful.values.plan import PLAN_SCHEMA, Plan

    asked = _asked(args)
    return Plan(
        schema=PLAN_SCHEMA,
        job=asked.job,
        cluster=asked.cluster,
        strategy=asked.strategy,
        estimate=None,
    )


def _asked(args: argparse.Namespace) -> "Asked":
    """Resolve the inputs; --steps is how long is compared, beside a plan too."""
    num_steps = args.steps
    if resolved.is_plan(args.model):
        args.steps = None
    asked = resolved.asked(args)
    return asked._replace(job=shortened(asked.job, num_steps))


class _Told:
    """Shows how far a comparison is, and keeps what is done: a killed one is not lost.

    Attributes:
        so_far: What was compared; None: nothing yet.
        num_left: Runs that are to be made, at most.
    """

    def __init__(self, progress: Progress, out: Path | None, *, num_runs: int) -> None:
        self.so_far: Comparison | None = None
        self.num_left = num_runs
        self._progress = progress
        self._out = out
        self._num_runs = num_runs
        self._started_s = time.monotonic()

    def on_stage(self, text: str, share: float) -> None:
        """Move the bar."""
        self._progress.update(text, share)

    def on_run(self, recipe: "Precision", run: "RecipeRun", so_far: "Comparison") -> None:
        """Keep it, and say it where there is no bar."""
        from brimful.report.comparison import describe_run

        self.so_far, self.num_left = so_far, self.num_left - 1
        if self._out is not None:
            _write(self._out, so_far)
        done = self._num_runs - self.num_left
        left_s = (time.monotonic() - self._started_s) / done * self.num_left
        left = f", about {format_seconds(left_s)} left" if self.num_left else ""
        self._progress.note(
            f"{describe_run(recipe, run)} ({done} of at most {self._num_runs}{left})"
        )


def _write(out: Path, made: "Comparison") -> None:
    from brimful.files.writing import write_text

    told = json_text(made, indent=1)
    write_text(out / COMPARISON_FILE, told + "\n")


def _keep(out: Path | None, made: "Comparison") -> None:
    """Write the JSON and the plot into the folder that was asked for."""
    if out is None:
        return
    from brimful.files.writing import write_text
    from brimful.report.comparison_plot import comparison_svg

    _write(out, made)
    write_text(out / PLOT_FILE, comparison_svg(made))
    say(f"{out / COMPARISON_FILE} and {out / PLOT_FILE} are written", file=sys.stderr)


def _show(made: "Comparison", *, is_verbose: bool) -> None:
    from brimful.report.comparison import comparison_tables
    from brimful.report.text import inputs_table

    inputs = inputs_table(made.job, made.cluster, made.strategy)
    show(comparison_tables(made), *(["", inputs] if is_verbose else []))
