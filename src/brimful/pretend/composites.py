"""Operations that PyTorch makes of others on some devices and has one kernel for on others.

Dropout and the RMS norm are one kernel on CUDA and several operations on a CPU. For a few
operations that CUDA does have, PyTorch knows no shapes without running them; those are said here.
"""

from typing import Any

import torch

from brimful.pretend import kernels
from brimful.pretend.libraries import library

_aten = torch.ops.aten
_WRITTEN_OUT = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001


def register() -> None:
    """Install them for the pretend GPU."""
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        library(key).impl("dropout", dropout)
        library(key).impl("rms_norm", rms_norm)
    library("PrivateUse1").impl("_fused_rms_norm", _never_runs)
    shapes = library("Meta")
    for name in ("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_"):
        shapes.impl(name, _in_place)
    shapes.impl("_thnn_fused_gru_cell", _gru_cell)
    shapes.impl("_thnn_fused_gru_cell_backward", _gru_cell_backward)


def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:  # noqa: FBT001
    """Drop elements as the imitated device would; see torch's function of this name.

    A CPU keeps what it multiplied by, in the type of ``x``; CUDA keeps a mask of booleans.
    Source: ``dropout`` and ``_dropout_impl`` in ``aten/src/ATen/native/Dropout.cpp``.

    Args:
        x: Of any shape.
        p: Probability of an element to be dropped.
        train: Whether anything is dropped at all.
    """
    if kernels.current() == "cpu" or not train or p in {0, 1}:
        return _aten.dropout.default._op_dk(_UNFUSED, x, p, train) if False else _dropped(x, p, train=train)  # noqa
    return _aten.native_dropout(x, p, train)[0]  # type: ignore[no-any-return]
