"""Which implementation an optimizer picks by itself: the one it would pick for real parameters.

PyTorch works on whole lists of parameters (``foreach``) where they are plain tensors on a device
that is quick at it, and on one after another elsewhere; temporaries differ by the size of a model.
Source: ``_default_to_fused_or_foreach`` in ``torch/optim/optimizer.py``; for ``clip_grad_norm_``
``_has_foreach_support`` in ``torch/utils/_foreach_utils.py``. Each has a list of types of its own.
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

    ``imitate``: whose kernels; a CPU's optimizers take one parameter after another.
    """
    lists = [home._foreach_supported_types for home in (optimizer, _foreach_utils)]  # noqa: SLF001
    original = optimizer._get_foreach_kernels_supported_devices  # noqa: SLF001
    for types in lists:
        types.append(FakeTensor)
    if imitate == "cpu":
        optimizer._get_foreach_kernels_supported_devices = list  # noqa: SLF001
    try:
        yield
    finally:
        optimizer._get_foreach_kernels_supported_devices = original  # noqa: SLF001
        for types in lists:
            types.remove(FakeTensor)
