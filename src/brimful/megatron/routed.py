"""Mixtures of experts in Megatron-LM's words.

Source: ``megatron/core/transformer/moe/{router,moe_utils}.py`` of Megatron-LM 0.20: of a sigmoid
the chosen scores are normed where there are several; a bias goes with a sigmoid alone; a group is
worth its best scores together.
"""

from collections.abc import Mapping
from typing import Any

from brimful.megatron.by_layer import listed
from brimful.megatron.classes import Facts
from brimful.models.architectures import MIXTURES
from brimful.models.config import experts_of
from brimful.models.experts import NO_EXPERTS, Experts
from brimful.models.mixtures import known_experts
from brimful.models.spec import ModelSpec

_NUM_SHARED = ("n_shared_experts", "moe_num_shared_experts")
_SIGMOID = ("--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias")
_WIDE = ("--moe-router-dtype", "fp32")
_UNNORMED = "norm_topk_prob=False, which no argument says: weights of chosen experts are normed"
_BIASED = "a bias beside a softmax, which no argument says: Megatron-Bridge takes a sigmoid for it"
_BEST = "groups of experts by their best score alone, which no argument says"


def routed_words(
    model: ModelSpec, facts: Facts, fields: Mapping[str, Any]
) -> tuple[list[object], list[str], int]:
    """Say a model's experts: their arguments, what of them none says, and parameters that differ.

    A bias for the choice is no parameter of Megatron's, and is one of some classes.
    """
    experts = experts_in(model, fields)
    if not experts.num_experts:
        return [], [], 0
    words: list[object] = [
        "--num-experts", experts.num_experts, "--moe-router-topk",
        experts.num_experts_per_token, "--moe-ffn-hidden-size", experts.width,
        "--moe-grouped-gemm", "--moe-token-dispatcher-type", "alltoall",
    ]  # fmt: skip
    if len(experts.sparse_blocks) < model.num_layers:
        each = [layer in experts.sparse_blocks for layer in range(model.num_layers)]
        words += ["--moe-layer-freq", listed(each)]
    if experts.num_shared_experts:
        width = experts.num_shared_experts * experts.width
        words += ["--moe-shared-expert-intermediate-size", width]
    chosen, left = _chosen(facts, fields)
    biases = experts.num_experts * len(experts.sparse_blocks) if facts.counts_balance else 0
    return [*words, *chosen], left, -biases


def experts_in(model: ModelSpec, fields: Mapping[str, Any]) -> Experts:
    """Return the experts of a model, of an architecture that no file describes by its fields."""
    if model.model_type in MIXTURES:
        return experts_of(model)
    known = known_experts(model)
    if not known.num_experts:
        return NO_EXPERTS
    return known._replace(
        width=fields.get("moe_intermediate_size") or model.intermediate_size,
        num_shared_experts=next((fields[each] for each in _NUM_SHARED if fields.get(each)), 0),
        sparse_blocks=tuple(
            layer for layer in range(model.num_layers) if _is_sparse(layer, fields)
        ),
    )


def _is_sparse(layer: int, fields: Mapping[str, Any]) -> bool:
    """Whether a layer is a mixture: by a list, by its place behind dense ones, or every n-th."""
    if kinds := fields.get("mlp_layer_types"):
        return bool(kinds[layer] == "sparse")
    last = fields.get("moe_layer_end_index", -1)
    return (
        layer >= (fields.get("first_k_dense_replace") or fields.get("moe_layer_start_index") or 0)
        and (layer + 1) % (fields.get("moe_layer_interval") or 1) == 0
        and (last < 0 or layer <= last)
    )


def _chosen(facts: Facts, fields: Mapping[str, Any]) -> tuple[list[object], list[str]]:
    """Say how experts are chosen and weighed, and what of it no argument says."""
    is_normed = fields.get("norm_topk_prob", True)
    words, left = list[object](), list[str]()
    match facts.router:
        case "softmax" if is_normed:
            return [], []
        case "softmax" | "softmax as it is":
            words.append("--moe-router-pre-softmax")
        case "sigmoid":
            words += [*_SIGMOID, *_WIDE]
            left += [] if is_normed else [_UNNORMED]
        case "biased softmax":
            return [*_SIGMOID, *_WIDE], [_BIASED]
    groups = fields.get("n_group") or 1
    if groups > 1:
        words += ["--moe-router-num-groups", groups]
        words += ["--moe-router-group-topk", fields["topk_group"]]
        left += [_BEST] if facts.router == "softmax as it is" else []
    scale = fields.get("routed_scaling_factor") or 1.0
    return words + (["--moe-router-topk-scaling-factor", scale] if scale != 1 else []), left
