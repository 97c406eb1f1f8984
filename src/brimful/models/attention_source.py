"""What a class of ``transformers`` runs, read from its source: neither is imported.

Fused kernels heed queries, keys, values, a mask and a scale. What else a class hands to its
attention (a cap on scores, sinks) they would leave out without a word, so that only written-out
attention computes what the class means.
"""

import ast
import re
from functools import cache
from importlib.util import find_spec

from brimful.models.class_source import HAS_SDPA, lets_attend
from brimful.models.generic import modeling_file

_CALL = "attention_interface"
"""What every class calls the function that it was given to attend with."""
_UNDERSTOOD = frozenset({
    "query", "key", "value", "attention_mask", "scaling", "dropout", "is_causal", "sliding_window",
    "position_bias", "position_ids", "output_attentions", "deterministic", "cu_seq_lens_q",
    "cu_seq_lens_k", "max_length_q", "max_length_k",
})  # fmt: skip
"""Keywords that fused attention heeds, or that say what the mask says as well."""
_MEANING = {
    "softcap": "cap on scores",
    "s_aux": "sinks of attention",
    "sinks": "sinks of attention",
    "indices": "choice of keys for each query",
    "block_indices": "choice of keys for each query",
}
NO_SDPA = "attention, which its class has written out only"
OWN_ATTENTION = "attention, which its class shares with no kernel"
_BEHIND = re.compile(r'hub_with_fallback\(\s*"\w+",\s*"(\w+)"')
"""The package of whose function a class's own stands in the place of."""
_DISTRIBUTIONS = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d",
                  "mamba_ssm": "mamba-ssm"}  # fmt: skip


def scores_of(source: str) -> str:
    """Name what fused attention would leave out of a class's module; empty where it is nothing."""
    words = told_of(source) - _UNDERSTOOD
    return " and ".join(sorted({_MEANING.get(word, word) for word in words}))


@cache
def left_out_of(model_type: str) -> str:
    """Name what fused attention would leave out of an architecture of ``transformers``.

    Returns a few words; empty where it is nothing, or where nobody can read it.
    """
    path = modeling_file(model_type)
    if path is None or not path.is_file():
        return ""
    source = path.read_text("utf-8")
    if not lets_attend(source):
        return OWN_ATTENTION
    return scores_of(source) or ("" if HAS_SDPA in source else NO_SDPA)


@cache
def missing_kernels(model_type: str) -> tuple[str, ...]:
    """Name the packages whose kernels a class runs where they are installed, and are not.

    Without them it runs code of its own, which takes more memory and time.
    """
    path = modeling_file(model_type)
    if path is None or not path.is_file():
        return ()
    packages = dict.fromkeys(_BEHIND.findall(path.read_text("utf-8")))
    return tuple(_DISTRIBUTIONS.get(p, p) for p in packages if find_spec(p) is None)


@cache
def told_of(source: str) -> frozenset[str]:
    """List the keywords with which the classes of a module call their attention."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return frozenset(
        word.arg
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == _CALL
        for word in call.keywords
        if word.arg is not None
    )
