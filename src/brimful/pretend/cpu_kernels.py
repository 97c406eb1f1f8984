"""What a few other kernels of a CPU hold beside their results, and of which nobody has looked.

Source: ``_embedding_bag_backward`` and the dense backwards behind it in
``aten/src/ATen/native/EmbeddingBag.cpp``, named from memory; measured
(``tests/pretend/test_cpu_kernels.py``).
"""

from typing import Any

import torch

from brimful.pretend.workspace_call import Call, Rule, Workspaces, copied, size

_aten = torch.ops.aten
_MAX = 2
"""``EmbeddingBagMode::MAX``."""
_INDEX_BYTES = 8
_SORTED = 3
"""Arrays as long as the indices: sorted, their places, their bags."""


def bag_backward(call: Call) -> Workspaces:
    """``_embedding_bag_backward``: sorted indices; of a maximum the bags that are not empty.

    Whether bags are empty is not known; none is taken to be.
    """
    grad = call.arg("grad")
    copy = copied(grad, "contiguous copy of the gradient")
    if call.arg("mode") != _MAX:
        is_kept = call.arg("offset2bag").numel() > 0
        arrays = _SORTED if is_kept else _SORTED + 1
        sorts = arrays * call.arg("indices").numel() * _INDEX_BYTES
        return (*copy, *size(sorts, "sorted indices, their places and bags"))
    rows = size(grad.shape[0] * _INDEX_BYTES, "bags that are not empty")
    indices = size(grad.numel() * _INDEX_BYTES, "places of their maxima")
    return (*copy, *rows, *indices, *size(grad.numel() * grad.element_size(), "their gradients"))


def not_read(_call: Call) -> None:
    """Of a kernel that nobody has looked at."""


RULES: dict[Any, Rule] = {
    _aten._embedding_bag_backward.default: bag_backward,  # noqa: SLF001
    _aten._trilinear.default: not_read,  # noqa: SLF001
}
