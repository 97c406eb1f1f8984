"""Operations that PyTorch makes of others on some devices and has one kernel for on others.

Dropout and the RMS norm are one kernel on CUDA and several operations on a CPU. For a few
operations that CUDA does have, PyTorch knows no shapes without running them; those are said here.
"""

import functools
import sys
from typing import Any

import torch
from torch import _meta_registrations as shapes_known

from brimful.pretend import ctc, kernels
from brimful.pretend.libraries import library

_aten = torch.ops.aten
_WRITTEN_OUT = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001
_BAGS = "meta_embedding_bag"
_GRU_SAVES, _GRU_GATES = 5, 3
"""Tensors as large as the hidden state that a GRU cell keeps for backward; its gates."""


def register() -> None:
    """Install them for the pretend GPU."""
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        library(key).impl("dropout", dropout)
        library(key).impl("rms_norm", rms_norm)
        library(key).impl("ctc_loss.Tensor", ctc_loss)
    library("PrivateUse1").impl("_fused_rms_norm", _never_runs)
    shapes = library("Meta")
    for name in ("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_"):
        shapes.impl(name, _in_place)
    shapes.impl("_thnn_fused_gru_cell", _gru_cell)
    shapes.impl("_thnn_fused_gru_cell_backward", _gru_cell_backward)
    for name in ("_ctc_loss_backward", "_ctc_loss_backward.Tensor"):
        shapes.impl(name, ctc.gradient)
    _know_wide_addmm(shapes)
    shapes_known.device_hint = _device_hint(shapes_known.device_hint)
    shapes_known._meta_grouped_mm_common = _grouped_mm(shapes_known._meta_grouped_mm_common)  # noqa: SLF001


def _know_wide_addmm(shapes: torch.library.Library) -> None:
    """Give ``addmm`` with a wider result shapes, where PyTorch takes its type for a factor.

    Before 2.13 the decomposition of ``addmm`` stands for those overloads too.
    """
    table = torch._decomp.decomposition_table  # noqa: SLF001
    for overload, made in ((_aten.addmm.dtype, _wide_addmm), (_aten.addmm.dtype_out, _into)):
        if getattr(table.get(overload), "__name__", "") == "addmm":
            del table[overload]
            name = f"addmm.{overload._overloadname}"  # noqa: SLF001
            shapes.impl(name, made, allow_override=True)


def _wide_addmm(
    _x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, dtype: torch.dtype, **_: object
) -> torch.Tensor:
    return rows.new_empty((rows.shape[0], columns.shape[1]), dtype=dtype)


def _into(*_args: object, out: torch.Tensor, **_: object) -> torch.Tensor:
    return out


def ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    *options: int,
) -> torch.Tensor:
    """Return the loss of texts whose lengths may stand on the host, where most programs have them.

    Source: ``ctc_loss`` and ``get_clamped_target_length`` in ``aten/src/ATen/native/LossCTC.cpp``,
    which make a tensor of the losses' own device of them, wherever they stand.

    ``options``: the blank's number, the reduction, and whether infinities are zeros.
    """
    lengths = (each.to(log_probs.device) for each in (input_lengths, target_lengths))
    out: torch.Tensor = _aten.ctc_loss.Tensor._op_dk(  # noqa: SLF001
        _WRITTEN_OUT, log_probs, targets, *lengths, *options
    )
    return out


def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:  # noqa: FBT001 - PyTorch's
    """Drop elements as the imitated device would; see torch's function of this name.

    A CPU keeps what it multiplied by, in the type of ``x``; CUDA keeps a mask of booleans.

    ``train``: whether anything is dropped at all.

    Source: ``dropout`` and ``_dropout_impl`` in ``aten/src/ATen/native/Dropout.cpp``.
    """
    if kernels.current() == "cuda" or not train or p in {0, 1} or not x.numel():
        out: torch.Tensor = _aten.dropout.default._op_dk(_WRITTEN_OUT, x, p, train)  # noqa: SLF001
        return out
    return dropped(x, p)


def _by_noise(x: torch.Tensor, p: float) -> torch.Tensor:
    noise = torch.empty_like(x).bernoulli_(1 - p)
    return x * noise.div_(1 - p)


def dropped_in_graph(x: torch.Tensor, p: float) -> torch.Tensor:
    """Drop elements as a compiler captures it, on any device.

    Source: ``dropout`` in ``torch/_decomp/decompositions.py``.
    """
    out: torch.Tensor = _aten.native_dropout(x, p, True)[0]
    return out


dropped = _by_noise
"""What a CPU's dropout is made of; ``dropped_in_graph`` while a compiler is at work."""


def rms_norm(
    x: torch.Tensor,
    normalized_shape: list[int],
    weight: torch.Tensor | None = None,
    eps: float | None = None,
) -> torch.Tensor:
    """Normalise as the imitated device would; see torch's function of this name.

    ``x``: [..., *normalized_shape]. ``weight``: [*normalized_shape], or None. ``eps``: added to the
    mean of squares; None for the smallest step of the type.

    Source: ``rms_norm_symint`` and ``rms_norm_composite`` in

    ``aten/src/ATen/native/layer_norm.cpp``; ``_fused_rms_norm`` has no kernel for the CPU.
    """
    args = (x, normalized_shape, weight, eps)
    if kernels.current() == "cuda":
        out: torch.Tensor = _aten.rms_norm.default._op_dk(_WRITTEN_OUT, *args)  # noqa: SLF001
        return out
    return _aten._fused_rms_norm.default._op_dk(_WRITTEN_OUT, *args)[0]  # noqa: SLF001


def _in_place(*_args: Any, **_kwargs: Any) -> None:
    """Change tensors and return nothing."""


def _gru_cell(
    input_gates: torch.Tensor,
    _hidden_gates: torch.Tensor,
    hx: torch.Tensor,
    _input_bias: torch.Tensor | None = None,
    _hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_thnn_fused_gru_cell_cuda`` in ``aten/src/ATen/native/cuda/RNN.cu``."""
    saved = input_gates.new_empty((hx.shape[0], hx.shape[1] * _GRU_SAVES))
    return torch.empty_like(hx), saved


def _gru_cell_backward(
    grad: torch.Tensor,
    workspace: torch.Tensor,
    has_bias: bool,  # noqa: FBT001 - PyTorch's
) -> tuple[torch.Tensor | None, ...]:
    """``_thnn_fused_gru_cell_backward_cuda`` in ``aten/src/ATen/native/cuda/RNN.cu``."""
    rows, width = grad.shape[0], grad.shape[1] * _GRU_GATES
    gates = [workspace.new_empty((rows, width)) for _ in range(2)]
    biases = [gate.sum(0) if has_bias else None for gate in gates]
    return (*gates, torch.empty_like(grad), *biases)


def _grouped_mm(original: Any) -> Any:
    """Let products of groups be of any type; PyTorch's own shapes are of its bf16 kernel only.

    Source: ``_grouped_mm_fallback`` in ``aten/src/ATen/native/GroupedMMUtils.h``.
    """

    @functools.wraps(original)
    def shape(a: torch.Tensor, b: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("scale_a") is not None or a.dtype == torch.bfloat16 or a.dtype != b.dtype:
            return original(a, b, *args, **kwargs)
        dtype = kwargs.get("out_dtype") or a.dtype
        create = shapes_known._create_grouped_mm_output_tensor  # noqa: SLF001
        return create(a, b, kwargs.get("offs"), dtype)

    return shape


def _device_hint(original: Any) -> Any:
    """Let what bags keep for backward be what they keep on the imitated device.

    Only there: other shapes that ask refuse types that a CPU lacks, and programs choose types by
    the name of the device. Source: ``meta_embedding_bag`` in ``torch/_meta_registrations.py``.
    """

    @functools.wraps(original)
    def hint(tensor: Any) -> Any:
        found = original(tensor)
        asks = sys._getframe(1).f_code.co_name  # noqa: SLF001
        return kernels.current() if found == "gpu" and asks.startswith(_BAGS) else found

    return hint


def _never_runs(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError("the pretend GPU computes nothing; run this under FakeTensorMode")
