"""Mixtures of experts: how many, how wide, in which blocks. Knows no architecture."""

from typing import Any, NamedTuple

from brimful.models.layout import Layout, Parameter, Parameters, num_elements, parts
from brimful.models.spec import ModelSpec


class Experts(NamedTuple):
    """The experts of a model, read out of its configuration.

    Attributes:
        num_experts: Experts that a router picks from, in each block that has any; 0 in a dense
            model.
        num_experts_per_token: How many of them one token is sent to.
        width: Inner width of one expert's MLP.
        num_shared_experts: Experts that every token uses beside those.
        sparse_blocks: Blocks with experts, by their place among all blocks (an encoder's come
            before a decoder's).
    """

    num_experts: int
    num_experts_per_token: int
    width: int
    num_shared_experts: int
    sparse_blocks: tuple[int, ...]


NO_EXPERTS = Experts(0, 0, 0, 0, ())
"""What a dense model has."""


def sizes_of(
    config: dict[str, Any], defaults: dict[str, Any], aliases: dict[str, str]
) -> dict[str, Any]:
    """Fill in what a configuration leaves to its defaults, under one name for each size.

    ``aliases``: other names that the class takes, each with the name in ``defaults``; where both
    are given the other name wins, as it does in ``transformers``.
    """
    named = {aliases[field]: value for field, value in config.items() if field in aliases}
    return {**defaults, **config, **named}


def experts_everywhere(spec: ModelSpec, defaults: dict[str, Any]) -> Experts:
    """Read experts that are in every block, as wide as ``intermediate_size`` says."""
    sizes = sizes_of(spec.hf_config, defaults, {"num_experts": "num_local_experts"})
    return Experts(
        num_experts=sizes["num_local_experts"],
        num_experts_per_token=sizes["num_experts_per_tok"],
        width=spec.intermediate_size,
        num_shared_experts=0,
        sparse_blocks=tuple(range(spec.num_layers)),
    )


def routed_stacks(num_experts: int, hidden_size: int, width: int) -> Parameters:
    """Lay out gated experts as ``transformers`` stacks them.

    ``gate_up_proj`` is [experts, 2 width, hidden], ``down_proj`` [experts, hidden, width].
    """
    return (
        Parameter("mlp.experts.gate_up_proj", (num_experts, 2 * width, hidden_size), "experts"),
        Parameter("mlp.experts.down_proj", (num_experts, hidden_size, width), "experts"),
    )


def router(name: str, num_experts: int, hidden_size: int) -> Parameters:
    """Lay out a router without a bias: [experts, hidden]."""
    return (Parameter(f"{name}.weight", (num_experts, hidden_size), "router"),)


def num_active_parameters(layout: Layout, experts: Experts) -> int:
    """Count the parameters that one token uses.

    Total minus the routed experts that a token is not sent to. Everything else is counted whole:
    shared experts, routers, the output layer, and the embedding although a token reads one row of
    it. So count Mistral AI (Mixtral's 12.9B) and Qwen (30B-A3B's 3.3B, 235B-A22B's 22B).
    DeepSeek's 2.4B and 37B and gpt-oss' 3.6B and 5.1B are without the embedding and with the
    output layer: subtract ``layout.embedding`` to compare. Known error against what is published,
    rule for rule: less than one unit of its last digit (``tests/models/test_registry.py``).

    Source: the model cards, from memory; Qwen3's, gpt-oss' and DeepSeek's figures were looked up.

    ``experts``: its experts; ``NO_EXPERTS`` for a dense model, of which all are active.
    """
    total = routed = 0
    for parameters, times in parts(layout):
        total += times * num_elements(parameters)
        routed += times * num_elements(p for p in parameters if p.kind == "experts")
    if not routed:
        return total
    # Experts are equally large, so that this division has no remainder.
    idle = experts.num_experts - experts.num_experts_per_token
    return total - routed * idle // experts.num_experts
