"""The experts of a model, whether its architecture is read here or not."""

from collections.abc import Iterable
from typing import Any

from brimful.models.architectures import ARCHITECTURES, MIXTURES, named_with
from brimful.models.experts import NO_EXPERTS, Experts
from brimful.models.layout import Layout
from brimful.models.names import NUM_EXPERTS
from brimful.models.spec import ModelSpec

NUM_CHOSEN = (
    "num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk", "top_k_experts",
)  # fmt: skip
"""What configurations call the number of experts that a token is sent to."""

GROUPED = named_with("groups_experts")
"""Those whose experts run as one grouped product (``Architecture.groups_experts``)."""
OWN_EXPERTS = frozenset(MIXTURES) - GROUPED
"""Those whose experts this project runs itself (``build/switch.py``)."""


def known_experts(spec: ModelSpec) -> Experts:
    """Read the experts of a model.

    Of an architecture that no file here describes these are the numbers that its configuration
    says; how wide they are and in which blocks is known once it was built (``built_experts``).
    """
    record = MIXTURES.get(spec.model_type)
    if record is not None and record.experts is not None:
        return record.experts(spec)
    if spec.model_type in ARCHITECTURES:
        return NO_EXPERTS
    num_experts, num_chosen = (_number(spec, names) for names in (NUM_EXPERTS, NUM_CHOSEN))
    if num_experts <= 1:
        return NO_EXPERTS
    return NO_EXPERTS._replace(num_experts=num_experts, num_experts_per_token=num_chosen)


def has_stacks(spec: ModelSpec) -> bool:
    """Whether a model's experts are stacks of matrices, as ``transformers`` has them."""
    return spec.model_type not in OWN_EXPERTS and known_experts(spec).num_experts > 1


def built_experts(spec: ModelSpec, layout: Layout) -> Experts:
    """Return the same of a model whose parameters were read off it, where these are stacks."""
    blocks = [run.parameters for run in layout.blocks for _ in range(run.num_blocks)]
    stacks = [[p.shape for p in block if p.kind == "experts"] for block in blocks]
    sparse = tuple(place for place, each in enumerate(stacks) if each)
    if not sparse:
        return NO_EXPERTS
    return known_experts(spec)._replace(width=stacks[sparse[0]][-1][-1], sparse_blocks=sparse)


def _number(spec: ModelSpec, names: Iterable[str]) -> int:
    """Return what a configuration says under the first of some names; of a list the most."""
    found: Iterable[Any] = (spec.hf_config.get(name) for name in names)
    first = next((value for value in found if value), 0)
    return max(first) if isinstance(first, list) else int(first)
