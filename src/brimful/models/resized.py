"""A model with more rows than its configuration says: added tokens, other classes."""

import msgspec

from brimful.errors import InputError
from brimful.models import generic
from brimful.models.architectures import ARCHITECTURES, record_of
from brimful.models.spec import MODULE, ModelSpec

MAX_LABELS = 10**6


def is_rotary(spec: ModelSpec) -> bool:
    """Whether a model's positions are angles, so that more of them take no parameters."""
    if spec.model_type == MODULE:
        return False
    if spec.model_type in ARCHITECTURES:
        return bool(record_of(spec.model_type).rotates)
    return generic.is_rotary(spec)


def with_positions(spec: ModelSpec, num_positions: int) -> ModelSpec:
    """Return the model for longer texts than it has learnt, its rotary angles scaled.

    For texts that it has learnt it stays as it is.
    """
    if not is_rotary(spec):
        raise InputError(
            f"--max-positions {num_positions}: {spec.name} has no rotary positions, which alone "
            f"can be scaled to longer texts; leave it out"
        )
    if num_positions <= spec.max_seq_len:
        return spec
    config = {**spec.hf_config, "max_position_embeddings": num_positions}
    return msgspec.structs.replace(spec, max_seq_len=num_positions, hf_config=config)


def with_vocab_size(spec: ModelSpec, num_tokens: int) -> ModelSpec:
    """Return the model with at least as many rows as a tokenizer has tokens.

    A model often has more rows than its tokenizer needs; it keeps them. Rows that its checkpoint
    has not are made when the weights are loaded (``build.weights``).
    """
    if spec.model_type == MODULE or num_tokens <= spec.vocab_size:
        return spec
    config = {**spec.hf_config, "vocab_size": num_tokens}
    return msgspec.structs.replace(spec, vocab_size=num_tokens, hf_config=config)


def with_num_labels(spec: ModelSpec, num_labels: int) -> ModelSpec:
    """Return the classifier with this many classes."""
    if num_labels == 1:
        raise InputError(
            "num_labels=1 is a score and no class, whose loss is not run by this version; give 2 "
            "or more, which takes as much",
            nearest={"num_labels": 2},
        )
    if not 2 <= num_labels <= MAX_LABELS:  # noqa: PLR2004 - one class is told from nothing
        raise InputError(f"num_labels={num_labels} is out of range; give 2 to {MAX_LABELS} classes")
    names = ("id2label", "label2id", "num_labels")
    config = {field: value for field, value in spec.hf_config.items() if field not in names}
    labels = {str(i): f"LABEL_{i}" for i in range(num_labels)}
    return msgspec.structs.replace(spec, hf_config={**config, "id2label": labels})
