"""The optimizer and the clip: torch's fused AdamW, decay on matrices only."""

from collections.abc import Iterable

import torch
from torch import nn

from brimful.job import Job


def build_optimizer(job: Job, model: nn.Module) -> torch.optim.Optimizer:
    """Make the job's optimizer over every parameter that trains.

    Fused AdamW updates in place with no temporary of the size of a parameter.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": job.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=job.learning_rate, betas=(job.beta1, job.beta2), eps=job.epsilon, fused=True
    )


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> torch.Tensor:
    """Scale the gradients in place so that their global norm is at most ``max_norm``.

    Args:
        parameters: All that train.
        max_norm: The bound; 0 only measures.

    Returns:
        The norm before scaling, a scalar on the device.
    """
    bound = max_norm if max_norm > 0 else float("inf")
    return torch.nn.utils.clip_grad_norm_(parameters, bound)
