"""Losses that keep routers in order: a balanced load, and logits that do not grow.

Both are added to what is differentiated, not to the loss that is shown. For every block with
experts, summed over blocks:

- auxiliary: a E sum_i f_i P_i, f_i the share of all choices that fell on expert i, P_i the mean
  probability that its router gives it; 1 where all is balanced. A statistic of a micro-batch on one
  device (``exact``), weighted by its part of the step.
  Source: Fedus et al. 2021 (arXiv:2101.03961), equations 4 to 6, with choices in place of tokens.
- z: z / T sum over tokens of logsumexp(logits)^2, T = tokens of a step with full rows, so that it
  adds up whatever the micro-batches. Source: Zoph et al. 2022 (arXiv:2202.08906), equation 5.

Padding is not counted. DeepSeek-V3's router scores by sigmoid; its P are those scores divided by
their sum over experts (arXiv:2412.19437, equation 18).

Shapes: N tokens of a micro-batch, E experts, k chosen by a token.
"""

from typing import Any

import torch
from torch import nn

from brimful.build.batch import Batch
from brimful.build.experts import is_router
from brimful.build.phases import in_backward
from brimful.models.architectures import named_with
from brimful.values.job import Job

SIGMOID = named_with("balanced_router")
"""Architectures whose routers score every expert by itself."""
Routed = tuple[torch.Tensor, torch.Tensor]
"""Logits [N, E] and choices [N, k] of one block."""


class RouterLosses:
    """Hears every router of a model, and makes their losses of a micro-batch."""

    def __init__(self, model: nn.Module, job: Job) -> None:
        """Listen."""
        self._job = job
        self._heard: list[Routed] = []
        for name, module in model.named_modules():
            if is_router(model, name):
                module.register_forward_hook(self._hear)

    def _hear(self, _router: nn.Module, _args: Any, routed: Any) -> None:
        if torch.is_grad_enabled() and not in_backward():
            self._heard.append((routed[0], routed[2]))

    def added_to(self, loss: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the loss with the routers' gradients, and without their value."""
        heard, self._heard = self._heard, []
        if not heard:  # nothing is learnt from what is judged
            return loss
        counts_N = _counts(batch, heard[0][0])  # noqa: N806
        added = torch.stack([self._of_block(*routed, counts_N) for routed in heard]).sum()
        return loss + (added - added.detach())

    def _of_block(
        self,
        logits_NE: torch.Tensor,  # noqa: N803
        chosen_Nk: torch.Tensor,  # noqa: N803
        counts_N: torch.Tensor,  # noqa: N803
    ) -> torch.Tensor:
        job, logits_NE = self._job, logits_NE.float()  # noqa: N806
        total = logits_NE.new_zeros(())
        if job.router_z_loss:
            squares_N = logits_NE.logsumexp(-1).square() * counts_N  # noqa: N806
            total = total + job.router_z_loss / job.tokens_per_step * squares_N.sum()
        if job.router_aux_loss:
            part = len(counts_N) / job.tokens_per_step
            balance = _balance(self._probabilities(logits_NE), chosen_Nk, counts_N)
            total = total + job.router_aux_loss * part * balance
        return total

    def _probabilities(self, logits_NE: torch.Tensor) -> torch.Tensor:  # noqa: N803
        if self._job.model.model_type not in SIGMOID:
            return logits_NE.softmax(-1)
        scores_NE = logits_NE.sigmoid()  # noqa: N806
        return scores_NE / scores_NE.sum(-1, keepdim=True)


def router_losses(model: nn.Module, job: Job) -> RouterLosses | None:
    """Listen to a model's routers where the job asks for a loss of theirs; None elsewhere."""
    wanted = job.router_aux_loss or job.router_z_loss
    return RouterLosses(model, job) if wanted else None


def _counts(batch: Batch, logits_NE: torch.Tensor) -> torch.Tensor:  # noqa: N803
    """Return 1 for every token and 0 for padding, [N], fp32."""
    if batch.segments is None:
        return logits_NE.new_ones(len(logits_NE), dtype=torch.float32)
    return (batch.segments != 0).flatten().float()


def _balance(
    probability_NE: torch.Tensor,  # noqa: N803
    chosen_Nk: torch.Tensor,  # noqa: N803
    counts_N: torch.Tensor,  # noqa: N803
) -> torch.Tensor:
    """Return E sum_i f_i P_i over the tokens that count."""
    num_experts, num_choices = probability_NE.shape[1], chosen_Nk.shape[1]
    num_tokens = counts_N.sum().clamp(min=1)
    choices_E = counts_N.new_zeros(num_experts)  # noqa: N806
    choices_E.scatter_add_(0, chosen_Nk.flatten(), counts_N.repeat_interleave(num_choices))
    mean_E = (probability_NE * counts_N[:, None]).sum(0) / num_tokens  # noqa: N806
    return num_experts * (choices_E / (num_tokens * num_choices) * mean_E).sum()
