"""A convolutional network with a skip and pools, as a user would bring it; the part has no data."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

SIZE, NUM_LABELS = 32, 10
_WIDTH = 24


class Residual(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """Two convolutions beside a skip."""

    def __init__(self, width: int) -> None:
        """Make both of one width."""
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a map of the same shape."""
        out: torch.Tensor = x + self.second(functional.silu(self.norm(self.first(x))))
        return out


def build() -> SimpleNamespace:
    """Return what ``task=module`` trains."""
    return SimpleNamespace(model=network(), loss=loss, sample=sample)


def network() -> nn.Module:
    """Three halvings of the picture, the last to a single number for each channel."""
    return nn.Sequential(
        nn.Conv2d(3, _WIDTH, 3, padding=1),
        nn.GELU(),
        Residual(_WIDTH),
        nn.MaxPool2d(2),
        nn.Conv2d(_WIDTH, 2 * _WIDTH, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        Residual(2 * _WIDTH),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * _WIDTH, NUM_LABELS),
    )


def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum the cross-entropies."""
    return functional.cross_entropy(logits.float(), labels, reduction="sum")


def sample(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels."""
    return torch.zeros(batch, 3, SIZE, SIZE), torch.zeros(batch, dtype=torch.int64)
