"""The flags that verbs share, and how they become a Job, a Cluster and a Strategy."""

import argparse
import difflib
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_args

from brimful.cli import defaults
from brimful.errors import InputError, unknown_name
from brimful.hardware.cluster import Cluster
from brimful.hardware.gpus import load_cluster
from brimful.job import Job, Method, Optimizer, Precision, Task, check_job
from brimful.models.config import load_model
from brimful.models.spec import ModelSpec
from brimful.plan import read_plan
from brimful.strategy import Attention, Strategy, check_strategy
from brimful.units import parse_bytes, parse_count

PLAN_SUFFIXES = (".yaml", ".yml")
"""By these a plan is told from a model's config.json."""


class Asked(NamedTuple):
    """What the user asked about, resolved and checked."""

    job: Job
    cluster: Cluster
    strategy: Strategy


HELP_WIDTH = 100
_FLAG_WIDTH = 32


class HelpText(argparse.HelpFormatter):
    """argparse's help, at most 100 columns wide, with the metavar of a flag written once."""

    def __init__(self, prog: str) -> None:
        """Fit the terminal."""
        width = min(HELP_WIDTH, shutil.get_terminal_size((HELP_WIDTH, 24)).columns)
        super().__init__(prog, max_help_position=_FLAG_WIDTH, width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        # As Python 3.13 does, so that help and docs are the same on every version.
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        metavar = self._format_args(action, action.dest.upper())
        return f"{', '.join(action.option_strings)} {metavar}"


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ours: one sentence, no usage dump."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print.

        Raises:
            InputError: Always.
        """
        refused = sys.exception()
        if isinstance(refused, argparse.ArgumentError):
            # argparse catches every ValueError of a flag's type and drops what it said.
            cause = refused.__context__
            if isinstance(cause, InputError):
                raise cause
        raise InputError(f"{message}; {self._nearest_flag(message)}see {self.prog} --help")

    def _nearest_flag(self, message: str) -> str:
        misspelt = re.search(r"(?<=^unrecognized arguments: )--[^\s=]+", message)
        known = list(self._option_string_actions)
        near = difflib.get_close_matches(misspelt[0], known, n=1) if misspelt else []
        return f"did you mean {near[0]}? " if near else ""


def choice(what: str, allowed: tuple[str, ...]) -> Callable[[str], str]:
    """Return an argparse type that takes one of ``allowed`` and knows the nearest otherwise."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise unknown_name(what, text, allowed)
        return text

    return parse


_FRACTION = re.compile(r"\d*\.\d*[1-9]\d*")


def whole(what: str, *, least: int = 1) -> Callable[[str], int]:
    """Return an argparse type for counts such as ``4096`` or ``4k``, of ``least`` or more."""

    def parse(text: str) -> int:
        try:
            count = parse_count(text)
        except InputError as error:
            raise InputError(f"{what} {error}") from error
        if _FRACTION.fullmatch(text.strip()):
            raise InputError(f"{what} {text!r} is not a whole number; write it like 4096 or 4k")
        if count < least:
            raise InputError(f"{what} {text} is too few; give {least} or more")
        return count

    return parse


def size(what: str) -> Callable[[str], int]:
    """Return an argparse type for sizes such as ``1.5GiB``."""

    def parse(text: str) -> int:
        try:
            return parse_bytes(text)
        except InputError as error:
            raise InputError(f"{what} {error}") from error

    return parse


def number(what: str) -> Callable[[str], float]:
    """Return an argparse type for real numbers."""

    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError as error:
            raise InputError(f"{what} {text!r} is not a number; write it like 3e-4") from error

    return parse


def path(what: str, *, suffixes: tuple[str, ...] = ()) -> Callable[[str], Path]:
    """Return an argparse type for paths, which end in one of ``suffixes`` where there are any."""

    def parse(text: str) -> Path:
        if not text.strip():
            raise InputError(f"{what} {text!r} is no path; give one")
        if suffixes and Path(text).suffix not in suffixes:
            raise InputError(f"{what} {text} must end in {' or '.join(suffixes)}; add it")
        return Path(text)

    return parse


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the positional MODEL and the cluster flags."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a name (brimful models), folder, config.json or plan.yaml")
    add("--gpus", metavar="GPU", help=f"a name (brimful gpus); default {defaults.GPUS}")
    add(
        "--memory-limit",
        metavar="SIZE",
        type=size("--memory-limit"),
        help="use at most this much of it, e.g. 1.5GiB",
    )


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the flags that change what is learnt."""
    add = parser.add_argument_group("job (what is learnt)").add_argument
    _add_choice(add, "--task", get_args(Task), defaults.TASK)
    _add_choice(add, "--method", get_args(Method), defaults.METHOD)
    _add_choice(add, "--precision", get_args(Precision), defaults.PRECISION)
    _add_choice(add, "--optimizer", get_args(Optimizer), defaults.OPTIMIZER)
    seq_len = f"default: what the model covers, at most {defaults.LONGEST_SEQ_LEN}"
    _add_whole(add, "--seq-len", f"tokens per sequence; {seq_len}")
    _add_whole(add, "--global-batch", "sequences per optimizer step; default: one micro-batch")
    _add_whole(add, "--steps", f"optimizer steps; default {defaults.NUM_STEPS}")
    _add_whole(add, "--tokens", "tokens of the run, e.g. 1B, instead of --steps")
    _add_number(add, "--learning-rate", f"at its peak; default {defaults.LEARNING_RATE:g}")
    share = f"{defaults.WARMUP_SHARE:g} of the steps"
    _add_whole(add, "--warmup-steps", f"to the learning rate's peak; default {share}", least=0)
    _add_number(add, "--weight-decay", f"default {defaults.WEIGHT_DECAY:g}")
    _add_number(add, "--clip", f"largest gradient norm, 0 is off; default {defaults.CLIP:g}")
    _add_whole(add, "--seed", f"of weights and data order; default {defaults.SEED}", least=0)


def add_strategy(parser: argparse.ArgumentParser, *, searched: bool) -> None:
    """Add the flags that change memory and speed only.

    Args:
        parser: Of the verb.
        searched: Whether what is not given is searched for, or has a default.
    """

    def default(value: object) -> str:
        return "searched for without it" if searched else f"default {value}"

    add = parser.add_argument_group("strategy (how it is run)").add_argument
    _add_whole(add, "--micro-batch", f"sequences a forward pass; {default(defaults.MICRO_BATCH)}")
    add(
        "--activation-checkpointing",
        "--ac",
        metavar="none|full|full:K",
        help=f"blocks recomputed; {default(defaults.ACTIVATION_CHECKPOINTING)}",
    )
    chunks = default(defaults.LOSS_CHUNKS)
    _add_whole(add, "--loss-chunks", f"pieces of logits and loss; {chunks}")
    _add_choice(add, "--attention", get_args(Attention), defaults.ATTENTION)


def _add_choice(add: Callable[..., Any], flag: str, allowed: tuple[str, ...], default: str) -> None:
    kind = choice(flag.removeprefix("--"), allowed)
    add(flag, metavar="NAME", type=kind, help=f"{' or '.join(allowed)}; default {default}")


def _add_whole(add: Callable[..., Any], flag: str, words: str, *, least: int = 1) -> None:
    add(flag, metavar="N", type=whole(flag, least=least), help=words)


def _add_number(add: Callable[..., Any], flag: str, words: str) -> None:
    add(flag, metavar="X", type=number(flag), help=words)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def asked(args: argparse.Namespace) -> Asked:
    """Resolve a model with flags, or a plan file, into checked values.

    Raises:
        InputError: Something given cannot be used, or flags stand beside a plan file.
    """
    if is_plan(args.model):
        refuse_flags(args)
        plan = read_plan(Path(args.model))
        return Asked(plan.job, plan.cluster, plan.strategy)
    job = job_from(args)
    return Asked(job, cluster_from(args), strategy_from(args, job))


def is_plan(model: str) -> bool:
    """Whether what stands where a model may stand is a plan file."""
    return Path(model).suffix in PLAN_SUFFIXES


def refuse_flags(args: argparse.Namespace) -> None:
    """Refuse job and strategy flags beside a plan file.

    Raises:
        InputError: One was given; it would be ignored.
    """
    for name in (*_JOB, *_STRATEGY, "gpus", "memory_limit"):
        if getattr(args, name, None) is not None:
            raise InputError(
                f"--{name.replace('_', '-')} stands beside the plan {args.model}, which already "
                f"says it; edit the plan or give a model"
            )


_JOB = (
    "task", "method", "precision", "optimizer", "seq_len", "global_batch", "steps", "tokens",
    "learning_rate", "warmup_steps", "weight_decay", "clip", "seed",
)  # fmt: skip
_STRATEGY = ("micro_batch", "activation_checkpointing", "loss_chunks", "attention")


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def cluster_from(args: argparse.Namespace) -> Cluster:
    """Resolve ``--gpus`` and ``--memory-limit``."""
    return load_cluster(_or(args.gpus, defaults.GPUS), memory_limit_bytes=args.memory_limit)


def job_from(args: argparse.Namespace) -> Job:
    """Resolve the job flags, with the defaults' table for what is not given."""
    model = load_model(args.model)
    seq_len = _or(args.seq_len, defaults.seq_len(model))
    global_batch = _or(args.global_batch, _or(args.micro_batch, defaults.MICRO_BATCH))
    num_steps = _num_steps(args, model, seq_len * global_batch)
    return check_job(
        Job(
            model=model,
            task=_or(args.task, defaults.TASK),
            method=_or(args.method, defaults.METHOD),
            precision=_or(args.precision, defaults.PRECISION),
            optimizer=_or(args.optimizer, defaults.OPTIMIZER),
            seq_len=seq_len,
            global_batch=global_batch,
            num_steps=num_steps,
            learning_rate=_or(args.learning_rate, defaults.LEARNING_RATE),
            warmup_steps=_or(args.warmup_steps, defaults.warmup_steps(num_steps)),
            weight_decay=_or(args.weight_decay, defaults.WEIGHT_DECAY),
            clip=_or(args.clip, defaults.CLIP),
            seed=_or(args.seed, defaults.SEED),
        )
    )


def _num_steps(args: argparse.Namespace, model: ModelSpec, tokens_per_step: int) -> int:
    if args.tokens is None:
        return int(_or(args.steps, defaults.NUM_STEPS))
    if args.steps is not None:
        raise InputError(
            f"--steps {args.steps} and --tokens {args.tokens} both say how long; give one"
        )
    if tokens_per_step < 1:
        raise InputError(
            f"--seq-len x --global-batch is {tokens_per_step} for {model.name}; give 1 or more"
        )
    return -(-int(args.tokens) // tokens_per_step)


def attention_from(args: argparse.Namespace) -> Attention:
    """Resolve ``--attention``."""
    attention: Attention = _or(args.attention, defaults.ATTENTION)
    return attention


def strategy_from(args: argparse.Namespace, job: Job) -> Strategy:
    """Resolve the strategy flags, with the defaults' table for what is not given."""
    return check_strategy(
        job,
        Strategy(
            micro_batch=_or(args.micro_batch, defaults.MICRO_BATCH),
            activation_checkpointing=_or(
                args.activation_checkpointing, defaults.ACTIVATION_CHECKPOINTING
            ),
            loss_chunks=_or(args.loss_chunks, defaults.LOSS_CHUNKS),
            attention=attention_from(args),
        ),
    )
