"""``brimful``: picks the verb, and turns our exceptions into one sentence and an exit code."""

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise

from brimful import __version__
from brimful.cli.job_file import expand
from brimful.cli.nearest import answer
from brimful.cli.output import BAD_INPUT, INTERRUPTED, OUT_OF_TIME
from brimful.cli.parsing import HelpText, Parser
from brimful.errors import BrimfulError, InputError, OutOfTimeError, unknown_name
from brimful.text.escaping import check_line, one_line
from brimful.text.terminal import forget_notes, say

VERBS = {
    "demo": "the main job, end to end, on this machine",
    "estimate": "predict peak memory and step time of one strategy",
    "plan": "find the fastest strategy that fits, and say why",
    "shop": "which GPU and how many, under a deadline or a budget; own or rent",
    "simulate": "run a plan's own code on a pretend GPU and read its memory",
    "pretend": "run any script on a pretend GPU and read its memory",
    "train": "run a plan for real, measured",
    "report": "write the one-page report of a run",
    "precision": "look at every module's numbers: what overflows, vanishes or is lost",
    "export": "write a plan as what something else takes",
    "infer": "run a model that writes text for real, measured",
    "convert": "quantise a trained model to int8 or int4, and check that it is the same",
    "web": "a page to explore with: paste a model, move a slider, see what breaks first",
    "rules": "check rules of thumb on your model and GPU",
    "calibrate": "measure this machine's rates",
    "validate": "predict the published runs that are carried, and say how near that comes",
    "profile": "trace what a block allocates and computes",
    "models": "list the known models",
    "gpus": "list the known GPUs",
    "completion": "print a script that teaches your shell these verbs and their flags",
}
EXTRAS = {
    "train": ("torch", "transformers", "peft", "safetensors", "tokenizers", "jinja2"),
    "data": ("datasets", "pyarrow"),
    "quant": ("bitsandbytes",),
    "qat": ("torchao",),
    "deepspeed": ("deepspeed",),
    "liger": ("liger_kernel", "triton"),
    "web": ("starlette", "uvicorn"),
}
"""What is installed by ``pip install 'brimful[EXTRA]'``, by the names that are imported."""


JOB_VERBS = ("estimate", "plan", "shop", "simulate", "train", "precision")
"""Verbs that take a job file where a model may stand."""
SCRIPT_VERBS = ("pretend",)
"""Verbs that hand the rest of their arguments to the user's script."""
_MOST_SHOWN = 80


def parser_of(verb: str) -> Parser:
    """Build the parser of one verb; only its own module is imported."""
    module = import_module(f"brimful.cli.{verb}")
    parser = Parser(
        prog=f"brimful {verb}",
        description=module.HELP,
        allow_abbrev=False,
        formatter_class=HelpText,
    )
    module.add_arguments(parser)
    places = [action.metavar or action.dest for action in parser._get_positional_actions()]  # noqa: SLF001
    # One short line: argparse's own lists thirty flags, and differs from version to version.
    parser.usage = parser.usage or " ".join(["%(prog)s", *map(str, places), "[flags]"])
    return parser


def as_verb(verb: str, args: argparse.Namespace) -> argparse.Namespace:
    """Return flags as those of another verb, which has its own defaults for what they lack.

    Of several values the first is taken; nothing is written.
    """
    told = parser_of(verb).parse_args([args.model] if args.model else [])
    for name, value in vars(args).items():
        if hasattr(told, name) and name != "output":
            setattr(told, name, value[0] if isinstance(value, list) else value)
    return told


def usage() -> str:
    """List the verbs."""
    lines = [f"  {verb:10s} {what}" for verb, what in VERBS.items()]
    return "\n".join(["usage: brimful VERB ...", "", *lines, "", "brimful VERB --help says more"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    ``argv``: the arguments; None takes the process's own. Returns 0: fits or done. 1: does not fit.
    2: bad input. 124: a search ended with its budget and found nothing that fits. 130: interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    forget_notes()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
    except BrimfulError as error:
        is_late = isinstance(error, OutOfTimeError)
        return _complain(str(error), OUT_OF_TIME if is_late else BAD_INPUT)
    except ModuleNotFoundError as error:
        return _complain(_without(error, arguments), BAD_INPUT)
    except KeyboardInterrupt:
        code = _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _silence_stdout()
        code = 0
    except OSError as error:
        # What no layer foresaw: mostly the output itself on a full disk.
        _silence_stdout()
        place = error.filename or "the output"
        return _complain(
            f"{place} cannot be read or written ({error.strerror or error}); check the disk and "
            f"the path",
            BAD_INPUT,
        )
    except Exception as error:
        if not is_of_interrupt(error):
            raise
        code = _complain("interrupted", INTERRUPTED)
    return code


def is_of_interrupt(error: BaseException | None) -> bool:
    """Whether an error came of a Ctrl-C: what that ends, as a mode of PyTorch's, may fail too."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _without(error: ModuleNotFoundError, arguments: Sequence[str]) -> str:
    """Say what has to be installed.

    Raises ModuleNotFoundError: it is nothing that one of our extras brings.
    """
    name = (error.name or "").partition(".")[0]
    extra = next((extra for extra, names in EXTRAS.items() if name in names), None)
    if extra is None:
        raise error
    return (
        f"brimful {arguments[0]} needs {name} here, which is not installed; "
        f"pip install 'brimful[{extra}]'"
    )


def _complain(message: str, code: int) -> int:
    """Print one line, whatever a name that the user gave may hold."""
    forget_notes()
    say(f"brimful: {one_line(message)}", file=sys.stderr)
    return code


def _silence_stdout() -> None:
    """Drop what could not be written, or Python complains of it once more as it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(verb: str, arguments: list[str]) -> argparse.Namespace:
    """Parse a verb's arguments, a job file's among them."""
    typed, parser = list(arguments), parser_of(verb)
    if verb in JOB_VERBS:
        arguments = expand(arguments, parser, lambda: [parser_of(other) for other in JOB_VERBS])
        for argument in arguments:
            _check_argument(argument, is_free=False)
    args = parser.parse_args(arguments)
    args.command = verb, *typed
    return args


def _check_argument(argument: str, *, is_free: bool) -> None:
    """Refuse what no flag means and what argparse, files or terminals trip over.

    ``argument``: as it was typed, or as a job file has it. ``is_free``: whether it may be a
    script's own, which may have lines and tabs.
    """
    checked = argument.translate({ord("\n"): " ", ord("\t"): " "}) if is_free else argument
    check_line(checked, what=f"the argument {argument[:_MOST_SHOWN]!a}")
    flag, _, value = argument.partition("=")
    if flag.startswith("-") and value == "--":  # argparse makes an empty list of it
        raise InputError(f"{flag} is given as --, which is no value; give one")


def _answering(verb: str, rest: Sequence[str]) -> str:
    """Return the verb that answers: of what trains nothing there is nothing to search."""
    asked = {*rest, *map(" ".join, pairwise(rest))}
    if verb != "plan" or not asked & {"--task inference", "--task=inference"}:
        return verb
    say("brimful: inference has no settings to search; this is brimful estimate", file=sys.stderr)
    return "estimate"


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        say(usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else BAD_INPUT
    if arguments[0] in {"--version", "-V"}:
        say(f"brimful {__version__}")
        return 0
    verb, *rest = arguments
    for argument in arguments:
        _check_argument(argument, is_free=verb in SCRIPT_VERBS)
    if verb not in VERBS:
        raise unknown_name("verb", verb, VERBS)
    verb = _answering(verb, rest)
    return run_verb(verb, parse(verb, rest))


def run_verb(verb: str, args: argparse.Namespace) -> int:
    """Run a verb, or where it refuses, answer the nearest question; return the exit code.

    Raises BrimfulError: nothing near it can be answered.
    """
    return answer(verb, import_module(f"brimful.cli.{verb}").run, args)
