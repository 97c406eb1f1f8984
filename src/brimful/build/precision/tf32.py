"""How fp32 products are computed on CUDA: in full (IEEE), or with TF32's 10 bits of mantissa.

PyTorch's switches are of the process. They are set for each micro-batch and put back after it, so
that two programs of one process do not disturb one another. Left alone, PyTorch multiplies
matrices in full but lets cuDNN's convolutions and recurrent layers take TF32: the fp32 recipe
would not be fp32 for those, so it sets them too. On a CPU both recipes compute the same.
"""

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch

_LEGACY = {"tf32": "high", "bf16": "medium"}
"""Names of ``set_float32_matmul_precision``; everything else is its ``highest``."""


@contextlib.contextmanager
def fp32_products(precision: Literal["ieee", "tf32"]) -> Iterator[None]:
    """Compute fp32 products of CUDA as ``precision`` says inside the block.

    The old switch (``set_float32_matmul_precision``) is moved with the new ones, since torch
    refuses to read either where they disagree, and ``torch.compile`` reads the old one.

    Source: ``Context::float32MatmulPrecision`` in ``aten/src/ATen/Context.cpp``.
    """
    before = _read()
    _write(matmul=precision, convolution=precision, recurrent=precision, host=before[3])
    try:
        yield
    finally:
        matmul, convolution, recurrent, host = before
        _write(matmul=matmul, convolution=convolution, recurrent=recurrent, host=host)


def _read() -> tuple[str, str, str, str]:
    backends = torch.backends
    return (
        backends.cuda.matmul.fp32_precision,
        backends.cudnn.conv.fp32_precision,
        backends.cudnn.rnn.fp32_precision,
        backends.mkldnn.matmul.fp32_precision,
    )


def _write(*, matmul: str, convolution: str, recurrent: str, host: str) -> None:
    backends = torch.backends
    torch.set_float32_matmul_precision(_LEGACY.get(matmul, "highest"))
    backends.cuda.matmul.fp32_precision = matmul
    backends.cudnn.conv.fp32_precision = convolution
    backends.cudnn.rnn.fp32_precision = recurrent
    backends.mkldnn.matmul.fp32_precision = host  # the old switch moves the CPU's as well
