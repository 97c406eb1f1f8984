"""Small models to trace, one for each architecture, and the sizes they are traced at."""

from brimful.models.architectures import ARCHITECTURES
from brimful.models.config import read_config
from brimful.models.small_sizes import SmallSizes
from brimful.models.spec import ModelSpec

SHAPES = (
    SmallSizes(3, 640, 2, 3, 32, 264, 328, 1096, 704, 16, 6, 2, 136),
    SmallSizes(5, 1152, 4, 2, 64, 408, 712, 1544, 1288, 24, 17, 5, 56),
    SmallSizes(7, 1280, 3, 5, 96, 510, 904, 2312, 1336, 40, 11, 3, 184),
    SmallSizes(2, 1920, 5, 3, 128, 240, 1208, 3336, 2176, 56, 26, 4, 88),
)
"""Tokens are multiples of 2 and 5 (chunks); sequences of 128 and head widths of 32, to which flash
attention's backward rounds; matrices of 64 weights, which share a scale in 4 bits."""

DEGREES = (2, 3, 5, 4)
"""Devices that share every matrix, at each shape, of an architecture such as ``llama-tp``."""
SHARES = (1.5, 0.8, 1.25, 1.1)
"""Rows that come to a device's experts for each that it sends, of an architecture such as
``mixtral-ep``, whose experts as many devices part as share a matrix elsewhere."""
_CUT, _PARTED = "tp", "ep"


def degree(architecture: str, sizes: SmallSizes) -> int:
    """Return how many devices share every matrix where a program is traced at some sizes."""
    return DEGREES[_place(sizes)] if _CUT in architecture.split("-") else 1


def parting(architecture: str, sizes: SmallSizes) -> int:
    """Return how many devices part the experts where a program is traced at some sizes."""
    return DEGREES[_place(sizes)] if _PARTED in architecture.split("-") else 1


def share_received(sizes: SmallSizes) -> float:
    """Return the rows that come to a device's experts there for each that it sends."""
    return SHARES[_place(sizes)]


def _place(sizes: SmallSizes) -> int:
    """Return which of ``SHAPES`` some sizes are of, for however many sequences."""
    return [shape.seq_len for shape in SHAPES].index(sizes.seq_len)


def small_model(architecture: str, sizes: SmallSizes, *, num_layers: int) -> ModelSpec:
    """Return a model of an architecture such as ``llama-tied-mha`` or ``gpt2-gelu-tied``.

    Where it is cut, the sizes are those of one device, and so are experts that are parted.
    """
    model_type, *flags = architecture.split("-")
    tp, ep = degree(architecture, sizes), parting(architecture, sizes)
    sizes = sizes._replace(
        kv_heads=tp * sizes.kv_heads, intermediate=tp * sizes.intermediate, vocab=tp * sizes.vocab,
        experts=ep * sizes.experts,
    )  # fmt: skip
    sizes = sizes._replace(per_kv=1) if "mha" in flags else sizes
    config = {"model_type": model_type, "tie_word_embeddings": "tied" in flags, **_NO_TOKENS}
    chosen = {"activation_function": "gelu"} if "gelu" in flags else {}
    make = ARCHITECTURES[model_type].small
    assert make is not None, "its profiles are shipped"
    return read_config(architecture, {**config, **make(sizes, num_layers), **chosen})


_NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}
"""Those of a class's defaults lie beyond a small vocabulary."""
