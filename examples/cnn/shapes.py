"""A small convolutional network, and pictures of shapes to tell apart, drawn as they are needed."""

from itertools import pairwise
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

SIZE, NUM_SHAPES, NUM_PICTURES = 32, 4, 4096


def build() -> SimpleNamespace:
    """Return what ``brimful`` trains: a model, its loss, a sample, and the data."""
    return SimpleNamespace(model=network(), loss=loss, sample=sample, dataset=Pictures())


def network() -> nn.Module:
    """Four convolutions, each half as wide and twice as deep; group norm, no batch statistics."""
    widths = (1, 16, 32, 64, 128)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(widths[-1] * 2 * 2, NUM_SHAPES))


def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum the cross-entropies; the sum is what makes micro-batches exact."""
    return functional.cross_entropy(logits.float(), labels, reduction="sum")


def sample(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels of the shapes that training will see."""
    return torch.zeros(batch, 1, SIZE, SIZE), torch.zeros(batch, dtype=torch.int64)


class Pictures(torch.utils.data.Dataset):
    """Noisy pictures of a disc, a square, a ring or a cross; the index decides all of it."""

    def __len__(self) -> int:
        return NUM_PICTURES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        random = torch.Generator().manual_seed(index)
        place = torch.rand(2, generator=random) * 12 - 6
        width = 5 + 5 * float(torch.rand((), generator=random))
        steps = torch.arange(SIZE) - SIZE / 2
        y, x = torch.meshgrid(steps - place[0], steps - place[1], indexing="ij")
        far = (x**2 + y**2).sqrt()
        square = torch.maximum(x.abs(), y.abs()) < width
        cross = square & (torch.minimum(x.abs(), y.abs()) < width / 3)
        ring = (far < width) & (far > width / 2)
        shape = (far < width, square, ring, cross)[index % NUM_SHAPES]
        noise = torch.randn(SIZE, SIZE, generator=random)
        return (shape.float() + 0.5 * noise)[None], torch.tensor(index % NUM_SHAPES)
