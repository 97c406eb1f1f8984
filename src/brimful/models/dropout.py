"""Which probabilities of dropout a model's configuration has, read without importing its class."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from brimful.models.generic import modeling_file
from brimful.models.spec import MODULE, ModelSpec

DROPS = re.compile(r"dropout|pdrop|drop_path|layerdrop|drop_rate|droprate")
"""Names of configuration fields that are probabilities."""
JITTERS = re.compile("jitter_noise")
"""Of those that shake what routers see, which is always off."""
SKIPS_BLOCKS = "layerdrop"
"""In the name of the probability that a whole block is left out."""
_OF_CLASSIFIERS = re.compile(r"classif|^qa_|^summary|^final")
"""In the names of those that heads read which no language model has."""


def dropout_of(model: ModelSpec, *, classifies: bool = False) -> dict[str, float]:
    """Return what is above 0, by its field: of the configuration, else its class's own default.

    ``classifies``: whether its head is one of classes. Of a module of one's own nothing is known.
    """
    if model.model_type == MODULE:
        return {}
    given = {**_defaults(model.model_type), **dict(_given(model.hf_config))}
    return {
        field: rate
        for field, rate in given.items()
        if rate > 0 and (classifies or not _OF_CLASSIFIERS.search(field))
    }


def _given(config: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the fields that a configuration gives, of its parts too; null is none."""
    for field, value in config.items():
        if isinstance(value, Mapping):
            yield from _given(value)
        elif DROPS.search(str(field)) and (value is None or _is_rate(value)):  # labels are numbered
            yield field, float(value or 0)


def _is_rate(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@cache
def _defaults(model_type: str) -> Mapping[str, float]:
    """Read the defaults that the configuration's class writes down, where transformers is there."""
    modeling = modeling_file(model_type)
    if modeling is None:
        return {}
    path = modeling.with_name(modeling.name.replace("modeling", "configuration", 1))
    if not path.is_file():
        return {}
    for each in ast.parse(path.read_text("utf-8")).body:
        fields = dict(_fields(each)) if isinstance(each, ast.ClassDef) else {}
        if fields.get("model_type") == model_type:
            return {f: float(v) for f, v in fields.items() if DROPS.search(f) and _is_rate(v)}
    return {}


def _fields(body: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a class whose defaults are constants."""
    for line in body.body:
        targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
        value = getattr(line, "value", None)
        if isinstance(value, ast.Constant):
            yield from ((x.id, value.value) for x in targets if isinstance(x, ast.Name))
