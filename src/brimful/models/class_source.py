"""Who attends in the classes of a module of ``transformers``, and who hides later tokens."""

import re

HAS_SDPA = "_supports_sdpa = True"
"""What a class says through which ``transformers`` runs PyTorch's fused attention."""
_TAKES_OTHERS = "_supports_attention_backend = True"
"""What a class says whose attention may be another's, and is given masks that were made outside."""
_KNOWN = "ALL_ATTENTION_FUNCTIONS"
"""Where a class looks up who attends, by name."""
_MAKES_CAUSAL = re.compile(r"create_(\w+_)?causal_mask(\(|\s+if)|nn\.Buffer\(\s*torch\.tril\(")
"""What a decoder calls, or holds, that hides later tokens from each, whatever it is given."""
_ASKS = re.compile(r"config\.is_decoder\b(?!\s*=\s)")
"""In a class that hides later tokens only where its configuration says so."""
_SCORES = "softmax("
"""What a class calls that weighs tokens against each other; a recurrence goes forward anyhow."""


def lets_attend(source: str) -> bool:
    """Whether the classes of a module let others attend for them."""
    return _TAKES_OTHERS in source or (HAS_SDPA in source and _KNOWN in source)


def is_causal_by_itself(source: str) -> bool:
    """Whether tokens of a decoder of a module see none of those behind them, by its own doing."""
    return _MAKES_CAUSAL.search(source) is not None or _SCORES not in source


def asks_whether_causal(source: str) -> bool:
    """Whether the classes of a module hide later tokens only where their configuration says so."""
    return _ASKS.search(source) is not None
