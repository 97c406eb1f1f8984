"""How a model attends: fused with a causal flag, or written out with a mask.

``transformers`` decides whether a mask is needed by looking at values of ``position_ids``, which a
fake tensor has not: the simulated run would make a mask that the real one does not. Here the
answer is known beforehand (every sequence is whole and causal), so it is given, in both.
"""

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from brimful.strategy import Attention

_SDPA = "brimful_sdpa"
AttentionInterface.register(_SDPA, sdpa_attention_forward)

IMPLEMENTATION: dict[Attention, str] = {"sdpa": _SDPA, "eager": "eager"}
"""The name under which ``transformers`` knows each; one without a mask function gets no mask."""


def causal_mask(
    attention: Attention, *, seq_len: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor | None:
    """Make the mask that an attention written out adds to its scores.

    Args:
        attention: How the model attends.
        seq_len: Tokens per sequence.
        dtype: Type of the hidden states.
        device: Where they live.

    Returns:
        [1, 1, tokens, tokens], 0 where a query may look and the type's minimum where not; None for
        fused attention, which implies the mask.
    """
    if attention == "sdpa":
        return None
    blocked = torch.full((seq_len, seq_len), torch.finfo(dtype).min, dtype=dtype, device=device)
    return blocked.triu_(1)[None, None]
