"""A score of every label in the place of a decoder's output layer: a classifier, a reward model.

A configuration names the class that its weights were saved from under ``architectures``; whose name
ends as below has no output layer, tied or not, but a matrix over its last token's state.
Source: ``GenericForSequenceClassification`` of ``transformers.modeling_layers``.
"""

from typing import Any

from brimful.models.layout import Layout, linear
from brimful.models.spec import ModelSpec

_FIELD = "architectures"
_NUM_LABELS = 2
"""What ``transformers`` makes where a configuration names none."""
_CLASSIFIER = "ForSequenceClassification"


def num_labels(config: dict[str, Any]) -> int:
    """Count the classes that a configuration names."""
    if "num_labels" in config:
        return int(config["num_labels"])
    return len(config["id2label"]) if config.get("id2label") else _NUM_LABELS


def has_score(config: dict[str, Any]) -> bool:
    """Whether a decoder's configuration is that of a classifier."""
    named = config.get(_FIELD)
    return isinstance(named, list) and any(str(each).endswith(_CLASSIFIER) for each in named)


def with_score(config: dict[str, Any], *, scored: bool) -> dict[str, Any]:
    """Return a decoder's configuration with a score behind its blocks, or with its own layer."""
    if scored == has_score(config):
        return config
    own = {field: value for field, value in config.items() if field != _FIELD}
    return {**own, _FIELD: [_CLASSIFIER]} if scored else own


def scored_layout(layout: Layout, spec: ModelSpec) -> Layout:
    """Return the layout of a decoder whose head is a score."""
    head = linear("score", spec.hidden_size, num_labels(spec.hf_config))
    return layout._replace(head=head)
