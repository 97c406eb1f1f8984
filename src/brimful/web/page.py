"""The page around the answers: one form, which is the address, and where parts are drawn.

Knows the question and the strings; answers come as markup from the processes that make them.
"""

import json
from collections.abc import Iterable
from functools import cache
from importlib import resources
from string import Template
from typing import Any

from brimful.show import markup
from brimful.show.markup import Html
from brimful.text.escaping import json_text
from brimful.web import state as fields
from brimful.web.accuracy import accuracy_tables
from brimful.web.state import CONFIG, GPUS, HUB, MODEL, WHAT, WHATS, State, query_of
from brimful.web.words import Words

_OWN, _REPORTS = "brimful.web", "brimful.report"
_SOURCES = {
    "web.css": _OWN,
    "web.js": _OWN,
    "report.css": _REPORTS,
    "report.js": _REPORTS,
    "uPlot.iife.min.js": _REPORTS,
    "uPlot.min.css": _REPORTS,
    "uPlot.LICENSE.txt": _REPORTS,
}
_TYPES = {"css": "text/css", "js": "text/javascript", "txt": "text/plain"}
ASSETS = {name: _TYPES[name.rpartition(".")[2]] for name in _SOURCES}
"""Files that are handed out, with their types; nothing else is."""
_FIRST = ("seq_len", "global_batch", "micro_batch")
_GROUPS = {
    "job": tuple(key for key in fields.JOB if key not in _FIRST),
    "strategy": tuple(key for key in fields.STRATEGY if key not in _FIRST),
    "cluster": (*fields.CLUSTER, *fields.OTHER),
    "inference": fields.OF_INFERENCE,
}
_SWEEPS = (
    "seq_len", "micro_batch", "global_batch", "gpus", "lora_rank", "activation_checkpointing",
)  # fmt: skip
_TARGETS = (
    "plan.yaml", "trl", "axolotl", "llama-factory", "hf-trainer", "accelerate", "deepspeed",
    "torchtitan", "torchrun", "slurm",
)  # fmt: skip
_PROGRAMS = (
    "hf-trainer", "trl", "axolotl", "llama-factory", "accelerate", "torchtitan", "deepspeed",
)  # fmt: skip


@cache
def asset(name: str) -> bytes:
    """Read one of ``ASSETS``."""
    return resources.files(_SOURCES[name]).joinpath("assets", name).read_bytes()


@cache
def _choices() -> dict[str, tuple[str, ...]]:
    """List what each field with few values may be."""
    from typing import get_args

    from brimful.cost.formats import WeightsFormat
    from brimful.cost.money import MARKETS
    from brimful.hardware.links import network_names
    from brimful.techniques.fused_kernels import FusedKernels
    from brimful.techniques.parallel.stages import Schedule
    from brimful.values.job import Base, Optimizer, Packing, Precision
    from brimful.values.strategy import Accumulate, Attention, Compile, Fsdp, Reference

    return {
        "precision": get_args(Precision),
        "optimizer": get_args(Optimizer),
        "packing": get_args(Packing),
        "base": get_args(Base),
        "attention": get_args(Attention),
        "zero": ("0", "1", "2", "3"),
        "pp_schedule": get_args(Schedule),
        "accumulate": get_args(Accumulate),
        "reference": tuple(name for name in get_args(Reference) if name != "none"),
        "compile": get_args(Compile),
        "fsdp": tuple(map(str, get_args(Fsdp))),
        "fused_kernels": get_args(FusedKernels),
        "optimizer_in_backward": ("1",),
        "network": tuple(network_names()),
        "market": tuple(MARKETS),
        "weights_format": get_args(WeightsFormat),
    }


def main_page(
    state: State, words: Words, part: dict[str, Any] | None, *, refused: str, kept: str
) -> str:
    """Set the page.

    ``part``: the answer, as far as it is known at once; None: it is refused. ``kept``: the address
    of a question to compare with; may be empty.
    """
    text = Template(resources.files(_OWN).joinpath("assets", "page.html").read_text("utf-8"))
    strings = {key.replace(".", "_"): markup.text(words[key]) for key in _SHOWN}
    other = words["language.code"]
    more = {"other": kept} if kept else {}
    switch = markup.text(f"/?{query_of(state, lang=other, **more)}")
    script = {
        "words": words.for_script, "language": words.language, "kept": kept,
        "strategy": fields.STRATEGY,
    }  # fmt: skip
    return text.substitute(
        strings,
        lang=words.language,
        other_language=other,
        language_href=switch,
        form=_form(state, words, (part or {}).get("settings", {})),
        verdict=markup.text(_verdict(part, refused, words)),
        answer=_answer(part, refused, words),
        detail=Html((part or {}).get("detail", "")),
        memory=markup.text((part or {}).get("memory", "")),
        what=state.what,
        programs=_programs(state, words),
        targets=_options(_TARGETS, _TARGETS[0]),
        axes=markup.join(Html(f'<div class="axis" data-axis="{axis}"></div>') for axis in _SWEEPS),
        api=markup.text(f"/api/estimate?{query_of(state)}"),
        script=Html(json_text(script, also="<>&")),
    )


_SHOWN = (
    "title", "tagline", "skip", "language", "noscript", "form.title", "form.ask", "form.reset",
    "answer.title", "answer.fix", "plan.title", "plan.lead", "plan.start", "plan.take", "plan.for",
    "simulate.title", "simulate.lead", "simulate.start", "sweeps.title", "sweeps.lead",
    "market.title", "market.lead", "market.start", "compare.title", "compare.keep",
    "compare.drop", "why.title", "why.start", "why.rules", "take.title", "take.command",
    "take.link", "take.as", "take.write", "take.copy", "take.report", "take.api", "trace.start",
    "cancel", "footer", "accuracy.link",
)  # fmt: skip


def _verdict(part: dict[str, Any] | None, refused: str, words: Words) -> str:
    if refused or (part and part.get("refused")):
        return words["js.refused"]
    return str((part or {}).get("verdict") or "")


def _answer(part: dict[str, Any] | None, refused: str, words: Words) -> Html:
    """Set the answer as it is known before the script runs."""
    said = refused or (part or {}).get("refused", "")
    if said:
        return Html(f'<p class="refused">{markup.text(said)}</p>')
    if part is None:
        return markup.paragraph(markup.text(words["answer.waiting"]))
    if part.get("untold"):
        told = f"{part['untold']}. {words['js.untold']}"
        return Html(f'<p class="untold">{markup.text(told)}</p>')
    return Html(part["html"])


def _form(state: State, words: Words, usual: dict[str, str]) -> Html:
    """Set the fields; in those that are empty stands what they are as usual."""

    def field(key: str) -> Html:
        return _field(key, state, words, usual.get(key, ""))

    parts = [_model_fields(state, words), *map(field, _FIRST)]
    opened = any(key in state.given for keys in _GROUPS.values() for key in keys)
    groups = markup.join(
        Html(
            f"<fieldset><legend>{markup.text(words[f'form.group.{name}'])}"
            f"</legend>{markup.join(map(field, keys))}</fieldset>"
        )
        for name, keys in _GROUPS.items()
    )
    more = markup.text(words["form.more"])
    parts.append(
        Html(f"<details{' open' if opened else ''}><summary>{more}</summary>{groups}</details>")
    )
    return markup.join(parts)


def _programs(state: State, words: Words) -> Html:
    chosen = state.given.get(fields.PROGRAM, "")
    own = markup.text(words["plan.own"])
    return markup.join([Html(f'<option value="">{own}</option>'), _options(_PROGRAMS, chosen)])


def _model_fields(state: State, words: Words) -> Html:
    """Set what the question is about: a model, what to do with it, on what."""
    given = state.given
    config = "" if state.config is None else json.dumps(state.config, indent=1)
    whats = markup.join(
        Html(
            f'<option value="{key}"{" selected" if key == state.what else ""}>'
            f"{markup.text(words[f'what.{key}'])}</option>"
        )
        for key in WHATS
    )
    checked = " checked" if given.get(HUB) else ""
    opened = " open" if config else ""
    return Html(
        f"{_text_field(MODEL, given[MODEL], words['form.model'], hint=words['form.model.hint'])}"
        f'<details class="paste"{opened}><summary>{markup.text(words["form.config"])}</summary>'
        f'<textarea id="f-{CONFIG}" name="{CONFIG}" rows="5" spellcheck="false" '
        f'aria-label="{markup.text(words["form.config"])}">{markup.text(config)}</textarea>'
        f'<label class="check"><input type="checkbox" name="{HUB}" value="1"{checked}> '
        f"{markup.text(words['form.hub'])}</label></details>"
        f'<div class="field"><label for="f-{WHAT}">{markup.text(words["form.what"])}</label>'
        f'<select id="f-{WHAT}" name="{WHAT}">{whats}</select></div>'
        f"{_gpu_field(given[GPUS], words)}"
        f"{_names()}"
    )


def _text_field(key: str, value: str, name: str, *, hint: str = "", usual: str = "") -> Html:
    label = markup.text(name)
    told = f'<small id="h-{key}">{markup.text(hint)}</small>' if hint else ""
    described = f' aria-describedby="h-{key}"' if hint else ""
    names = f' list="{key}-names"' if key in {MODEL, GPUS} else ""
    names += f' placeholder="{markup.text(usual)}"' if usual else ""
    return Html(
        f'<div class="field"><label for="f-{key}">{label}</label>'
        f'<input id="f-{key}" name="{key}" value="{markup.text(value)}" autocomplete="off" '
        f'autocapitalize="none" spellcheck="false" maxlength="{fields.MOST_CHARS}"{names}'
        f"{described}>{told}</div>"
    )


def _gpu_field(value: str, words: Words) -> Html:
    name, hint = words["form.gpus"], words["form.gpus.hint"]
    return _text_field(GPUS, value, name, hint=hint)


@cache
def _names() -> Html:
    """List what is known, for the browser to complete."""
    from brimful.hardware.gpus import gpus
    from brimful.models.registry import registry

    return markup.join([_listed(MODEL, registry()), _listed(GPUS, gpus())])


def _listed(key: str, names: Iterable[str]) -> Html:
    options = "".join(f'<option value="{markup.text(name)}"></option>' for name in names)
    return Html(f'<datalist id="{key}-names">{options}</datalist>')


def _field(key: str, state: State, words: Words, usual: str) -> Html:
    """Set one setting: what is empty is as usual."""
    name = words[f"form.{key}"] if key in _FIRST else words[f"field.{key}"]
    value = state.given.get(key, "")
    choices = _choices().get(key)
    if choices is None:
        return _text_field(key, value, name, usual=usual)
    known = choices if value in {"", *choices} else (*choices, value)
    return Html(
        f'<div class="field"><label for="f-{key}">{markup.text(name)}</label>'
        f'<select id="f-{key}" name="{key}"><option value="">{markup.text(words["form.usual"])}'
        f"</option>{_options(known, value)}</select></div>"
    )


def _options(values: tuple[str, ...], chosen: str) -> Html:
    return markup.join(
        Html(
            f'<option value="{markup.text(value)}"{" selected" if value == chosen else ""}>'
            f"{markup.text(value)}</option>"
        )
        for value in values
    )


def accuracy_page(words: Words) -> str:
    """Set how far each kind of number was off."""
    title, back = markup.text(words["accuracy.title"]), markup.text(words["back"])
    lead = markup.text(words["accuracy.lead"])
    return (
        f'<!doctype html>\n<html lang="{words.language}">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{title}</title>\n<link rel="icon" href="data:,">\n'
        '<link rel="stylesheet" href="/assets/report.css">\n'
        '<link rel="stylesheet" href="/assets/web.css">\n</head>\n<body>\n'
        f'<main class="page"><p><a href="/?lang={words.language}">{back}</a></p><h1>{title}</h1>'
        f"<p>{lead}</p>{accuracy_tables(words)}</main>\n</body>\n</html>\n"
    )
