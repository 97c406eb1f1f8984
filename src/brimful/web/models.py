"""Which model a question means: a known name, the hub's where that was asked for, or a pasted one.

Reads no file of this machine but those that ship and those that were fetched from the hub or traced
for a question of this server. It is
called in a folder of the process's own, so that nothing that is typed is found as a path.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from brimful.errors import InputError, UnknownNameError
from brimful.files.traced import digest
from brimful.models import names
from brimful.models.architectures import ARCHITECTURES
from brimful.models.config import find_unread
from brimful.models.diffusion import find_diffusion, refusal
from brimful.models.hub import is_hub_id
from brimful.models.registry import registry
from brimful.models.traced import known_spec
from brimful.web.state import HUB, MODEL, PASTED, State


class Found(NamedTuple):
    """A model of a question.

    Attributes:
        argument: What stands for it on a command line that runs in this folder.
        note: What of its name was not known, in words.
        unread: Why reading it needs transformers, which takes seconds; empty where it does not.
    """

    argument: str
    note: str = ""
    unread: str = ""


def find_model(state: State) -> Found:
    """Find the model of a question."""
    if state.config is not None:
        return _pasted(state.config)
    typed = state.given[MODEL]
    taken = names.find(typed)
    asks_hub = state.given.get(HUB) == "1" and is_hub_id(typed)
    if taken is not None and (taken.is_own or not asks_hub):
        return Found(taken.name, names.taken_words(typed, taken.name), _unread(taken.name))
    if asks_hub:
        return Found(typed)
    if (made := find_diffusion(typed)) is not None:
        raise InputError(refusal(made))
    near, what, _ = names.without_qualifiers(typed)
    if is_hub_id(typed):
        part = f"; {what}" if near else ""
        raise InputError(
            f"{typed} is not among the {len(registry())} known models; allow this page to ask the "
            f"hub for its config.json, or paste that{part}"
        )
    more = what if near else "paste the config.json of any other"
    unknown: UnknownNameError = names.unknown_model(typed, more=more)
    raise unknown


def _unread(name: str) -> str:
    found = find_unread(name)
    if found is None:
        return ""
    return f"blocks of type {found.model_type} were never built here"


def _pasted(config: dict[str, Any]) -> Found:
    """Lay a pasted configuration into a folder of this process's own folder."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise InputError("the pasted configuration lacks model_type; paste a model's config.json")
    name = f"{PASTED}-{digest(model_type, config)[:8]}"
    folder = Path(name)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    if model_type in ARCHITECTURES:
        return Found(name)
    fields = {key: value for key, value in config.items() if key != "model_type"}
    if known_spec(name, model_type, fields) is not None:
        return Found(name)
    return Found(name, "", f"models of type {model_type[:80]} are read by transformers")
