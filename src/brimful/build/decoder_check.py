"""Whether a decoder of ``transformers`` may be run the way decoders are run here.

The build path takes the hidden states of the base model, masks that were decided beforehand, and
the output layer by itself, so that logits can be computed in chunks. What a class does to its
logits, how it takes its masks and what it tells its attention is read from its source; what cannot
be read is refused, not trained as something else.
"""

import inspect
import sys
from functools import cache
from typing import Any

from torch import nn

from brimful.build.attention.own import attends_by_itself, other_kinds, takes_kernels
from brimful.build.attention.windows import TAKING_WINDOWS, form_of, kernels_for, window_of
from brimful.build.blocks import body_of
from brimful.build.logits import LogitWay, OwnWayError, read_way
from brimful.errors import UnknownMemoryError, UnsupportedError
from brimful.models.attention_source import scores_of
from brimful.models.class_source import asks_whether_causal, is_causal_by_itself
from brimful.values.job import PACKINGS, Job
from brimful.values.strategy import Strategy

_PLAIN = ("wrapped", "none")
"""Packings whose rows are one text each, so that a causal mask is all that there is to hide."""
_OWN, _GIVEN = ("eager",), ("eager", "sdpa", "efficient", "cudnn")
"""Kernels of classes that make their own masks: of those that attend by themselves, and of those
that let others attend, which are given no mask where all tokens before are seen."""
_ONE_WIDTH = ("flash", "varlen")
"""Kernels of FlashAttention-2, whose keys and values are equally wide."""


def check_decoder(model: Any, job: Job, strategy: Strategy) -> LogitWay:
    """Refuse a decoder whose logits, masks or losses cannot be computed here."""
    name = job.model.name
    is_own = attends_by_itself(model)
    if is_own:
        _check_own_attention(model, job, strategy)
    try:
        way = read_way(model)
    except OwnWayError as error:
        raise UnsupportedError(
            f"{name} is of type {job.model.model_type}, which changes its logits after the output "
            f"layer by more than a scale or a cap; use a decoder like llama"
        ) from error
    if getattr(model.config, "output_router_logits", False):
        raise UnsupportedError(
            f"{name} asks for the routers' auxiliary loss (output_router_logits: true), which this "
            f"version does not train; set it to false in config.json"
        )
    if not is_own:
        _check_masks(model, job, strategy, kernels_for(model))
    return way


def _check_own_attention(model: Any, job: Job, strategy: Strategy) -> None:
    """Refuse a class whose attention is its own where it would not be run as the class runs it."""
    name, model_type = job.model.name, job.model.model_type
    source = inspect.getsource(sys.modules[type(body_of(model)).__module__])
    is_decoder = getattr(model.config, "is_decoder", True)
    is_encoder = is_decoder is False and asks_whether_causal(source)
    if is_encoder or not is_causal_by_itself(source):
        raise UnsupportedError(
            f"{name} is of type {model_type}, whose attention cannot be given from outside and "
            f"hides later tokens only where it is told to; use a decoder like llama"
        )
    allowed = _GIVEN if takes_kernels(model) and not window_of(model.config, job.seq_len) else _OWN
    if strategy.attention not in allowed or job.packing == "documents":
        plain = PACKINGS[job.task][0]
        raise UnsupportedError(
            f"{name} is of type {model_type}, whose masks cannot be given from outside; use "
            f"attention={' or '.join(allowed)}, and packing={' or '.join(_PLAIN)}",
            nearest={
                **({} if strategy.attention in allowed else {"attention": allowed[0]}),
                **({"packing": plain} if job.packing == "documents" else {}),
            },
        )


def check_scores(model: Any, job: Job, strategy: Strategy) -> None:
    """Refuse fused attention where a class tells its attention what no fused kernel heeds."""
    if strategy.attention == "eager":
        return
    if what := left_out(type(body_of(model))):
        raise UnsupportedError(
            f"attention={strategy.attention} would leave out the {what} of {job.model.name}, which "
            f"is of type {job.model.model_type}; use eager"
        )
    widths = _widths(model.config.get_text_config())
    if strategy.attention in _ONE_WIDTH and len(widths) > 1:
        key, value = sorted(widths, reverse=True)
        raise UnsupportedError(
            f"attention={strategy.attention} takes keys and values of one width, and those of "
            f"{job.model.name} are {key} and {value} wide; use eager, sdpa, efficient or cudnn"
        )


def _widths(config: Any) -> set[int]:
    """Return the widths of a head's keys and values where they are latent, else nothing."""
    fields = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    sizes = [size for field in fields if isinstance(size := getattr(config, field, None), int)]
    return {sum(sizes[:2]), sizes[2]} if len(sizes) == len(fields) else set()


def left_out(model_class: type[nn.Module]) -> str:
    """Name what fused attention would leave out of a class; empty where it is nothing."""
    return _left_out(model_class.__module__)


@cache
def _left_out(module_name: str) -> str:
    return scores_of(inspect.getsource(sys.modules[module_name]))


def _check_kinds(config: Any, job: Job) -> None:
    """Refuse blocks of another kind than attention, full or limited."""
    if others := other_kinds(config):
        raise UnsupportedError(
            f"{job.model.name} has blocks of {' and '.join(others)}, and this version classifies "
            f"by full and sliding attention; use another model"
        )


def _check_masks(model: Any, job: Job, strategy: Strategy, kernels: tuple[str, ...]) -> None:
    """Refuse windows that the class or the kernel cannot be given.

    ``kernels``: those that can.
    """
    window = window_of(model.config, job.seq_len)
    if window is None:
        return
    if form_of(model) == "unknown":
        raise _too_long(job, window)
    if strategy.attention not in kernels:
        raise UnsupportedError(
            f"attention={strategy.attention} is given no mask, so that tokens of seq_len="
            f"{job.seq_len} would see more than the sliding window of {job.model.name}, which is "
            f"{window}; use {' or '.join(kernels)}, or seq_len={window}"
        )


def check_windows(model: Any, job: Job, strategy: Strategy) -> None:
    """Refuse a model whose blocks, or whose windows, are none that are masked here.

    Raises UnsupportedError: they are not.
    """
    _check_kinds(model.config, job)
    _check_masks(model, job, strategy, TAKING_WINDOWS)


def _too_long(job: Job, window: int) -> UnsupportedError:
    return UnknownMemoryError(
        f"seq_len={job.seq_len} of {job.model.name} is not simulated: some of its layers see no "
        f"farther than {window} tokens, and its class takes no mask of that from outside; "
        f"seq_len={window} is simulated, where it is of no effect"
    )
