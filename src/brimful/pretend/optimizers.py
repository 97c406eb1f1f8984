"""Which implementation an optimizer picks by itself: the one it would pick for real parameters.

PyTorch works on whole lists of parameters (``foreach``) where they are plain tensors on a device
that is quick at it, and on one after another elsewhere; temporaries differ by the size of a model.
Source: ``_default_to_fused_or_foreach`` in ``torch/optim/optimizer.py``; the same list of types in
``torch/utils/_foreach_utils.py`` decides for ``clip_grad_norm_``.
"""

import contextlib
from collections.abc import Iterator

from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import optimizer
from torch.utils import _foreach_utils

from brimful.pretend import kernels


@contextlib.contextmanager
def picking_as(imitate: kernels.Kernels) -> Iterator[None]:
    """Let optimizers pick as on the imitated device inside the block.

    Args:
        imitate: Whose kernels; a CPU's optimizers take one parameter after another.
    """
    types = _foreach_utils._foreach_supported_types  # noqa: SLF001
    original = optimizer._get_foreach_kernels_supported_devices  # noqa: SLF001
    types.append(FakeTensor)
    if imitate == "cpu":
        optimizer._get_foreach_kernels_supported_devices = list  # noqa: SLF001
    try:
        yield
    finally:
        optimizer._get_foreach_kernels_supported_devices = original  # noqa: SLF001
        types.remove(FakeTensor)
