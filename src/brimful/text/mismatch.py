"""What msgspec says of content that is not the value it should be, in words people can act on.

``Object contains unknown field `seqlen` - at `$.job` `` becomes ``job has no field 'seqlen'; did
you mean seq_len?``. Knows the shape of values and no particular one.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Any

import msgspec

_ERROR = re.compile(
    r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>[^`]*)`)?", flags=re.DOTALL
)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false (a switch)",
    "null": "nothing",
    "array": "a list",
    "object": "a mapping",
}


def explain_mismatch(error: msgspec.ValidationError, kind: Any) -> str:
    """Say where content differs from the value it should be, and what to write there.

    ``error``: what ``msgspec.convert`` or a decoder raised. Returns one clause with the fix, such
    as ``job lacks the field 'seq_len'; add it``. The caller puts the name of the file before it.
    """
    match = _ERROR.fullmatch(str(error))
    assert match is not None  # the pattern takes any text
    steps = [name or index for name, index in _STEP.findall(match["path"] or "")]
    place = _spell(steps)
    if match["key"]:
        return f"a key of {place or 'the file'} is not text; quote it"
    return _clause(match["what"], place, _type_at(msgspec.inspect.type_info(kind), steps))


def _clause(what: str, place: str, info: Any) -> str:
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", what, flags=re.DOTALL):
        fix = _nearest(found[1], _field_names(info)) or "take it out"
        return f"{place or 'the top level'} has no field {found[1]!r}; {fix}"
    if found := re.fullmatch(r"Object missing required field `(.*)`", what):
        return f"{place or 'the top level'} lacks the field {found[1]!r}; add it"
    if found := re.fullmatch(r"Invalid (?:enum )?value '(.*)'", what, flags=re.DOTALL):
        allowed = [str(value) for value in getattr(info, "values", ())]
        fix = (
            _nearest(found[1], allowed)
            or f"use {' or '.join(allowed) or 'one that this version knows'}"
        )
        return f"{place or 'the top level'} is {found[1]!r}; {fix}"
    if found := re.fullmatch(r"Expected `(.*)`, got `(.*)`", what):
        expected = " or ".join(_word(name) for name in found[1].split(" | "))
        where = f"{place} is" if place else "the file holds"
        return f"{where} {_word(found[2])}; it must be {expected}"
    return _line_clause(what, place or "the top level")


def _line_clause(what: str, place: str) -> str:
    """Say why text is no ``escaping.Line``."""
    if what.startswith("Expected `str` matching regex"):
        return f"{place} holds a line break or a control character; write it on one plain line"
    if found := re.fullmatch(r"Expected `str` of length <= (\d+)", what):
        return f"{place} is longer than the {found[1]} characters that are read; shorten it"
    return f"{place} is wrong ({what}); mend it"


def _spell(steps: Iterable[str]) -> str:
    """Write a path as people do: ``estimate.items[0]``."""
    text = ""
    for step in steps:
        is_index = step.isdigit() or step == "..."
        text += f"[{step}]" if is_index else f".{step}"
    return text.removeprefix(".")


def _word(name: str) -> str:
    return _WORDS.get(name, f"a {name}")


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else ""


def _field_names(info: Any) -> list[str]:
    return [field.encode_name for field in getattr(info, "fields", ())]


def _type_at(info: Any, steps: list[str]) -> Any:
    """Walk a type along a path; None where the path leaves what the type says."""
    for step in steps:
        info = _step_into(_present(info), step)
    return _present(info)


def _present(info: Any) -> Any:
    """Take the part of an optional type that is there when the value is."""
    if isinstance(info, msgspec.inspect.UnionType):
        kinds = [kind for kind in info.types if not isinstance(kind, msgspec.inspect.NoneType)]
        return kinds[0]
    return info


def _step_into(info: Any, step: str) -> Any:
    if isinstance(info, msgspec.inspect.StructType):
        return next((f.type for f in info.fields if f.encode_name == step), None)
    if isinstance(info, msgspec.inspect.DictType):
        return info.value_type
    return getattr(info, "item_type", None)
