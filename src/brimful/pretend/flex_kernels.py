"""What a kernel computes that Inductor wrote for FlexAttention, by its code and what it is given.

Source: PyTorch 2.13, ``torch/_inductor/kernel/flex/templates/flex_attention.py.jinja`` and
``flex_backwards.py.jinja``.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

FORWARD, BACKWARD = "flex_attention", "flex_attention_backward"
_NAME = re.compile(r"def triton_tem_fused_\w*?flex_attention(_backward)?\w*\(([^)]*)\)")
_CONSTANT = r"\b{} : tl\.constexpr = (\d+)"
_SUMS, _KEYS = "arg_LSE", "arg_K"
"""The argument that has a number for each query of each head, and that of the keys."""
Flops = Callable[[Sequence[Any]], int]


def attention_in(source: str) -> tuple[str, Flops] | None:
    """Return which attention a kernel computes, and what tells its FLOPs of its arguments.

    As of any attention: counted whole, as if nothing were masked.
    """
    found = _NAME.search(source)
    if found is None:
        return None
    names = [each.partition(":")[0].strip() for each in found[2].split(",")]
    places = {name: number for number, name in enumerate(names)}
    width, value_width, shared = (
        _constant(source, name) for name in ("QK_HEAD_DIM", "V_HEAD_DIM", "GQA_SHARED_HEADS")
    )

    def count(args: Sequence[Any]) -> int:
        rows, heads, queries = args[places[_SUMS]].shape
        keys = queries  # of one product with them, where they are no argument of their own
        if _KEYS in places:
            keys = args[places[_KEYS]].numel() // (rows * (heads // shared) * width)
        query, key, value = (
            (rows, heads, tokens, wide)
            for tokens, wide in ((queries, width), (keys, width), (keys, value_width))
        )
        if found[1] is None:
            return int(sdpa_flop_count(query, key, value))
        out = (rows, heads, queries, value_width)
        return int(sdpa_backward_flop_count(out, query, key, value))

    return (FORWARD if found[1] is None else BACKWARD), count


def _constant(source: str, name: str) -> int:
    found = re.search(_CONSTANT.format(name), source)
    assert found is not None, f"no {name} in what Inductor wrote"
    return int(found[1])
