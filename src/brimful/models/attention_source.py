"""What a class of ``transformers`` runs, read from its source: neither is imported.

Fused kernels heed queries, keys, values, a mask and a scale. What else a class hands to its
attention (a cap on scores, sinks) they would leave out without a word, so that only written-out
attention computes what the class means.
"""

import ast
import re
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

from brimful.models.architectures import ARCHITECTURES
from brimful.models.class_source import HAS_SDPA, lets_attend
from brimful.models.generic import modeling_file
from brimful.models.spec import MODULE

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
_BEHIND = re.compile(r'hub_with_fallback\(\s*"(\w+)",\s*"(\w+)"[^)]*\)\s*def (\w+)')
"""A function of a package, and what stands in its place where that is not installed."""
LAYERS = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d",
          "mamba_ssm": "mamba-ssm"}  # fmt: skip
"""Packages that whole layers ask for, and what brings them: where such a class is trained they are
installed."""


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


class Behind(NamedTuple):
    """A function of a class's module that a package has kernels for.

    Attributes:
        asked: What the package calls it.
        package: Its module.
        name: What the class calls it.
    """

    asked: str
    package: str
    name: str


def functions_behind(source: str) -> tuple[Behind, ...]:
    """List the functions of a module that run a package's kernels where it is installed."""
    return tuple(Behind(*found) for found in _BEHIND.findall(source))


@cache
def asked_packages(model_type: str) -> tuple[str, ...]:
    """Name the modules of packages whose kernels a class runs where they are installed.

    Without them it runs code of its own, which takes more memory and time.
    """
    path = None if model_type in {*ARCHITECTURES, MODULE} else modeling_file(model_type)
    if path is None or not path.is_file():
        return ()
    return tuple(dict.fromkeys(f.package for f in functions_behind(path.read_text("utf-8"))))


def named_kernels(model_type: str) -> str:
    """Name those packages as they are installed, in one text; empty: it asks for none."""
    packages = asked_packages(model_type)
    return " and ".join(LAYERS.get(package, package) for package in packages)


def missing_kernels(model_type: str) -> tuple[str, ...]:
    """Name those packages that are not installed here."""
    missing = (package for package in asked_packages(model_type) if find_spec(package) is None)
    return tuple(LAYERS.get(package, package) for package in missing)


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
