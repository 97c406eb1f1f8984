"""Weights whose kernels an engine brings: what of it is assumed, and what is refused."""

from brimful.cost.formats import CHUNK, SERVED, WeightsFormat
from brimful.errors import UnsupportedError
from brimful.models.architectures import record_of
from brimful.models.mixtures import has_stacks
from brimful.models.spec import ModelSpec

SHARE = 0.92
"""Of a card that vLLM takes where nobody says: its ``gpu_memory_utilization``."""
FORWARD_WORDS = (
    "a cache of whole texts, in blocks with a window of that alone, as vLLM pages it",
    (
        f"prompts in chunks of {CHUNK:,} tokens; what a forward takes is a bound: every number "
        f"that a block makes, all at once in fp32"
    ),
)
"""What is assumed of an engine's forward."""


def check_served(model: ModelSpec, weights_format: WeightsFormat) -> None:
    """Refuse a format of experts for a model that has no stacks of them."""
    if weights_format in SERVED and not has_stacks(model):
        raise UnsupportedError(
            f"weights_format={weights_format} packs stacked experts alone, of which {model.name} "
            f"has none; use nf4, int4 or int8",
            nearest={"weights_format": "nf4"},
        )


def is_shown(model: ModelSpec, weights_format: WeightsFormat) -> bool:
    """Whether a format is shown that nobody asked about: any model's, or as it is published."""
    return weights_format not in SERVED or weights_format == record_of(model.model_type).published
