"""What an architecture is made for: to write, to classify, or to write what it has read."""

from typing import Literal

from brimful.errors import UnsupportedError
from brimful.models import generic
from brimful.models.architectures import ARCHITECTURES
from brimful.models.spec import MODULE, ModelSpec

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


def check_masked(spec: ModelSpec) -> None:
    """Refuse to train a model on hidden tokens that does not see those on both sides of them."""
    if not is_encoder(spec.model_type):
        usual = MODULE if spec.model_type == MODULE else own_task(spec.model_type)
        raise UnsupportedError(
            f"task=masked-lm hides tokens from a model that sees those on both sides, as BERT, and "
            f"{spec.name} is of type {spec.model_type}; use task={usual}",
            nearest={"task": usual},
        )
    if not generic.has_masked_head(spec.model_type):
        raise UnsupportedError(
            f"task=masked-lm needs a head that tells hidden tokens, and transformers has none for "
            f"{spec.name} (type {spec.model_type}); use task=sequence-classification",
            nearest={"task": "sequence-classification"},
        )
