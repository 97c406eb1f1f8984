"""Mixtures of experts: run so that no size depends on where tokens are routed.

``transformers`` has several implementations of experts. ``eager`` runs each on as many tokens as
chose it, which nobody can plan. ``grouped_mm``, which is what its users get, sorts all tokens x
top_k rows by expert and multiplies them in one grouped product: every tensor has a size known
beforehand, and only the work is divided by the routing. It runs in the type of the experts' weights
and not in autocast's, on CPUs and on CUDA alike; a device without the kernel is given a loop
with the same results and the same sizes.
"""

import contextlib
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

from brimful.errors import UnsupportedError
from brimful.models.mixtures import GROUPED as GROUPED_TYPES
from brimful.models.mixtures import OWN_EXPERTS
from brimful.models.names import has_experts
from brimful.values.job import Job

GROUPED = "grouped_mm"
_ROUTERS = ("gate", "router")
"""What ``transformers`` calls them."""
_PICKS = re.compile(r"\bnonzero\(|torch\.where\([^,()]+\)|\.tolist\(\)|\bbincount\(")
"""What yields as many rows as were routed somewhere."""
_ROW_BYTES = 16
"""What the strides of a grouped product are multiples of (``GroupedMMUtils.h``, \
``check_valid_strides_and_return_transposed``)."""


def check_experts(model: Any, job: Job) -> None:
    """Refuse experts whose memory hangs on where tokens are routed, or that no kernel takes.

    ``model``: on ``meta``, in the type of its weights.
    """
    config, name = model.config.get_text_config(), job.model.name
    if job.model.model_type in OWN_EXPERTS or not has_experts(config.to_dict()):
        return
    if not model._can_set_experts_implementation():  # noqa: SLF001 - the class says it nowhere else
        # Whether the module of a class picks rows by where tokens were routed, by its source.
        if _PICKS.search(inspect.getsource(sys.modules[type(model).__module__])) is None:
            return
        raise UnsupportedError(
            f"{name} is of type {job.model.model_type}, whose experts transformers runs on as many "
            f"tokens as happen to choose them, so that its memory cannot be known beforehand; use "
            f"{' or '.join(sorted(GROUPED_TYPES))}"
        )
    chosen = config._experts_implementation  # noqa: SLF001 - as above
    if chosen != GROUPED:
        raise UnsupportedError(
            f"{name} would run its experts with experts_implementation={chosen}, and this version "
            f"runs {GROUPED}, whose sizes are known beforehand; take experts_implementation out of "
            f"its config.json, or use torch>=2.9, where that is there"
        )
    for experts in expert_modules(model):
        _check_rows(experts, name)


def expert_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that hold the experts of a block, all in one weight each, in order."""
    for module in model.modules():
        if hasattr(module, "is_concatenated") and hasattr(module, "down_proj"):
            yield module


def is_router(model: nn.Module, name: str) -> bool:
    """Whether a module is what chooses the experts of a block: it stands beside them."""
    parent, _, own = name.rpartition(".")
    return own in _ROUTERS and hasattr(model.get_submodule(parent), "experts")


@contextlib.contextmanager
def targets_as_named() -> Iterator[None]:
    """Let PEFT put adapters beside the linear layers that it is told, and beside no others.

    Since transformers 5 holds experts in one weight, PEFT takes names that some types' experts had
    before (``gate_proj`` and its like) for that weight, so that adapters of older versions load:
    it would leave out the linear layers that still have those names, in dense blocks and in
    shared experts.
    """
    try:
        from peft.utils import transformers_weight_conversion as conversion
    except ImportError:  # older than that, or not installed: ``adapt`` says so
        yield
        return
    original = conversion.convert_peft_config_for_transformers
    conversion.convert_peft_config_for_transformers = _leave
    try:
        yield
    finally:
        conversion.convert_peft_config_for_transformers = original


def _leave(*_args: Any, **_kwargs: Any) -> None:
    """Convert nothing."""


def _check_rows(experts: nn.Module, name: str) -> None:
    """Refuse widths of which a row is no multiple of 16 bytes."""
    weight: Any = experts.down_proj
    multiple = _ROW_BYTES // weight.element_size()
    for width in weight.shape[-2:]:
        if width % multiple:
            raise UnsupportedError(
                f"{name} has experts of width {width}, and a grouped product of {weight.dtype} "
                f"takes multiples of {multiple}; change hidden_size or the experts' intermediate "
                f"size"
            )
