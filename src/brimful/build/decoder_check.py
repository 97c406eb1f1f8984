"""Whether a decoder of ``transformers`` may be run the way decoders are run here.

The build path takes the hidden states of the base model, one mask or none, and the output layer by
itself, so that logits can be computed in chunks. That is what most decoders do and some do not:
those that scale or cap their logits, or see a window or an alibi. They are refused, not trained as
something else.
"""

import ast
import inspect
import re
import textwrap
from typing import Any

from torch import nn

from brimful.errors import UnsupportedError
from brimful.job import Job

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "final_logit_softcapping": (None,),
    "logits_scaling": (None, 1, 1.0),
    "logit_scale": (None, 1, 1.0),
}
"""Fields that change logits after the output layer, and values at which they do not."""
_LOGITS = "logits"
_FULL = "full_attention"


def check_decoder(model: Any, job: Job) -> None:
    """Refuse a decoder that computes its logits or its attention in a way of its own.

    Args:
        model: On ``meta``.
        job: Says how long its sequences are.

    Raises:
        UnsupportedError: It does.
    """
    name = job.model.name
    if not model._supports_attention_backend:  # noqa: SLF001 - the class says it nowhere else
        raise UnsupportedError(
            f"{name} is of type {job.model.model_type}, whose attention cannot be given from "
            f"outside; use a decoder like llama"
        )
    if not _head_is_last(model):
        raise UnsupportedError(
            f"{name} is of type {job.model.model_type}, which changes its logits after the output "
            f"layer; use a decoder like llama"
        )
    if getattr(model.config, "output_router_logits", False):
        raise UnsupportedError(
            f"{name} asks for the routers' auxiliary loss (output_router_logits: true), which this "
            f"version does not train; set it to false in config.json"
        )
    check_window(model.config, job)


def check_window(config: Any, job: Job) -> None:
    """Refuse sequences that are longer than the window that some blocks attend to.

    Raises:
        UnsupportedError: They are, or a block is of another kind than attention.
    """
    config = config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if kinds and not any("sliding" in kind for kind in kinds):
        window = None
    if others := {kind for kind in kinds if kind != _FULL and "sliding" not in kind}:
        raise UnsupportedError(
            f"{job.model.name} has blocks of {' and '.join(sorted(others))}, and this version runs "
            f"full and sliding attention; use another model"
        )
    if window is not None and job.seq_len > window:
        raise UnsupportedError(
            f"seq_len={job.seq_len} is longer than the sliding window of {job.model.name}, which "
            f"is {window}; use {window} or less, where the window is of no effect"
        )


def _head_is_last(model: Any) -> bool:
    """Whether the logits are what the output layer returns, by the class's own ``forward``."""
    head = model.get_output_embeddings()
    names = [name for name, module in model.named_children() if module is head]
    call = re.compile(rf"self\.{names[0]}\(hidden_states(\[[^\]]*\])?\)") if names else None
    assigned = _assigned(type(model))
    if call is None or not any(call.fullmatch(made) for made in assigned):
        return False
    known = [field for field in _NEUTRAL if hasattr(model.config, field)]
    is_neutral = known and all(getattr(model.config, field) in _NEUTRAL[field] for field in known)
    return bool(is_neutral) or all(call.fullmatch(made) for made in assigned)


def _assigned(model_class: type[nn.Module]) -> list[str]:
    """List what ``forward`` assigns to its logits."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(model_class.forward)))
    assignments = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assign)]
    return [
        ast.unparse(node.value)
        for node in assignments
        if any(isinstance(target, ast.Name) and target.id == _LOGITS for target in node.targets)
    ]
