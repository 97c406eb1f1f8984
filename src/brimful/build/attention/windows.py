"""Windows: blocks whose tokens see themselves and the few around them, and no more.

A decoder's see those before them, an encoder's those on both sides.

``transformers`` makes the mask of a window itself, by rules that look at values; as with any mask
it is decided here, beforehand, in the form in which the class takes it. A window as long as a row
is none.
"""

import inspect
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch

from brimful.build.blocks import body_of
from brimful.models.attention_source import told_of

FULL = "full_attention"
SLIDING, CHUNKED = "sliding", "chunked"
"""In the name of every kind of block that has the configuration's window, or whose tokens see no
farther than the chunk of the row that they are in."""
LIMITED = (SLIDING, CHUNKED)
TAKING_WINDOWS = ("eager", "sdpa", "efficient", "cudnn")
"""Kernels that take a mask wherever they run."""
TOLD_WINDOWS = ("flash", "varlen")
"""Kernels of FlashAttention, to which a class tells its window as a number, and which need no mask
of it: ``sliding_window`` of ``flash_attention_forward`` in ``transformers``."""
Form = Literal["by kind", "one", "unknown"]
"""How a class takes its masks: one for each kind of block, one for all, or nobody knows."""
_MAKER = "create_sliding_window_causal_mask"
_MAKERS = (_MAKER, "create_bidirectional_sliding_window_mask")
_ONE = f"if self.config.sliding_window is None else {_MAKER}"
_BY_KIND = re.compile(r"isinstance\(\w+_mask_mapping := attention_mask, dict\)")


def window_of(config: Any, seq_len: int) -> int | None:
    """Return how far some blocks see, in tokens; None where that is no less than a row."""
    config = config.get_text_config()
    kinds = _kinds(config)
    if kinds and not any(word in kind for kind in kinds for word in LIMITED):
        return None
    is_chunked = any(CHUNKED in kind for kind in kinds)
    field = "attention_chunk_size" if is_chunked else "sliding_window"
    window: int | None = getattr(config, field, None)
    return window if window is not None and seq_len > window else None


def kernels_for(model: Any) -> tuple[str, ...]:
    """List the kernels under which blocks see no farther than their window, in one text or many."""
    source = inspect.getsource(sys.modules[type(body_of(model)).__module__])
    return (*TAKING_WINDOWS, *(TOLD_WINDOWS if "sliding_window" in told_of(source) else ()))


def _kinds(config: Any) -> tuple[str, ...]:
    """List the kinds of blocks, sorted; nothing where all are one."""
    return tuple(sorted(set(getattr(config.get_text_config(), "layer_types", None) or ())))


def form_of(model: Any) -> Form:
    """Say how the class of a model takes masks, by its source."""
    return _form(type(body_of(model)).__module__)


@cache
def _form(module_name: str) -> Form:
    source = inspect.getsource(sys.modules[module_name])
    if not any(maker in source for maker in _MAKERS):
        return "unknown"
    if _BY_KIND.search(source):
        return "by kind"
    return "one" if _ONE in source else "unknown"


def masks(
    model: Any, make: Callable[[int | None], torch.Tensor | None], window: int
) -> torch.Tensor | dict[str, torch.Tensor | None] | None:
    """Make the masks of a model with windows, in the form in which its class takes them.

    ``make``: makes the mask of blocks with a window of so many tokens, or without any.
    """
    if form_of(model) == "one":
        return make(window)
    return {kind: make(window if SLIDING in kind else None) for kind in _kinds(model.config)}
