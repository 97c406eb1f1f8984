"""Runs a script on the pretend GPU, and says in a sentence what ended it before its end."""

import argparse
import contextlib
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from brimful.allocator.config import settings_in
from brimful.errors import BrimfulError, InputError
from brimful.models.attention_source import LAYERS
from brimful.text.escaping import one_line
from brimful.text.terminal import say

if TYPE_CHECKING:
    from brimful.pretend import Run
    from brimful.pretend.report_values import PretendReport
    from brimful.pretend.script_errors import ScriptError
    from brimful.pretend.text_loops import TextLoops
    from brimful.pretend.time_limit import Limits, TimeLimit


_AS_MUCH = 1.02
"""Times what was held before, by which like steps may differ."""


class Done(NamedTuple):
    """A program that was run, with its arguments.

    Attributes:
        program: The script and its arguments.
        run: On which GPU.
        report: What it did to memory.
    """

    program: Sequence[str]
    run: "Run"
    report: "PretendReport"


def known_event(done: Done) -> int | None:
    """Return by which event of a recording all is known of a script; None: all of it has to be."""
    event, cut = done.run.known_event, done.run.cut
    if event is None or cut is None or done.report.peak_event >= event:
        return None
    # Behind its data an evaluation may take less, and yet blocks that no later step has use of.
    return None if cut.is_passed and _holds_more(done, event) else event


def _holds_more(done: Done, event: int) -> bool:
    """Whether the allocator comes to hold more behind an event than before it."""
    from brimful.allocator.config import parse_settings
    from brimful.allocator.held import held_of
    from brimful.pretend.until import until

    requests = until(done.run.recording(), event).requests()
    settings = parse_settings(done.report.allocator)
    before = held_of(requests, settings=settings, capacity_bytes=None).peak_reserved_bytes
    return done.report.reserved.simulated_peak_reserved_bytes > _AS_MUCH * before


class Instead(NamedTuple):
    """What is planned of a program that cannot run here.

    Attributes:
        gpus: On what.
        typed: All that it is started with, its launcher's arguments too.
    """

    gpus: str
    typed: Sequence[str]


def pretended_gpu(args: argparse.Namespace) -> "Run":
    """Return the GPU that flags describe."""
    from brimful.pretend import gpu

    return gpu(
        args.gpu,
        world_size=args.world_size,
        rank=args.rank,
        imitate=args.kernels,
        assume_all_selected=args.assume_all_selected,
        says_cuda=True,
        assume=assumed_packages(args.assume),
        weights_dtype=args.weights_dtype or "",
    )


def assumed_packages(typed: Sequence[str]) -> tuple[str, ...]:
    """Return what is stood in for: what somebody typed, else what layers ask for; none: nothing."""
    return tuple(name for name in typed or sorted(LAYERS.values()) if name != "none")


def allocator_of(args: argparse.Namespace) -> str:
    """Return the allocator's settings: typed, or of the environment."""
    if args.allocator is not None:
        return str(args.allocator)
    return settings_in(os.environ)


def ran(
    args: argparse.Namespace,
    pretended: "Run",
    program: Sequence[str],
    *,
    instead: Instead | None = None,
) -> bool:
    """Run the program; say on standard error what stopped it, and return whether it ended well.

    Where it lacks a package its job may be planned ``instead``.
    """
    from brimful.pretend.script_errors import read_error, sentence_of
    from brimful.pretend.scripts import foreign_framework

    # One JSON object is all that may stand on standard output.
    spoken = contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext()
    with spoken:
        told = _unheard if args.json else _told
        error = ended_by(pretended, program, limits_of(args), told)
    if error is None:
        return True
    if isinstance(error, BrimfulError):
        raise error
    name = name_of(program)
    if foreign := foreign_framework(error):
        raise InputError(
            f"{name} imports {foreign}, and brimful pretend covers PyTorch alone: to install "
            f"it would not help, as what it allocates is not seen; the same model in PyTorch "
            f"takes about as much"
        ) from error
    tape = pretended.tape
    read = read_error(error, stood_in=bool(tape.stand_ins), assumptions=tape.assumptions)
    if nearest := _nearest(error, pretended):
        why = sentence_of(read, name=name)
        raise InputError(why, nearest=nearest) from error
    _tell_error(error, read, name, is_whole=args.verbose)
    if _lacks_package(error) and instead is not None:
        _plan_instead(program[0], instead)
    return False


def name_of(program: Sequence[str]) -> str:
    """Return what a program is called by."""
    return " ".join(program[:2]) if program[0] == "-m" else program[0]


def _told(words: str) -> None:
    say(f"brimful: {words}", file=sys.stderr, flush=True)


def _unheard(_words: str) -> None:
    """Say nothing."""


def limits_of(args: argparse.Namespace, *, most_steps: int | None = None) -> "Limits":
    """Return how long a script may run, as the flags say."""
    from brimful.pretend.time_limit import Limits

    return Limits(args.budget, most_steps, args.whole, args.memory_budget)


def ended_by(
    pretended: "Run",
    program: Sequence[str],
    limits: "Limits",
    told: Callable[[str], None] = _unheard,
) -> BaseException | None:
    """Run the program, and return what ended it before its end; None: nothing but its time did.

    Where a stage of a pipeline asks another what it sends, it is run as that one's process first.
    The arguments are ``TimeLimit``'s.
    """
    from brimful.pretend.pipeline_shapes import asking_neighbours

    def run_as(rank: int) -> None:
        if not others:
            told("the stages before this one are run up to what they send, which it asks for")
        others.add(rank)
        with contextlib.redirect_stdout(io.StringIO()):
            _ended_with_texts(pretended.as_rank(rank), program, limits, _unheard)

    others = set[int]()
    return asking_neighbours(lambda: _ended_with_texts(pretended, program, limits, told), run_as)


def _ended_with_texts(
    pretended: "Run",
    program: Sequence[str],
    limits: "Limits",
    told: Callable[[str], None],
) -> BaseException | None:
    """Run the program, as ``ended_by`` does, and by itself.

    Of loops that write a text few rounds are run; where these do not bear out what was told of the
    others, or there is an error behind them, it is run again.
    """
    from brimful.pretend.text_loops import PERIODS
    from brimful.pretend.time_limit import limited

    limit = partial(limited, pretended, limits, told)
    periods = [0] if limits.is_whole else [*PERIODS, 0]
    while True:
        error, loops = _ended_by(pretended, program, limit, periods.pop(0))
        if pretended.cut is not None and not pretended.cut.is_settled:
            return error  # another run would come no farther in its time
        if loops is None or loops.is_borne_out:
            if error is None or loops is None or not loops.any_left_out:
                return error
            periods = [0]
        told("run again with more tokens of its texts, as those that were left out may differ")


def _ended_by(
    pretended: "Run",
    program: Sequence[str],
    limited: Callable[[], contextlib.AbstractContextManager["TimeLimit"]],
    period: int,
) -> tuple[BaseException | None, "TextLoops | None"]:
    """Run the program once, and return what loops that write texts it went through, too.

    ``period``: see ``leaving_out_tokens``.
    """
    from brimful.cli.main import is_of_interrupt
    from brimful.pretend.made_again import folders_made_again
    from brimful.pretend.script_lines import is_library
    from brimful.pretend.scripts import run_program
    from brimful.pretend.text_loops import leaving_out_tokens
    from brimful.process.library_output import own_warnings_alone

    name = name_of(program)
    limit: TimeLimit | None = None
    loops: TextLoops | None = None
    try:
        with pretended:
            try:
                with (
                    folders_made_again(),
                    own_warnings_alone(is_library),
                    leaving_out_tokens(pretended, period) as loops,
                    limited() as limit,
                ):
                    run_program(program, loops.names_for)
            except SystemExit as ended:
                code = ended.code
                said = f" exit code {code:d}" if isinstance(code, int) else f": {code}"
                if code:
                    raise InputError(f"{name} ended with{said}") from ended
            assert limit is not None, "the program has run"
            pretended.cut, pretended.known_event = limit.passed, limit.known_event
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if is_of_interrupt(error):
            raise KeyboardInterrupt from error
        if limit is None or not limit.ended(error):
            return error, loops
        pretended.cut, pretended.known_event = limit.cut, limit.known_event
    return None, loops


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
        is_of_host,
        own_traceback,
        sentence_of,
    )

    why = sentence_of(read, name=name, remedy=_remedy(error))
    say(f"brimful: {one_line(why)}", file=sys.stderr)
    if is_whole:
        traceback.print_exception(type(error), error, below_runners(error.__traceback__))
        return
    if _lacks_package(error) or is_of_host(error):  # the sentence says the line, and what to do
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


def _plan_instead(script: str, instead: Instead) -> None:
    """Plan what a script says that lacks a package, where its text names its model or builds it.

    Of a model that cannot be planned it is said what its states take.
    """
    from brimful.cli.script_configs import is_planned, least_words
    from brimful.cli.script_settings import built_by, plan_of

    if words := plan_of(script, *instead):
        _plan(script, words)
        return
    with tempfile.TemporaryDirectory() as folder:
        built = built_by(script, instead.typed, Path(folder))
        if built is None:
            return
        if not is_planned(built.folder):
            if least := least_words(built):
                say(f"brimful: as far as {Path(script).name} is read: {least}", file=sys.stderr)
            return
        words = plan_of(script, *instead, built=built)
        words[1] = built.config
        if "--from" in words:
            place = words.index("--from") + 1
            words[place] = str(Path(words[place]).absolute())
        with contextlib.chdir(folder):  # in which the model is called by its configuration alone
            _plan(script, words, f", of the {built.config} that it writes out")


def _plan(script: str, words: Sequence[str], whose: str = "") -> None:
    """Say what is planned in place of a script, and plan it.

    ``whose``: what else is to be said of it.
    """
    from brimful.cli.main import main
    from brimful.text.escaping import shell_words

    read = Path(script).name
    if "--from" in words:
        read += f" and {words[words.index('--from') + 1]}"
    why = f"what is read in {read} is planned instead, in Brimful's own loop{whose}"
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
