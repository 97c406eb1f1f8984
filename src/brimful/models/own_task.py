"""What an architecture is made for: to write, to classify, or to write what it has read."""

from typing import Literal

from brimful.models import generic
from brimful.models.architectures import ARCHITECTURES
from brimful.models.spec import MODULE

OwnTask = Literal["causal-lm", "sequence-classification", "seq2seq"]


def own_task(model_type: str) -> OwnTask:
    """Return what an architecture is trained on where nobody says so."""
    if model_type in ARCHITECTURES:
        return ARCHITECTURES[model_type].task
    if generic.is_encoder_decoder(model_type):
        return "seq2seq"
    return "sequence-classification" if generic.is_encoder(model_type) else "causal-lm"


def is_encoder(model_type: str) -> bool:
    """Whether an architecture reads a text as a whole, so that it classifies and does not write."""
    return model_type != MODULE and own_task(model_type) == "sequence-classification"


def is_encoder_decoder(model_type: str) -> bool:
    """Whether an architecture writes one text after it has read another."""
    return model_type != MODULE and own_task(model_type) == "seq2seq"
