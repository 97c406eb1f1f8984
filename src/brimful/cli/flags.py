"""The flags that verbs share; those of jobs and strategies are made of their fields' metadata."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, cast, get_args, get_origin

from brimful.cli import defaults
from brimful.cli.elsewhere import NOT_RUN, taken_as
from brimful.cli.parsing import (
    above_zero,
    choice,
    listed,
    number,
    of_run,
    path,
    size,
    whole,
)
from brimful.errors import InputError
from brimful.hardware.links import network_names
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.techniques.quantization import Quantization
from brimful.units import parse_card_bytes, parse_length, parse_limit
from brimful.values.flag import Flag, FlaggedField, flags_of
from brimful.values.job import PREFERENCE as PREFERENCE_TASK
from brimful.values.job import QAT, Adapter, Dropout, Job, LossScale, Preference
from brimful.values.strategy import Strategy, Zero

INFERENCE = "inference"
"""A task that trains nothing; ``brimful.cli.inference`` takes it over."""
_OF_MODEL = {
    "vocab_size": FlaggedField(
        Flag("rows of the embedding at least, for tokens that were added"), int
    ),
    "max_positions": FlaggedField(
        Flag("of rotary ones, scaled to longer texts (YaRN, linear)", is_length=True), int
    ),
    "num_labels": FlaggedField(Flag("classes of a classifier; {default}"), int),
    "tokens": FlaggedField(
        Flag("tokens of the run, e.g. 1B, or 30MB of text, instead of --steps", metavar="N"), int
    ),
    "rows": FlaggedField(
        Flag("rows of your data, each of --seq-len, instead of --steps", metavar="N"), int
    ),
    "epochs": FlaggedField(Flag("times that --rows are seen; {default}", metavar="X"), float),
}
"""Flags of a job that are no field of it: what is added to its model, and how long it runs."""
_FIELDS = {
    name: field
    for struct in (Job, Adapter, LossScale, Preference, Quantization, Strategy)
    for name, field in flags_of(struct).items()
} | _OF_MODEL
ADAPTER, LOSS_SCALE = (*flags_of(Adapter),), (*flags_of(LossScale),)
PREFERENCE, QUANTIZATION = (*flags_of(Preference),), (*flags_of(Quantization),)
_ROUTERS = ("router_aux_loss", "router_z_loss", "allow")
_LEARNT = (
    "task", "method", "precision", "keep_fp32", "optimizer", "schedule", "packing", "weights",
    "vocab_size", "max_positions", "num_labels", "seq_len", "global_batch", "steps", "tokens",
    "rows", "epochs", "learning_rate", "warmup_steps", "weight_decay", "beta1", "beta2", "epsilon",
    "clip", "dropout", "seed",
)  # fmt: skip
"""In the order of their help."""
JOB = (*_LEARNT, *ADAPTER, *LOSS_SCALE, *PREFERENCE, *_ROUTERS, *QUANTIZATION)
STRATEGY = Strategy.__struct_fields__
"""Every flag of a strategy, as argparse calls them; each is a field of ``Strategy``."""
_PIPELINE = ("pp_schedule", "stages_per_device", "stage_blocks")
TRAINING = (*JOB, *STRATEGY)
"""Every flag of a job and of a strategy, as argparse calls them."""


def add_model(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """Add the positional MODEL and the cluster flags.

    ``optional``: whether something else may name the model.
    """
    add = parser.add_argument
    nargs = "?" if optional else None
    model = "a name (brimful models), folder, config.json or plan.yaml"
    add("model", metavar="MODEL", nargs=nargs, help=model)
    add(
        "--gpus",
        metavar="GPUS",
        help=f"a name (brimful gpus), 8xh100-80gb, 4x8xh100-80gb; default {defaults.GPUS}",
    )
    add(
        "--network",
        metavar="NAME",
        type=choice("network", network_names()),
        help=f"between nodes: {', '.join(network_names())}; default: of the maker's own systems, "
        f"else of plain servers",
    )
    add(
        "--memory-limit",
        metavar="SIZE",
        type=size("--memory-limit", parse_limit),
        help="use at most this much of each, e.g. 1.5GiB or 70%%; the card stays as it is",
    )
    add(
        "--card-memory",
        metavar="SIZE",
        type=size("--card-memory", parse_card_bytes),
        help="of each card: 48GB as cards are labelled, 47.4GiB what programs have of it; default: "
        "what is known of it",
    )
    add(
        "--host-memory",
        metavar="SIZE",
        type=size("--host-memory"),
        help="of a node's host; default: this machine's, unknown of others",
    )


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the flags that change what is learnt."""
    groups = {
        "job (what is learnt)": _LEARNT,
        f"preferences (--task {PREFERENCE_TASK})": PREFERENCE,
        "adapters (lora, dora, qlora)": ADAPTER,
        "loss scaling (fp16-mixed, fp16-master)": LOSS_SCALE,
        f"quantisation-aware training (--method {QAT})": QUANTIZATION,
        "routers (models with experts)": _ROUTERS,
    }
    for group, names in groups.items():
        _add_each(parser, group, names)


def add_strategy(parser: argparse.ArgumentParser, *, searched: bool) -> None:
    """Add the flags that change memory and speed only.

    ``searched``: whether what is not given is searched for, or has a default.
    """
    names = [name for name in STRATEGY if name not in _PIPELINE]
    add = _add_each(parser, "strategy (how it is run)", names, searched=searched)
    add("--cp", type=whole("--cp"), help=argparse.SUPPRESS)  # typed by many, and refused in words
    if not searched:
        add_pipeline(parser)


def add_pipeline(parser: argparse.ArgumentParser, *, searched: bool = False) -> None:
    """Add the flags that say how a pipeline is laid out, and in which order it works.

    ``searched``: whether what is not given is searched for, or has a default.
    """
    names = _PIPELINE[:-1] if searched else _PIPELINE
    _add_each(parser, "pipeline (--pp 2 or more)", names, searched=searched)


def _add_each(
    parser: argparse.ArgumentParser, group: str, names: Iterable[str], *, searched: bool = False
) -> Callable[..., Any]:
    """Add the flags of a group, and return what adds more to it."""
    add = parser.add_argument_group(group).add_argument
    for name in names:
        add_field(add, name, searched=searched)
    return add


def add_field(add: Callable[..., Any], name: str, *, searched: bool = False) -> None:
    """Add the flag of a field, of its metadata and its type.

    ``add``: ``add_argument`` of a parser or a group. ``searched``: whether what is not given is
    searched for, or has a default.
    """
    flag, kind = _FIELDS[name]
    typed = [f"--{name.replace('_', '-')}", *([flag.also] if flag.also else [])]
    words = _help(name, flag, kind, searched=searched)
    if kind is bool:
        add(*typed, action="store_const", const=True, help=words)
        return
    metavar, read = _read(name, flag, kind)
    if searched and flag.is_listed:
        read = listed(read or str)
    add(*typed, metavar=flag.metavar or metavar, type=read, help=words)


def _read(name: str, flag: Flag, kind: Any) -> tuple[str, Callable[[str], Any] | None]:
    """Return what stands for the value of a flag, and its argparse type; None: any text."""
    typed = f"--{name.replace('_', '-')}"
    if name in _OWN_READERS:
        return flag.metavar, _OWN_READERS[name]
    if get_origin(kind) is Literal:
        others = taken_as(name) if name in NOT_RUN else _SAME.get(name)
        read = choice(typed.removeprefix("--"), _choices(name, flag, kind), others)
        if all(isinstance(each, int) for each in get_args(kind)):
            return "N", lambda text: int(read(text))
        return "NAME", read
    if kind is int:
        length = {"read": parse_length} if flag.is_length else {}
        return "N", whole(typed, least=flag.least, **length)
    return ("X", number(typed)) if kind is float else ("NAMES", None)


def _choices(name: str, flag: Flag, kind: Any) -> tuple[str, ...]:
    own = [str(each) for each in get_args(kind) if each not in flag.left_out]
    return (*own, INFERENCE) if name == "task" else (*own,)


def _help(name: str, flag: Flag, kind: Any, *, searched: bool) -> str:
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    choices = _choices(name, flag, kind) if get_origin(kind) is Literal else ()
    is_searched = searched and flag.is_searched
    return flag.words.format(
        default=defaults.searched(name) if is_searched else defaults.WITHOUT.get(name, ""),
        either=" or ".join(choices),
        each=", ".join(choices),
        momentum=_whose(is_momentum=True),
        moments=_whose(is_momentum=False),
    )


def _whose(*, is_momentum: bool) -> str:
    """Name the rules that read ``beta1`` as the momentum, or as a rate of their moments.

    A rule with another one beside it leaves that to the other.
    """
    every = [rule for rule in OPTIMIZERS.values() if not rule.tells_hidden]
    rules = [rule for rule in every if "beta1" in rule.rates]
    words = [rule.words for rule in rules if rule.is_momentum == is_momentum]
    return " and ".join(f"{word}'s" for word in dict.fromkeys(words))


def stage_of_zero(text: str) -> Zero:
    """Read a ZeRO stage."""
    if text not in {"0", "1", "2", "3"}:
        raise InputError(f"--zero {text} is no stage of ZeRO; give 0, 1, 2 or 3")
    return cast("Zero", int(text))


def _block_counts(text: str) -> tuple[int, ...]:
    parse = whole("--stage-blocks")
    return tuple(parse(part) for part in text.split(","))


def _dropout(text: str) -> str:
    """Read what is dropped; a probability is taken for those of the model's configuration."""
    others, rate = {"none": "off", "on": "model"}, 0.0
    with suppress(ValueError):
        rate = float(text)
        others[text] = "model" if rate else "off"
    why = ": probabilities are those of the model's configuration" if rate else ""
    return choice("dropout", get_args(Dropout), others, remark=lambda _text: why)(text)


_SAME: dict[str, Mapping[str, str]] = {
    "attention": dict.fromkeys(
        ("fa2", "fa3", "flash-attention-2", "flash-attention-3", "flash-attn"), "sdpa"
    ),
}
"""Of a flag, other words for what it takes, such as those of ``attn_implementation``."""
_OWN_READERS: dict[str, Callable[[str], Any]] = {
    "zero": stage_of_zero, "stage_blocks": _block_counts, "activation_checkpointing": str,
    "tokens": of_run("--tokens"), "epochs": above_zero("--epochs"), "dropout": _dropout,
}  # fmt: skip
"""What reads the flags whose values their types do not tell."""


_SPOT = frozenset({"interruptible", "preemptible", "spot"})
_OTHER_MARKETS = {
    **dict.fromkeys((*_SPOT, "marketplace", "vast", "vast.ai"), "community"),
    **dict.fromkeys(("cloud", "data-center", "datacenter", "on-demand"), "secure"),
}


def _of_market(word: str) -> str:
    """Say what a market lacks that is taken for another."""
    is_spot = word.lower() in _SPOT
    return ": no prices of spot machines ship, and owners' single ones come nearest" * is_spot


def add_prices(parser: argparse.ArgumentParser, *, market: str | None = None) -> None:
    """Add ``--market`` and ``--prices``."""
    from brimful.cost.money import MARKETS

    parser.add_argument(
        "--market",
        metavar="NAME",
        type=choice("market", MARKETS, _OTHER_MARKETS, remark=_of_market),
        default=market,
        help="whose prices: secure (data centres) or community (owners of single machines); "
        f"default: {market or 'secure, and community where there is no other'}",
    )
    parser.add_argument(
        "--prices",
        metavar="FILE",
        type=path("--prices"),
        help="YAML or JSON of your own prices: GPU: USD per GPU-hour, or {rent: USD, buy: USD}",
    )


_TABLES = "also print every table: inputs with all defaults, memory by item and phase, assumptions"


def add_verbose(parser: argparse.ArgumentParser, tables: str = _TABLES) -> None:
    """Add ``-v``; ``tables``: what it prints, in words."""
    parser.add_argument("-v", "--verbose", action="store_true", help=tables)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
