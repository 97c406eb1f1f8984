"""``brimful pretend``: any script, unmodified, on a GPU that does not exist."""

import argparse
import contextlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from brimful.allocator.config import VARIABLES, settings_in
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
from brimful.errors import BrimfulError, InputError
from brimful.pretend.largest import (
    Argument,
    Largest,
    Tried,
    argument_of,
    find_largest,
    value_in,
    with_default,
)
from brimful.text.escaping import one_line
from brimful.text.terminal import note, say

if TYPE_CHECKING:
    from brimful.pretend import Run
    from brimful.pretend.report_values import PretendReport
    from brimful.pretend.script_errors import ScriptError
    from brimful.show.answer import Answer

HELP = "run any script on a pretend GPU and read its memory"
WEIGHTS_DTYPES = ("float32", "bfloat16", "float16")
_GPU_FLAGS = ("--gpu", "--gpus")
"""How a GPU is named here and by other verbs."""


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
    seconds += f"when they are over twice; default {defaults.PRETEND_BUDGET_S}"
    add(
        "--budget",
        metavar="SECONDS",
        type=parsing.whole("--budget"),
        default=defaults.PRETEND_BUDGET_S,
        help=seconds,
    )
    world = parsing.whole("--world-size")
    alone = "processes, as torchrun starts them; default: one that nobody launched"
    add("--world-size", metavar="N", type=world, help=alone)
    rank = parsing.whole("--rank", least=0)
    add("--rank", metavar="R", type=rank, default=0, help="which of them this is; default 0")
    allocator = f"as in {VARIABLES[0]}, e.g. expandable_segments:True; default: what stands there"
    add("--allocator", metavar="SETTINGS", help=allocator)
    selected = "count the largest result where its size hangs on values"
    add("--assume-all-selected", action="store_true", help=selected)
    assumed = "stand in for a package of kernels that is not installed here, e.g. triton"
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


class _Done(NamedTuple):
    """A program that was run, with its arguments.

    Attributes:
        program: The script and its arguments.
        run: On which GPU.
        report: What it did to memory.
    """

    program: Sequence[str]
    run: "Run"
    report: "PretendReport"


class _Instead(NamedTuple):
    """What is planned of a program that cannot run here.

    Attributes:
        gpus: On what.
        typed: All that it is started with, its launcher's arguments too.
    """

    gpus: str
    typed: Sequence[str]


def run(args: argparse.Namespace) -> int:
    """Run the script, print what it did to memory, and write what was asked for."""
    from brimful.pretend.scripts import check_program, launched
    from brimful.process.library_output import quiet_libraries

    typed = args.program[1:] if args.program[:1] == ["--"] else args.program
    program, num, launcher, environment = launched(typed, rank=args.rank)
    if num is not None and args.world_size is None:
        args.world_size = num
        note(f"{launcher} starts {num} processes; this is the one of --rank {args.rank}")
    os.environ.update(environment)
    check_program(program)
    _note_behind(program)
    program = _begun(program, args.largest)
    quiet_libraries()
    from brimful.allocator.config import parse_settings
    from brimful.report.sparkline import sparkline

    allocator = _allocator(args)
    parse_settings(allocator)  # before the script's minutes, not after them
    argument = None if args.largest is None else argument_of(program, args.largest)
    pretended = _pretended(args)
    gpus = args.gpu if (args.world_size or 1) == 1 else f"{args.world_size}x{args.gpu}"
    instead = None if args.json else _Instead(gpus, typed)
    has_ended = _ran(args, pretended, program, instead=instead)
    if not has_ended and not pretended.tape.num_allocations():
        return BAD_INPUT
    done = _Done(
        program, pretended, pretended.report(allocator=allocator, budget_bytes=args.memory_budget)
    )
    if not has_ended:
        if done.report.fits:
            return BAD_INPUT
        note("before that it asked for more than the card holds, which ends a real run there")
    found = None
    if argument is not None and done.report.fits is not None:
        found, done = _largest(args, done, argument)
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


def _note_behind(program: Sequence[str]) -> None:
    """Say so where a flag of ours may have been meant, and is the program's where it stands."""
    behind = (word for word in program[1:] if word.partition("=")[0] in _GPU_FLAGS)
    if found := next(behind, ""):
        note(
            f"{found} stands behind {program[0]}, which is given it; what is meant for brimful "
            f"stands before: brimful pretend --gpu NAME -- {program[0]}"
        )


def _pretended(args: argparse.Namespace) -> "Run":
    from brimful.pretend import gpu

    return gpu(
        args.gpu,
        world_size=args.world_size,
        rank=args.rank,
        imitate=args.kernels,
        assume_all_selected=args.assume_all_selected,
        says_cuda=True,
        assume=args.assume,
        weights_dtype=args.weights_dtype or "",
    )


def _largest(args: argparse.Namespace, first: _Done, argument: Argument) -> tuple[Largest, _Done]:
    """Run the script with other values of one of its arguments; what it prints is dropped.

    What is known of a value is said as soon as it is.

    Returns what was found, and the run of the largest value that surely fits, else of the largest
    that may, or of the first where none does.
    """
    from brimful.cli.progress import Progress
    from brimful.pretend.script_errors import refusal_of
    from brimful.show.pretend import aim_of, tried_words

    aim = aim_of(first.report)
    done: dict[int, tuple[Sequence[str], Run]] = {argument.value: (first.program, first.run)}

    def told(value: int, tried: Tried) -> None:
        progress.note(f"{argument.flag} {value}: {tried_words(tried, aim)}")

    def run(changed: Sequence[str]) -> Tried:
        value = value_in(changed, argument)
        progress.update(f"{argument.flag} {value}", 0.0)
        pretended, unheard = _pretended(args), io.StringIO()
        with contextlib.redirect_stdout(unheard), contextlib.redirect_stderr(unheard):
            error = _ended_by(pretended, changed, args.budget)
        if interrupted.is_asked:  # the script may have taken it for its own
            raise KeyboardInterrupt
        is_short = pretended.cut is not None and not pretended.cut.is_settled
        refused = "its time was over before two steps were whole" if is_short else ""
        if error is not None:
            refused = refusal_of(error, name=_name_of(changed))
        if refused:
            progress.note(f"{argument.flag} {value}: {refused}")
            return Tried("no", refused=refused)
        done[value] = changed, pretended
        recording = pretended.recording()
        tried = aim.replayed(recording)._replace(recording=recording)
        told(value, tried)
        return tried

    recording = first.run.recording()
    given = aim.replayed(recording)._replace(recording=recording)
    what = f"running it with other values of {argument.flag}"
    with Progress(what, quiet=args.json) as progress, _Interrupted() as interrupted:
        told(argument.value, given)
        found = find_largest(first.program, argument, run, first=given, aim=aim)
    shown = next((value for value in (found.sure, found.value) if value in done), argument.value)
    if shown == argument.value:
        return found, first
    program, pretended = done[shown]
    report = pretended.report(allocator=_allocator(args), budget_bytes=args.memory_budget)
    return found, _Done(program, pretended, report)


class _Interrupted:
    """Lets whoever interrupts or ends this process have what was found by then.

    A script may catch what is raised in it, and go on.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        with contextlib.suppress(ValueError):  # in a thread that is not the main one
            for each in (signal.SIGINT, signal.SIGTERM):
                self._before[each] = signal.signal(each, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _ask(self, *_: object) -> None:
        self.is_asked = True
        raise KeyboardInterrupt


def _answer(args: argparse.Namespace, done: _Done, found: Largest | None) -> "Answer":
    from brimful.report.pretend import pretend_tables
    from brimful.show.answer import Answer
    from brimful.show.pretend import pretend_summary
    from brimful.show.sizes import largest_facts
    from brimful.show.summary import Fact

    page = ", --page answer.html makes a page"
    if args.page is not None:
        page = f"; the page is {args.page}"
    more = f"-v before -- prints every table{page}"
    program, run, report = done
    sizes = largest_facts(report, program, found, run.recording())
    summary = pretend_summary(report, program, () if found else sizes)
    if found:  # what was asked, before what the run of it did
        summary = summary._replace(facts=(*sizes, *summary.facts))
    below = (*output_paths.written_facts(args), Fact("next", more))
    return Answer(summary, below, (pretend_tables(report),), report.timeline)


def _allocator(args: argparse.Namespace) -> str:
    if args.allocator is not None:
        return str(args.allocator)
    return settings_in(os.environ)


def _ran(
    args: argparse.Namespace,
    pretended: "Run",
    program: Sequence[str],
    *,
    instead: _Instead | None = None,
) -> bool:
    """Run the program; say on standard error what stopped it, and return whether it ended well.

    Where it lacks a package its job may be planned ``instead``.
    """
    from brimful.pretend.script_errors import read_error, sentence_of
    from brimful.pretend.scripts import foreign_framework

    # One JSON object is all that may stand on standard output.
    spoken = contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()
    with spoken:
        error = _ended_by(pretended, program, args.budget, told=_unheard if args.json else _told)
    if error is None:
        return True
    if isinstance(error, BrimfulError):
        raise error
    name = _name_of(program)
    if foreign := foreign_framework(error):
        raise InputError(
            f"{name} imports {foreign}, and brimful pretend covers PyTorch alone: to install "
            f"it would not help, as what it allocates is not seen; the same model in PyTorch "
            f"takes about as much"
        ) from error
    read = read_error(error, stood_in=bool(pretended.tape.stand_ins))
    if nearest := _nearest(error, pretended):
        why = sentence_of(read, name=name)
        raise InputError(why, nearest=nearest) from error
    _tell_error(error, read, name, is_whole=args.verbose)
    if _lacks_package(error) and instead is not None:
        _plan_instead(program[0], instead)
    return False


def _name_of(program: Sequence[str]) -> str:
    return " ".join(program[:2]) if program[0] == "-m" else program[0]


def _told(words: str) -> None:
    say(f"brimful: {words}", file=sys.stderr, flush=True)


def _unheard(_words: str) -> None:
    """Say nothing."""


def _ended_by(
    pretended: "Run", program: Sequence[str], budget_s: int, told: Callable[[str], None] = _unheard
) -> BaseException | None:
    """Run the program, and return what ended it before its end; None: nothing but its time did."""
    from brimful.cli.main import is_of_interrupt
    from brimful.pretend.scripts import run_program
    from brimful.pretend.time_limit import TimeLimit, limited

    name = _name_of(program)
    limit: TimeLimit | None = None
    try:
        with pretended:
            try:
                with limited(pretended, budget_s, told) as limit:
                    run_program(program)
            except SystemExit as ended:
                code = ended.code
                said = f" exit code {code:d}" if isinstance(code, int) else f": {code}"
                if code:
                    raise InputError(f"{name} ended with{said}") from ended
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if is_of_interrupt(error):
            raise KeyboardInterrupt from error
        if limit is None or not limit.ended(error):
            return error
        pretended.cut = limit.cut
    return None


def _nearest(error: BaseException, pretended: "Run") -> dict[str, object]:
    """Return the flags with which a script may run on; empty where none is known.

    Weights that are saved in 16 bits are loaded so since transformers 5, and no loss scaler takes
    them: scripts that were written before load them in fp32.
    """
    from brimful.pretend.script_errors import UNSCALED

    are_absent = any("weights are of" in line for line in pretended.tape.assumptions)
    is_new = not pretended.weights_dtype
    return {"weights_dtype": "float32"} if UNSCALED in str(error) and are_absent and is_new else {}


def _tell_error(error: BaseException, read: "ScriptError", name: str, *, is_whole: bool) -> None:
    """Say in a sentence what ended a script, and below it by which of its own lines it came there.

    ``is_whole``: whether lines of libraries, and of errors before it, are shown too.
    """
    from brimful.pretend.script_errors import (
        below_runners,
        own_traceback,
        sentence_of,
    )

    why = sentence_of(read, name=name, remedy=_remedy(error))
    say(f"brimful: {one_line(why)}", file=sys.stderr)
    if is_whole:
        traceback.print_exception(type(error), error, below_runners(error.__traceback__))
        return
    if _lacks_package(error):  # the sentence says the line, and what to do
        return
    for line in own_traceback(read):
        say(line, file=sys.stderr)
    say("(-v before -- prints all of the traceback)", file=sys.stderr, flush=True)


def _lacks_package(error: BaseException) -> bool:
    """Whether what ended a program is that a package is not installed."""
    from brimful.pretend.script_errors import missing_import

    missing = missing_import(error)
    is_told = missing is not None and "install" in str(missing)
    return isinstance(missing, ModuleNotFoundError) or is_told


def _plan_instead(script: str, instead: _Instead) -> None:
    """Plan what a script says that lacks a package, where its text names its model."""
    from brimful.cli.main import main
    from brimful.cli.script_settings import plan_of
    from brimful.text.escaping import shell_words

    if not (words := plan_of(script, *instead)):
        return
    read = Path(script).name
    if "--from" in words:
        read += f" and {words[words.index('--from') + 1]}"
    why = f"what is read in {read} is planned instead, in Brimful's own loop"
    if "--memory-limit" in words:
        why += f", on the {words[words.index('--memory-limit') + 1]} of each card that vLLM leaves"
    say(f"brimful: {why}: brimful {shell_words(words)}", file=sys.stderr, flush=True)
    main(words)


_DEEPSPEED = "deepspeed"


def _remedy(error: BaseException) -> str:
    """Say what to do where the program lacks a package that can be stood in for."""
    from brimful.pretend.script_errors import missing_import
    from brimful.pretend.stand_in_packages import assumable

    found = missing_import(error)
    missing = str(found.name or "") if isinstance(found, ModuleNotFoundError) else ""
    if _DEEPSPEED in missing:  # the name of a distribution may be a sentence
        return "DeepSpeed runs here as it is: DS_BUILD_OPS=0 pip install deepspeed"
    package = assumable(missing)
    return f"install {package}, or pass --assume {package}" if package else ""
