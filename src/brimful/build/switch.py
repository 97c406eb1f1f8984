"""Switch Transformers' experts in the room that the router's capacity gives them.

A token goes to the one expert that its router prefers, and the first ``expert_capacity`` of a
sequence's tokens that choose an expert are served; the others pass by on the residual stream
(Fedus et al. 2021, arXiv:2101.03961, section 2.2). The capacity is a sequence's own, so that no
sequence depends on its neighbours, and padding, which comes last, never takes a token's place.

``transformers`` runs an expert on as many tokens as happened to choose it: sizes that depend on
values, which nobody can plan. Here, as in the paper, every expert has the same places, some of them
empty: the same results, and memory that is known beforehand. An expert that nobody chose gets a
gradient of zeros, where there it gets none.

The router's load-balancing and z losses are statistics of a micro-batch, so that with them a step
would depend on how it is cut; they are off.

Shapes: B sequences, S tokens, D width, E experts, C places of an expert in a sequence.
"""

from typing import Any

import torch
from torch import nn
from transformers.models.switch_transformers.modeling_switch_transformers import (
    SwitchTransformersSparseMLP,
    SwitchTransformersTop1Router,
)

HEARD = "places_heard"
"""Attribute of experts with places: called in each forward pass with the expert that every token
chose and whether it found a place, both [B, S, 1]."""


class _Logits(SwitchTransformersTop1Router):  # type: ignore[misc]  # untyped to mypy
    """A router that is called for its logits: called it is a unit, which FSDP2 gathers."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the logits of each token's experts.

        ``hidden_states``: [B, S, D].
        """
        logits: torch.Tensor = self.classifier(hidden_states.to(self.dtype))
        return logits


class FixedCapacityMLP(SwitchTransformersSparseMLP):  # type: ignore[misc]  # untyped to mypy
    """The experts of one block, each with its places."""

    def __init__(self, router: nn.Module, experts: nn.Module) -> None:
        """Take the parts over from a block, under the names that they have in a checkpoint."""
        nn.Module.__init__(self)  # its own constructor would make other parts
        self.router = router
        self.experts = experts

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return what each token's expert makes of it; zeros for a token that found no place.

        ``hidden_states``: [B, S, D].
        """
        hidden_BSD = hidden_states  # noqa: N806
        batch, num_tokens, width = hidden_BSD.shape
        capacity = min(self.router.expert_capacity, num_tokens)
        weight_BS1, place_BS1 = self._route(hidden_BSD, capacity)  # noqa: N806
        place_BSD = place_BS1.expand_as(hidden_BSD)  # noqa: N806
        # One place more than there are: tokens that found none go there, and come from there as 0.
        room = hidden_BSD.new_zeros((batch, len(self.experts) * capacity + 1, width))
        room = room.scatter(1, place_BSD, hidden_BSD)
        made = [
            expert(room[:, index * capacity : (index + 1) * capacity])
            for index, expert in enumerate(self.experts.values())
        ]
        nothing = made[0].new_zeros((batch, 1, width))
        out_BSD = torch.cat([*made, nothing], 1).gather(1, place_BSD) * weight_BS1  # noqa: N806
        return out_BSD.to(hidden_BSD.dtype)

    def _route(
        self,
        hidden_BSD: torch.Tensor,  # noqa: N803
        capacity: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose an expert for every token and a place with it, first come, first served.

        As the router's own ``forward``, without its noise and without casting its weight anew.

        ``hidden_BSD``: [B, S, D]. Returns [B, S, 1]: the probability of the expert that was chosen,
        by which its result is weighted; and the number of the place, the last one for tokens that
        found none.
        """
        logits_BSE = self.router(hidden_BSD)  # noqa: N806
        probability_BSE = logits_BSE.softmax(-1, dtype=self.router.dtype).to(hidden_BSD.dtype)  # noqa: N806
        weight_BS1, expert_BS1 = probability_BSE.max(-1, keepdim=True)  # noqa: N806
        num_experts = logits_BSE.shape[2]
        chosen_BSE = expert_BS1 == torch.arange(num_experts, device=hidden_BSD.device)  # noqa: N806
        order_BS1 = chosen_BSE.cumsum(1).gather(2, expert_BS1) - 1  # noqa: N806
        place_BS1 = expert_BS1 * capacity + order_BS1  # noqa: N806
        fits_BS1 = order_BS1 < capacity  # noqa: N806
        heard = getattr(self, HEARD, None)
        if heard is not None:
            heard(expert_BS1, fits_BS1)
        return weight_BS1, place_BS1.where(fits_BS1, num_experts * capacity)


def use_fixed_capacity(model: Any) -> None:
    """Put the experts of a Switch Transformer into their places, in place; others have none.

    The router's own type is set as well: it computes in fp32 and would otherwise turn its weight
    into that type during the first step.
    """
    for name, module in list(model.named_modules()):
        if type(module) is SwitchTransformersSparseMLP:
            module.router.classifier.to(module.router.dtype)
            module.router.__class__ = _Logits
            model.set_submodule(name, FixedCapacityMLP(module.router, module.experts))
