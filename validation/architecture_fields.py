"""What a class of transformers cannot do without and has no default for: what others say of it.

Some classes leave a width or a number of experts to the files of their models, so that nothing
builds from their defaults, or nothing runs. Such a field is given what the library's documentation
says that it is where nobody says it, else the value that most other classes have for the field of
that name; of these fields only what the class does not do without. Nothing of ours takes part.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import floor
from typing import Any

HEADS = {
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
}
"""By the class that makes a head: where transformers says which types have it."""
Fields = dict[str, Any]
Tried = Callable[[Fields], Exception | None]
"""Says why a class does not build, or run, with some fields; None: it does."""
_MOST_TRIED = 12
"""Values of a field that are tried, the commonest first."""
_TOKENS, _NOTHING = 8, "NoneType"
_UNSAID = re.compile(r"will default to\s+`?(\w+)(?:\s*//\s*(\w+))?`?\.?\s*$")
"""What the documentation of a field ends in: ``hidden_size // num_attention_heads``."""


def why_not(name: str, fields: Fields) -> Exception | None:
    """Say why none of a type's heads builds with some fields, or why it runs into a nothing.

    Args:
        name: Type of the model.
        fields: Of its configuration; all others are the class's.
    """
    import torch
    import transformers
    from transformers.models.auto import modeling_auto

    why: Exception | None = None
    for auto_class, mapping in HEADS.items():
        if name in getattr(modeling_auto, mapping):
            try:
                config = transformers.CONFIG_MAPPING[name](**fields)
                with torch.device("meta"):
                    model = getattr(transformers, auto_class).from_config(config)
            except Exception as error:  # noqa: BLE001 - classes refuse their defaults in many ways
                why = why or error
            else:
                return _runs_into_nothing(model)
    return why


def _runs_into_nothing(model: Any) -> Exception | None:
    """Return the error by which a model tells that it lacks a number as it runs, if it does so."""
    import torch

    with torch.no_grad(), torch.device("meta"):
        given = {"input_ids": torch.zeros((1, _TOKENS), dtype=torch.long)}
        if model.config.is_encoder_decoder:
            given["decoder_input_ids"] = given["input_ids"]
        try:
            model(**given)
        except TypeError as error:
            return error if _NOTHING in str(error) else None
        except Exception:  # noqa: BLE001 - a model without values does not run in many ways
            return None
    return None


def fields_lacking(name: str, others: Sequence[str], why_not: Tried) -> Fields:
    """Return the fewest fields that a class does with; none where none are needed, or none help.

    Args:
        name: Type of the model.
        others: Types whose defaults are asked.
        why_not: Tries fields.
    """
    from transformers import CONFIG_MAPPING

    error = why_not({})
    if error is None:
        return {}
    try:
        made = CONFIG_MAPPING[name]()
        inner = made.get_text_config()
    except Exception:  # noqa: BLE001 - defaults may contradict; of several texts none is the one
        return {}
    place = next((key for key, value in vars(made).items() if value is inner), "")
    told = defaults_of(tuple(others))
    choices = {field: _choices(field, inner, told[field]) for field in _empty(inner)}
    choices = {field: values for field, values in choices.items() if values}
    tried = [_within({f: value}, place) for f, values in choices.items() for value in values]
    tried.append(_within({f: values[0] for f, values in choices.items()}, place))
    tried += _absent(error, made, told)
    found = next((fields for fields in tried if why_not(fields) is None), {})
    if place and place in found:
        return {place: _fewest(found[place], lambda some: why_not({place: some}))}
    return _fewest(found, why_not)


def _empty(config: Any) -> Iterator[str]:
    """Yield the fields of a configuration that say nothing."""
    for field, value in vars(config).items():
        if (value is None or value == {}) and not field.startswith("_"):
            yield field


def _within(fields: Fields, place: str) -> Fields:
    """Say fields of a part of a configuration, or of all of it."""
    return {place: fields} if place else fields


def _fewest(fields: Fields, why_not: Tried) -> Fields:
    """Leave out what a class does without."""
    for field in list(fields):
        less = {f: value for f, value in fields.items() if f != field}
        if less and why_not(less) is None:
            fields = less
    return fields


def _absent(error: Exception, made: Any, told: Mapping[str, Counter[str]]) -> Iterator[Fields]:
    """Yield values of a field that a part of a configuration lacks, if an error says so."""
    if isinstance(error, AttributeError) and error.name:
        for key, value in vars(made).items():
            if type(value) is type(error.obj):
                fields = ({error.name: each} for each in _values(told[error.name], 0))
                yield from ({key: each} for each in fields)


def _choices(field: str, config: Any, counted: Counter[str]) -> list[Any]:
    """Return what a field may be: what its documentation says, else what others have."""
    from transformers.utils.auto_docstring import ConfigArgs

    text = getattr(ConfigArgs, field, {}).get("description", "")
    if unsaid := _UNSAID.search(text):
        whole, *parts = (getattr(config, named, None) for named in unsaid.groups() if named)
        if whole and all(parts):
            return [floor(whole / parts[0]) if parts else whole]
    return _values(counted, getattr(config, "num_hidden_layers", 0))


def _values(counted: Counter[str], num_blocks: int) -> list[Any]:
    """Return what others say of a field, the commonest first; lists of as many as blocks."""
    every = [json.loads(text) for text, _ in counted.most_common()]
    fitting = [each for each in every if not isinstance(each, list) or len(each) == num_blocks]
    return fitting[:_MOST_TRIED]


@cache
def defaults_of(others: tuple[str, ...]) -> defaultdict[str, Counter[str]]:
    """Count the values of every field over the defaults of some types, as JSON."""
    from transformers import CONFIG_MAPPING

    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name in others:
        try:
            fields = vars(CONFIG_MAPPING[name]().get_text_config())
        except Exception:  # noqa: BLE001, S112 - of a few none is made without a file
            continue
        for field, value in fields.items():
            if value and isinstance(value, int | float | list | dict) and value is not True:
                found[field][json.dumps(value, default=str)] += 1
    return found
