"""What the page asks, as one record: read from an address, written as one, told as a command.

Everything comes from people whom nobody knows. A state holds short lines of text under known keys,
and a configuration that is bounded in size and depth; what the lines mean is checked by the command
line's own parser. Nothing in a state names a file of this machine.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from brimful.cli import flags
from brimful.errors import InputError, unknown_name
from brimful.hardware.gpus import LOCAL
from brimful.hardware.names import split_counts
from brimful.models.hub import is_hub_id
from brimful.text.escaping import check_line, shell_words

MOST_CHARS = 120
"""Of one field."""
MOST_CONFIG_BYTES = 16 * 1024
"""Of a pasted config.json without its spaces; those of the hub have 0.5 to 6 KiB."""
MOST_DEPTH = 6
"""Of brackets in it; those of the hub have three."""
MODEL, CONFIG, HUB, WHAT, GPUS = "model", "config", "hub", "what", "gpus"
PASTED = "pasted"
"""What a pasted configuration is called."""

INFERENCE = "inference"
WHATS: dict[str, tuple[str, ...]] = {
    "full": ("--method=full",),
    "lora": ("--method=lora",),
    "qlora": ("--method=qlora",),
    "dora": ("--method=dora",),
    "dpo": ("--task=dpo", "--method=full"),
    "dpo-lora": ("--task=dpo", "--method=lora"),
    "dpo-qlora": ("--task=dpo", "--method=qlora"),
    "pretrain": ("--task=causal-lm", "--method=full"),
    INFERENCE: ("--task=inference",),
}
"""What to do, and the flags that say it."""
LENGTHS = ("seq_len", "global_batch", "tokens", "max_positions")
JOB = (
    *LENGTHS, "precision", "optimizer", "packing", "lora_rank", "lora_targets", "base",
)  # fmt: skip
NO_FIELDS = frozenset({"engine", "engine_settings"})
"""Flags of a strategy that the page does not ask for: it answers for PyTorch's own engine."""
STRATEGY = tuple(name for name in flags.STRATEGY if name not in NO_FIELDS)
CLUSTER = ("network", "memory_limit", "card_memory", "host_memory")
OF_INFERENCE = ("weights_format", "prompt_len")
OTHER = ("market",)
PROGRAM = "program"
"""The program that is to run a plan: ``--for`` of the verbs that plan and simulate for it."""
_SPELLED = {PROGRAM: "--for"}
ADAPTERS = ("lora_rank", "lora_targets", "base")
FIELDS = (
    MODEL, CONFIG, HUB, WHAT, GPUS, *JOB, *STRATEGY, *CLUSTER, *OF_INFERENCE, *OTHER, PROGRAM,
)  # fmt: skip
"""Every key of a state; but for the first five they are flags with underscores."""
_SWITCHES = frozenset({"optimizer_in_backward"})
_SHARED = frozenset({"seq_len", "global_batch", "max_positions", "precision", "allocator", "tp"})
"""Fields of training's that inference has too."""
USUAL = {MODEL: "llama-3.1-8b", WHAT: "lora", GPUS: "rtx-4090"}
"""What the page asks where an address asks nothing."""
_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/[\w./-]+")
_PATHS = ("/", "\\", "~", "@", ":", ".json", ".yaml", ".yml")
"""What a name of a model never has, but a path, a plan, a job file or a factory."""


class State(NamedTuple):
    """One question of the page.

    Attributes:
        given: Fields that are not empty, by key, in the order of ``FIELDS``.
        config: A pasted configuration; None: ``given`` names the model.
    """

    given: dict[str, str]
    config: dict[str, Any] | None = None

    @property
    def what(self) -> str:
        """What is to be done."""
        return self.given[WHAT]

    def changed(self, **changes: str) -> "State":
        """Return the same question with other values; an empty one takes a field out."""
        given = {key: value for key, value in {**self.given, **changes}.items() if value}
        return self._replace(given=_ordered(given))


def read_state(query: Mapping[str, str]) -> State:
    """Read a question, and refuse what no page of ours asks."""
    given: dict[str, str] = {}
    for key, value in query.items():
        if key not in FIELDS:
            raise unknown_name("field", key[:MOST_CHARS], FIELDS)
        text = value.strip()
        if key == CONFIG or not text:
            continue
        if len(text) > MOST_CHARS:
            raise InputError(
                f"{key} has {len(text):,} characters; give {MOST_CHARS} at most, and a "
                f"configuration in its own field"
            )
        check_line(text, what=key)
        given[key] = text
    pasted = query.get(CONFIG, "").strip()
    state = State(_ordered({**USUAL, **given}), read_pasted(pasted) if pasted else None)
    _check(state)
    return state


def _ordered(given: Mapping[str, str]) -> dict[str, str]:
    return {key: given[key] for key in FIELDS if key in given}


def _check(state: State) -> None:
    given = state.given
    if given[WHAT] not in WHATS:
        raise unknown_name("what", given[WHAT], tuple(WHATS))
    if given.get(HUB, "1") != "1":
        raise InputError(f"hub={given[HUB]} is neither 1 nor empty; leave it out")
    if split_counts(given[GPUS]).gpu == LOCAL:
        raise InputError(
            f"gpus={given[GPUS]} is the machine that serves this page; name a GPU, as in "
            f"rtx-4090 or 8xh100-80gb"
        )
    if state.config is None:
        check_name(given[MODEL])


def check_name(text: str) -> None:
    """Refuse what names a file, a folder, a plan, a job file or a factory instead of a model."""
    if is_hub_id(text) or _ADDRESS.fullmatch(text):
        return
    if text.startswith((".", "-")) or any(mark in text for mark in _PATHS):
        raise InputError(
            f"model={text!r} is no name of a model, and this page reads no file of the machine "
            f"that serves it; give a name, a hub id org/name, or paste the config.json"
        )


def read_pasted(text: str) -> dict[str, Any]:
    """Read a pasted config.json."""
    if len(text.encode("utf-8", "replace")) > 4 * MOST_CONFIG_BYTES:
        raise _too_large(text)
    depth = deepest = 0
    for mark in text:
        depth += (mark in "[{") - (mark in "]}")
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH:
        raise InputError(
            f"the pasted configuration has {deepest} brackets in one another; give a config.json, "
            f"which has {MOST_DEPTH} at most"
        )
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"the pasted configuration is not JSON (line {error.lineno}: {error.msg}); paste a "
            f"whole config.json"
        ) from error
    except ValueError as error:  # a number of thousands of digits
        raise InputError("the pasted configuration has a number that is none; mend it") from error
    if not isinstance(config, dict):
        raise InputError(
            f"the pasted configuration is a {type(config).__name__}, not a JSON object; paste a "
            f"model's config.json"
        )
    if len(dense(config).encode()) > MOST_CONFIG_BYTES:
        raise _too_large(text)
    return config


def _too_large(text: str) -> InputError:
    return InputError(
        f"the pasted configuration has {len(text):,} characters and {MOST_CONFIG_BYTES:,} bytes "
        f"are read; leave out what is no size of the model"
    )


def dense(config: Mapping[str, Any]) -> str:
    """Write a configuration without spaces."""
    return json.dumps(config, separators=(",", ":"))


def fields_of(state: State) -> dict[str, str]:
    """Write a question as its fields; whoever reads them asks the same."""
    if state.config is None:
        return dict(state.given)
    named = {key: value for key, value in state.given.items() if key != MODEL}
    return {**named, CONFIG: dense(state.config)}


def query_of(state: State, **more: str) -> str:
    """Write a question as the query of an address; whoever opens it asks the same."""
    return urlencode({**fields_of(state), **more})


def arguments(state: State, model: str, *, verb: str = "estimate") -> list[str]:
    """Write a question as the arguments of a verb.

    ``model``: where its model stands: a name, or the folder of a pasted configuration. ``verb``:
    ``plan`` and ``shop`` search the strategy, of which nothing is said to them.
    """
    given = [model, *WHATS[state.what], f"--gpus={state.given[GPUS]}"]
    return [*given, *_flags(state, verb)]


def _flags(state: State, verb: str) -> Iterator[str]:
    for key, value in state.given.items():
        if key in {MODEL, CONFIG, HUB, WHAT, GPUS} or not _is_for(key, state.what, verb):
            continue
        flag = _SPELLED.get(key, f"--{key.replace('_', '-')}")
        yield flag if key in _SWITCHES else f"{flag}={value}"


def _is_for(key: str, what: str, verb: str) -> bool:
    """Whether a verb takes a field; what another question left in the form is not said."""
    if what == INFERENCE:
        return key in {*OF_INFERENCE, *_SHARED, *CLUSTER, *OTHER}
    if key in OF_INFERENCE or (key in ADAPTERS and "lora" not in what and what != "dora"):
        return False
    if key == "reference" and "dpo" not in what:
        return False
    if key == PROGRAM:
        return verb in {"plan", "simulate"}
    if key == "market" and verb == "simulate":
        return False
    return verb != "plan" or key not in STRATEGY


def command(
    state: State, *, verb: str = "estimate", changes: Mapping[str, object] | None = None
) -> str:
    """Write a question as it is typed in a terminal.

    ``changes``: flags that are another question's, as argparse calls them; None takes one out.
    """
    model = "config.json" if state.config is not None else state.given[MODEL]
    new = dict(changes or {})
    typed = [str(new.pop("model", model)), *arguments(state, "", verb=verb)[1:]]
    names = {f"--{key.replace('_', '-')}": value for key, value in new.items()}
    kept = [word for word in typed if word.partition("=")[0] not in names]
    added = [_flag(name, value) for name, value in names.items() if value is not None]
    return shell_words(["brimful", verb, *kept, *added])


def _flag(name: str, value: object) -> str:
    if value is True:
        return name
    return f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}"
