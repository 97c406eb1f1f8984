"""Modules as users write them, for ``task=module``."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

NUM_CLASSES, CHANNELS, SIZE = 5, 3, 8


def _network(norm):
    return nn.Sequential(
        nn.Conv2d(CHANNELS, 16, 3, padding=1),
        norm,
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, NUM_CLASSES),
    )


def summed(logits, labels):
    return functional.cross_entropy(logits.float(), labels, reduction="sum", ignore_index=-100)


def sample(batch):
    images = torch.zeros(batch, CHANNELS, SIZE, SIZE)
    return images, torch.zeros(batch, dtype=torch.int64)


def cnn():
    return SimpleNamespace(model=_network(nn.GroupNorm(4, 16)), loss=summed, sample=sample)


def weighted_cnn():
    """As ``cnn``, with a loss that holds a tensor and looks at its own model."""
    model = _network(nn.GroupNorm(4, 16))
    weight = torch.arange(1.0, NUM_CLASSES + 1)

    def loss(logits, labels):
        assert next(model.parameters()).device == logits.device
        return functional.cross_entropy(logits, labels, weight=weight, reduction="sum")

    return SimpleNamespace(model=model, loss=loss, sample=sample)


def batch_normed():
    return SimpleNamespace(model=_network(nn.BatchNorm2d(16)), loss=summed, sample=sample)


def large_cnn():
    """As ``cnn``, with pictures and widths whose bytes are worth counting."""
    return _large(nn.GroupNorm(8, 64))


def large_batch_normed():
    return _large(nn.BatchNorm2d(64))


def _large(norm):
    model = nn.Sequential(
        nn.Conv2d(CHANNELS, 64, 3, padding=1),
        nn.GroupNorm(8, 64),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        norm,
        nn.GELU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 16 * 16, NUM_CLASSES),
    )

    def large(batch):
        return torch.zeros(batch, CHANNELS, 32, 32), torch.zeros(batch, dtype=torch.int64)

    return SimpleNamespace(model=model, loss=summed, sample=large, dataset=[1, 2, 3])


def own_weights():
    """Holds a parameter of its own and a tied one, drawn where the user draws them."""
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    model[1].weight = model[0].weight
    model.register_parameter("shift", nn.Parameter(torch.full((1,), 7.0)))
    return SimpleNamespace(model=model, loss=lambda out, labels: (out - labels).sum(), sample=None)


def fails():
    raise RuntimeError("the disk\nof pictures is away")


def without_loss():
    return SimpleNamespace(model=nn.Linear(1, 1), sample=sample)


def no_module():
    return SimpleNamespace(model=[1], loss=summed, sample=sample)


def bad_sample():
    return SimpleNamespace(
        model=nn.Linear(1, 1), loss=summed, sample=lambda _: (torch.zeros(3), torch.zeros(3))
    )


NUMBER = 3


class SquaringNorm(nn.Module):
    """A norm that squares what it is given in its own type."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden):
        variance = hidden.pow(2).mean(-1, keepdim=True)
        return self.weight * (hidden * torch.rsqrt(variance + 1e-6))


def squaring():
    """A classifier of rows that begins with such a norm."""
    layers = {"cast": Narrowed(), "norm": SquaringNorm(8), "head": nn.Linear(8, NUM_CLASSES)}
    model = nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)

    def rows(batch):
        return torch.zeros(batch, 8), torch.zeros(batch, dtype=torch.int64)

    return SimpleNamespace(model=model, loss=summed, sample=rows)


class Narrowed(nn.Module):
    """Hands on what it is given in the type that autocast computes in."""

    def forward(self, hidden):
        if torch.is_autocast_enabled(hidden.device.type):
            return hidden.to(torch.get_autocast_dtype(hidden.device.type))
        return hidden


def perceptron():
    """Three layers, of which the last has as many rows as there are classes."""
    model = nn.Sequential(
        nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 32), nn.GELU(), nn.Linear(32, NUM_CLASSES)
    )

    def rows(batch):
        return torch.zeros(batch, 32), torch.zeros(batch, dtype=torch.int64)

    return SimpleNamespace(model=model, loss=summed, sample=rows)
