"""Classes that attend by their own code, or do more than attend: they make their masks themselves.

``transformers`` decides what a mask has to say by looking at the positions of tokens, which a fake
tensor has not. Rows are one text each here, so that the answer is known, and is given in its place.
"""

import inspect
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from transformers import masking_utils

from brimful.build.attention.windows import FULL, LIMITED
from brimful.build.blocks import body_of, decoder_blocks, embedding_of
from brimful.models.class_source import lets_attend

_BY_MASK = "cumsum(attention_mask"
"""In a class that takes its tokens' positions from a mask, which has to say one bit of each."""
_MASK = "attention_mask"
"""What every class calls the mask that it is given."""
_LOOKS = "find_packed_sequence_indices"
"""Function of ``transformers`` that looks for several texts in a row; None: there is one."""


def attends_by_itself(model: Any) -> bool:
    """Whether a class of ``transformers`` attends by its own code alone, or by more than attention.

    Blocks of other kinds than attention, full or limited (convolutions, recurrences), are given
    masks of other kinds, which the class knows; others number their tokens by the mask, or read in
    their embeddings which tokens are padding.
    """
    is_given = body_of(model)._supports_attention_backend  # noqa: SLF001 - the class says it nowhere else
    is_read = _BY_MASK in _source(model) or _reads_padding(body_of(model))
    return not is_given or bool(other_kinds(model.config)) or is_read


def _reads_padding(body: Any) -> bool:
    """Whether what makes a body's first hidden states is given the mask too, for its padding."""
    table, blocks = embedding_of(body), set(decoder_blocks(body))
    every = ((part, set(part.modules())) for part in body.children())
    makers = [part for part, inside in every if table in inside and blocks.isdisjoint(inside)]
    return any(_MASK in inspect.signature(part.forward).parameters for part in makers)


def _source(model: Any) -> str:
    return inspect.getsource(sys.modules[type(body_of(model)).__module__])


def takes_kernels(model: Any) -> bool:
    """Whether a class lets others attend for it."""
    return lets_attend(_source(model))


def other_kinds(config: Any) -> list[str]:
    """List the kinds of blocks that are no attention to all tokens, or to some of them."""
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    return sorted(k for k in kinds if k != FULL and not any(word in k for word in LIMITED))


def read_as_one_text(model: Any) -> None:
    """Let a model that makes its own masks take each row for one text, without a look at it."""
    base = body_of(model)
    base.forward = _as_one_text(base.forward)


def _as_one_text(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        looks = getattr(masking_utils, _LOOKS)
        setattr(masking_utils, _LOOKS, _nothing)
        try:
            return forward(*args, **kwargs)
        finally:
            setattr(masking_utils, _LOOKS, looks)

    return run


def _nothing(_position_ids: Any) -> None:
    """Find no second text."""
