"""Ranges of a tensor's numbers are boxes of it, which cover them once and in order."""

from math import prod

import pytest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 1, 3), (2, 3, 2)])
def test_boxes_are_the_numbers_of_a_range(shape):
    import torch

    from brimful.train.ranges import boxes

    every = torch.arange(prod(shape)).view(shape)
    for stop in range(prod(shape) + 1):
        for start in range(stop + 1):
            found = list(boxes(shape, start, stop))
            parts = [
                every[tuple(slice(a, a + n) for a, n in zip(*box, strict=True))] for box in found
            ]
            told = [number for part in parts for number in part.flatten().tolist()]
            assert told == list(range(start, stop))
            assert [part.shape for part in parts] == [torch.Size(box.sizes) for box in found]
            assert len(found) <= max(1, 2 * len(shape) - 1)
