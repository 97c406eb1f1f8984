"""``brimful pretend``: any script, unmodified, on a GPU that does not exist."""

import argparse
import os
from typing import TYPE_CHECKING

import msgspec

from brimful.allocator.config import VARIABLES
from brimful.cli import defaults, flags, output_paths, parsing
from brimful.cli.output import (
    BAD_INPUT,
    DOES_NOT_FIT,
    FITS,
    INTERRUPTED,
    OUT_OF_TIME,
    show_json,
    tell,
)
from brimful.cli.page import add_page
from brimful.cli.pretend_behind import taken_from_behind
from brimful.cli.pretend_largest import largest_of
from brimful.cli.pretend_script import Done, Instead, allocator_of, known_event, pretended_gpu, ran
from brimful.cli.pretend_units import with_blocks
from brimful.models.attention_source import LAYERS
from brimful.pretend.largest import Largest, argument_of, with_default
from brimful.pretend.step_values import BUDGET_S
from brimful.text.terminal import note

if TYPE_CHECKING:
    from brimful.show.answer import Answer

HELP = "run any script on a pretend GPU and read its memory"
WEIGHTS_DTYPES = ("float32", "bfloat16", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    parser.usage = "%(prog)s [flags] -- SCRIPT [ARGUMENT ...]"
    add = parser.add_argument
    add(
        "program",
        metavar="SCRIPT [ARGUMENT ...]",
        nargs=argparse.REMAINDER,
        help="what would be run for real: a script, a notebook or -m MODULE, and its arguments; "
        "python before it, or torchrun, accelerate launch or deepspeed with its flags, may stay",
    )
    gpu = f"a name (brimful gpus); default {defaults.PRETEND_GPU}"
    add("--gpu", metavar="GPU", default=defaults.PRETEND_GPU, help=gpu)
    add("--gpus", dest="gpu", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    budget = "exit with 1 where the allocator would need more, e.g. 70GiB"
    add("--memory-budget", metavar="SIZE", type=parsing.size("--memory-budget"), help=budget)
    seconds = "seconds that the script has: one that is through two steps is ended then, another "
    seconds += f"when they are over twice; default {BUDGET_S}; fewer where "
    seconds += "several steps in a row are alike, but with --whole"
    add(
        "--budget",
        metavar="SECONDS",
        type=parsing.whole("--budget"),
        default=BUDGET_S,
        help=seconds,
    )
    whole = (
        "run on where steps are alike, or left the same behind, until --budget is over, and every "
        "token of a text"
    )
    add("--whole", action="store_true", help=whole)
    world = parsing.whole("--world-size")
    alone = "processes, as torchrun starts them; default: one that nobody launched"
    add("--world-size", metavar="N", type=world, help=alone)
    rank = parsing.whole("--rank", least=0)
    add("--rank", metavar="R", type=rank, default=0, help="which of them this is; default 0")
    allocator = f"as in {VARIABLES[0]}, e.g. expandable_segments:True; default: what stands there"
    add("--allocator", metavar="SETTINGS", help=allocator)
    selected = "count the largest result where its size hangs on values"
    add("--assume-all-selected", action="store_true", help=selected)
    assumed = "stand in for a package of kernels that is not installed here, e.g. triton; without "
    assumed += f"it for {', '.join(sorted(LAYERS.values()))}; none: for no package"
    add("--assume", metavar="PACKAGE", action="append", default=[], help=assumed)
    types = parsing.choice("--weights-dtype", WEIGHTS_DTYPES)
    kept = "of the hub's weights that are not here, where the script says none: float32, as "
    kept += "transformers 4 loads them, bfloat16 or float16; default: as they are published"
    add("--weights-dtype", metavar="NAME", type=types, help=kept)
    imitate = parsing.choice("--kernels", ("cuda", "cpu"))
    kernels = "whose kernels: cuda, or cpu to compare with a run on a CPU; default cuda"
    add("--kernels", metavar="NAME", type=imitate, default="cuda", help=kernels)
    add(
        "--largest",
        metavar="NAME",
        help="run the script again with few other values of its own argument --NAME, and say the "
        "largest that fits; Ctrl-C ends with the best so far",
    )
    output_paths.add_recording_files(parser)
    add_page(parser)
    flags.add_verbose(parser)
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the script, print what it did to memory, and write what was asked for."""
    from brimful.pretend.scripts import check_program, launched
    from brimful.process.library_output import quiet_libraries

    quiet_libraries()  # before torchrun's own flags are read, by torch
    typed = args.program[1:] if args.program[:1] == ["--"] else args.program
    script = launched(typed, rank=args.rank)[0]
    check_program(script)
    program = taken_from_behind(args, script, add_arguments)
    if program != script:  # a rank among what was taken, perhaps
        typed = [*typed[: len(typed) - len(script)], *program]
    program, num, launcher, environment, finds = launched(typed, rank=args.rank)
    if num is not None and args.world_size is None:
        args.world_size = num
        starts = f"{launcher} starts {num} processes; this is the one of --rank {args.rank}"
        note(f"brimful: {finds}" if finds else starts)
    os.environ.update(environment)
    program = _begun(program, args.largest)
    from brimful.allocator.config import parse_settings
    from brimful.report.sparkline import sparkline

    allocator = allocator_of(args)
    parse_settings(allocator)  # before the script's minutes, not after them
    argument = None if args.largest is None else argument_of(program, args.largest)
    pretended = pretended_gpu(args)
    gpus = args.gpu if (args.world_size or 1) == 1 else f"{args.world_size}x{args.gpu}"
    instead = None if args.json else Instead(gpus, typed)
    has_ended = ran(args, pretended, program, instead=instead)
    if not has_ended and not pretended.tape.num_allocations():
        return BAD_INPUT
    done = Done(
        program, pretended, pretended.report(allocator=allocator, budget_bytes=args.memory_budget)
    )
    if not has_ended:
        if done.report.fits:
            return BAD_INPUT
        note("before that it asked for more than the card holds, which ends a real run there")
    found = None
    if argument is not None and done.report.fits is not None:
        found, done = largest_of(args, done, argument)
    done = with_blocks(args, done)
    report = done.report
    output_paths.write_recording_files(
        args,
        done.run.recording(),
        allocator=report.allocator,
        capacity_bytes=report.at_capacity.capacity_bytes,
    )
    if args.json:
        show_json(msgspec.structs.asdict(report) | ({"largest": found._asdict()} if found else {}))
    over_time = ("Live bytes over time", *sparkline(report.timeline), "")
    tell(args, lambda: _answer(args, done, found), above=over_time)
    if found is not None and not found.is_whole:
        return INTERRUPTED
    if report.fits is None:
        return OUT_OF_TIME
    return FITS if report.fits else DOES_NOT_FIT


def _begun(program: list[str], name: str | None) -> list[str]:
    """Give a script the argument of ``--largest`` where it was left to its own default."""
    if name is None:
        return program
    begun = with_default(program, name)
    if added := begun[len(program) :]:
        note(f"--largest begins from the script's own default, {' '.join(added)}")
    return begun


def _answer(args: argparse.Namespace, done: Done, found: Largest | None) -> "Answer":
    from brimful.pretend.until import until
    from brimful.report.pretend import pretend_tables
    from brimful.show.answer import Answer
    from brimful.show.pretend import pretend_summary
    from brimful.show.sizes import combined_facts, largest_facts, mended_facts
    from brimful.show.summary import Fact
    from brimful.show.units import unit_ways

    page = ", --page answer.html makes a page"
    if args.page is not None:
        page = f"; the page is {args.page}"
    more = f"-v before -- prints every table{page}"
    program, run, report = done
    recording = run.recording()
    if (known := known_event(done)) is not None:  # its other steps say the same
        recording = until(recording, known)
    mended = run.mended(recording, report.peak_event) if report.without else None
    alone = mended is None or found is not None
    sizes = largest_facts(report, program, found, recording) if alone else ()
    ways = unit_ways(report) or (() if found else combined_facts(report, program, recording))
    without = mended_facts(report, program, mended) if mended else ()
    summary = pretend_summary(report, program, () if found else sizes, ways, without)
    if found:  # what was asked, before what the run of it did
        summary = summary._replace(facts=(*sizes, *summary.facts))
    below = (*output_paths.written_facts(args), Fact("next", more))
    return Answer(summary, below, (pretend_tables(report),), report.timeline)
