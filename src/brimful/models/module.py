"""A model that a factory of the user's makes: ``package.module:factory``. Imports none of it."""

import re

from brimful.errors import ModelConfigError
from brimful.models.spec import MODULE, ModelSpec

_NAME = r"[^\W\d]\w*"
_FACTORY = re.compile(rf"{_NAME}(?:\.{_NAME})*:{_NAME}(?:\.{_NAME})*")


def is_factory(name: str) -> bool:
    """Whether a name is spelt like ``package.module:factory``."""
    return _FACTORY.fullmatch(name) is not None


def read_factory(name: str) -> ModelSpec:
    """Describe a module: nothing is known of it but its name, until it is built."""
    if not is_factory(name):
        raise ModelConfigError(
            f"{name!r} names no module; write package.module:factory, as in a Python import"
        )
    return ModelSpec(
        name=name,
        model_type=MODULE,
        hidden_size=0,
        intermediate_size=0,
        num_layers=0,
        num_heads=0,
        num_kv_heads=0,
        head_dim=0,
        vocab_size=0,
        max_seq_len=1,
        tied_embeddings=False,
        hf_config={},
    )
