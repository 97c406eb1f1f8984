"""A small convolutional network, as a user would bring it."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

SIZE, NUM_LABELS = 16, 3


def build() -> SimpleNamespace:
    """Return what ``task=module`` trains."""
    return SimpleNamespace(model=network(), loss=loss, sample=sample)


def network() -> nn.Module:
    """Two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(32 * (SIZE // 2) ** 2, NUM_LABELS),
    )


def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum the cross-entropies."""
    return functional.cross_entropy(logits, labels, reduction="sum")


def sample(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels."""
    return torch.zeros(batch, 1, SIZE, SIZE), torch.zeros(batch, dtype=torch.int64)
