"""Recurrent layers on the pretend GPU: which code the imitated device would run them by.

On CUDA cuDNN runs a layer stack in one call (``recurrent_cudnn``), or PyTorch step by step with
fused cells where cuDNN cannot; on a CPU oneDNN runs an LSTM, and everything else is made of
operations (``recurrent_cells``). Packed sequences are cut by the lengths that are known.

Source: ``lstm``, ``gru``, ``use_cudnn``, ``use_mkldnn`` in ``aten/src/ATen/native/RNN.cpp``;
``aten/src/ATen/native/PackedSequence.cpp``.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from brimful.pretend import cpu_recurrent, kernels, recurrent_cells, recurrent_cudnn
from brimful.pretend.libraries import library
from brimful.pretend.recurrent_cells import GRU, LSTM, RELU, TANH, Hidden, Layers

_aten = torch.ops.aten
_WRITTEN_OUT = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001
_KEYS = ("AutogradPrivateUse1", "PrivateUse1")
_PACK = _aten._pack_padded_sequence.default  # noqa: SLF001


def register() -> None:
    """Install them for the pretend GPU."""
    for key in _KEYS:
        own = library(key)
        for kind in (LSTM, GRU, TANH, RELU):
            own.impl(f"{kind}.input", _full(kind))
            own.impl(f"{kind}.data", _packed(kind))
            own.impl(f"{kind}_cell", _cell(kind))
        own.impl("_pack_padded_sequence_backward", _unpacked_gradient)
        own.impl("_pad_packed_sequence", _padded)
    shapes = library("Meta")
    shapes.impl("mkldnn_rnn_layer", _onednn_shapes, allow_override=True)
    shapes.impl("mkldnn_rnn_layer_backward", _onednn_backward_shapes, allow_override=True)
    recurrent_cudnn.register()


def _full(kind: str) -> Callable[..., Any]:
    op = getattr(_aten, kind).input

    def layers(  # noqa: PLR0913, PLR0917 - the signature is PyTorch's
        x: torch.Tensor,
        hx: Any,
        params: list[torch.Tensor],
        has_biases: bool,  # noqa: FBT001
        num_layers: int,
        dropout: float,
        train: bool,  # noqa: FBT001
        bidirectional: bool,  # noqa: FBT001
        batch_first: bool,  # noqa: FBT001
    ) -> Any:
        hidden = _hidden(hx)
        if kernels.current() == "cuda":
            if not recurrent_cudnn.takes(x):
                args = (x, hx, params, has_biases, num_layers, dropout, train, bidirectional)
                return op._op_dk(_WRITTEN_OUT, *args, batch_first)  # noqa: SLF001
            stack = _stack(kind, hidden, params, has_biases, num_layers, dropout, bidirectional)
            return recurrent_cudnn.run(stack, x, hidden, params, (), train, batch_first)
        stack = _stack(
            kind, hidden, params, has_biases, num_layers, dropout if train else 0, bidirectional
        )
        inputs = x.transpose(0, 1) if batch_first else x
        if _uses_onednn(stack, x, hidden):
            out, last = recurrent_cells.run_onednn(stack, inputs, hidden, train=train)
        else:
            out, last = recurrent_cells.run(stack, inputs, hidden, None)
        return (out.transpose(0, 1) if batch_first else out, *last)

    return layers


def _packed(kind: str) -> Callable[..., Any]:
    def layers(  # noqa: PLR0913, PLR0917 - the signature is PyTorch's
        x: torch.Tensor,
        batch_sizes: torch.Tensor,
        hx: Any,
        params: list[torch.Tensor],
        has_biases: bool,  # noqa: FBT001
        num_layers: int,
        dropout: float,
        train: bool,  # noqa: FBT001
        bidirectional: bool,  # noqa: FBT001
    ) -> Any:
        hidden, sizes = _hidden(hx), batch_sizes.tolist()
        if kernels.current() == "cuda" and recurrent_cudnn.takes(x):
            stack = _stack(kind, hidden, params, has_biases, num_layers, dropout, bidirectional)
            return recurrent_cudnn.run(stack, x, hidden, params, sizes, train, False)
        stack = _stack(
            kind, hidden, params, has_biases, num_layers, dropout if train else 0, bidirectional
        )
        out, last = recurrent_cells.run(stack, x, hidden, sizes)
        return (out, *last)

    return layers


def _cell(kind: str) -> Callable[..., Any]:
    op = getattr(_aten, f"{kind}_cell").default

    def cell(  # noqa: PLR0913, PLR0917 - the signature is PyTorch's
        x: torch.Tensor,
        hx: Any,
        ih: torch.Tensor,
        hh: torch.Tensor,
        bias_ih: torch.Tensor | None = None,
        bias_hh: torch.Tensor | None = None,
    ) -> Any:
        if kernels.current() == "cuda":
            return op._op_dk(_WRITTEN_OUT, x, hx, ih, hh, bias_ih, bias_hh)  # noqa: SLF001
        weights = recurrent_cells.Weights(ih, hh, bias_ih, bias_hh, None)
        out = recurrent_cells.CELLS[kind](x, _hidden(hx), weights, is_ready=False)
        return out if kind == LSTM else out[0]

    return cell


def _hidden(hx: Any) -> Hidden:
    return (hx,) if isinstance(hx, torch.Tensor) else tuple(hx)


def _stack(  # noqa: PLR0913, PLR0917 - what a call says of its layers
    kind: str,
    hidden: Hidden,
    params: list[torch.Tensor],
    has_biases: bool,  # noqa: FBT001
    num_layers: int,
    dropout: float,
    bidirectional: bool,  # noqa: FBT001
) -> Layers:
    projects = hidden[0].shape[2] != hidden[-1].shape[2]
    weights = recurrent_cells.gathered(params, biases=has_biases, projects=projects)
    return Layers(kind, weights, num_layers, dropout, bidirectional)


def _uses_onednn(stack: Layers, x: torch.Tensor, hidden: Hidden) -> bool:
    """``use_mkldnn``, of an LSTM without projections."""
    if stack.kind != LSTM or hidden[0].shape[2] != hidden[1].shape[2]:
        return False
    if not torch._C._get_mkldnn_enabled() or not x.numel():  # noqa: SLF001
        return False
    if x.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    if x.dtype == torch.float16:
        is_supported: bool = torch.ops.mkldnn._is_mkldnn_fp16_supported()  # noqa: SLF001
        return is_supported and not torch.is_grad_enabled()
    return bool(x.dtype == torch.float32)


# -- packed sequences --


def parts_of(func: Any) -> Any:
    """Return what runs the parts of packing, which a tape is to see; None: no such operation."""
    return _pack if func is _PACK else None


def _pack(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:  # noqa: FBT001
    """``_pack_padded_sequence``; ``NotImplemented`` where nobody knows the lengths."""
    known = _values(lengths)
    if known is None:
        return NotImplemented
    rows = x.transpose(0, 1) if batch_first else x
    shortest_first = known[::-1]
    parts, sizes, start = [], [], 0
    for place, length in enumerate(shortest_first):
        if length > start:
            count = len(known) - place
            part = rows[start:length, :count].contiguous()
            parts.append(part.view(-1, *rows.shape[2:]))
            sizes += [count] * (length - start)
            start = length
    del part
    return torch.cat(parts), torch.tensor(sizes, dtype=torch.int64)


def _values(x: torch.Tensor) -> list[int] | None:
    twin = getattr(x, "_brimful_twin", None)
    return None if twin is None else [int(value) for value in x.tolist()]


def _unpacked_gradient(
    grad: torch.Tensor,
    input_size: Sequence[int],
    batch_sizes: torch.Tensor,
    batch_first: bool,  # noqa: FBT001
) -> torch.Tensor:
    """``_pack_padded_sequence_backward``."""
    # PyTorch transposes at the end, so the size is of the input as it was packed.
    shape = list(input_size)
    if batch_first:
        shape[0], shape[1] = shape[1], shape[0]
    out, offset = torch.zeros(shape, dtype=grad.dtype, device=grad.device), 0
    for step, count in enumerate(batch_sizes.tolist()):
        out[step, :count].copy_(grad[offset : offset + count])
        offset += count
    return out.transpose(0, 1) if batch_first else out


def _padded(
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    batch_first: bool,  # noqa: FBT001
    padding_value: float,
    total_length: int = -1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``_pad_packed_sequence``."""
    sizes = batch_sizes.tolist()
    shape = (max(total_length, len(sizes)), sizes[0], *data.shape[1:])
    out = torch.full(shape, padding_value, dtype=data.dtype, device=data.device)
    offset = start = 0
    for stop, (count, following) in enumerate(pairwise([*sizes, 0]), start=1):
        if count != following:
            rows = count * (stop - start)
            part = data[offset : offset + rows].view(stop - start, count, *data.shape[1:])
            out[start:stop, :count].copy_(part)
            offset, start = offset + rows, stop
    lengths = torch.tensor([sum(size > place for size in sizes) for place in range(sizes[0])])
    return (out.transpose(0, 1) if batch_first else out), lengths


# -- shapes of oneDNN's kernels --


def _onednn_shapes(x: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    """``mkldnn_rnn_layer``; PyTorch's own shapes have no workspace."""
    h, c, hidden_size = args[4], args[5], args[9]
    out = x.new_empty((x.shape[0], x.shape[1], hidden_size))
    keeps = torch.is_grad_enabled()
    num_bytes = cpu_recurrent.workspace_bytes(x, hidden_size) if keeps else 0
    workspace = x.new_empty((num_bytes,), dtype=torch.uint8)
    return out, torch.empty_like(h), torch.empty_like(c), workspace


def _onednn_backward_shapes(x: torch.Tensor, *args: Any) -> tuple[torch.Tensor | None, ...]:
    """``mkldnn_rnn_layer_backward``: gradients in fp32, that of the bias twice."""
    weights, hidden, gradients = args[:2], args[4:6], args[9:12]
    if all(gradient is None for gradient in gradients):
        return (None,) * 7
    dx, dih, dhh, dh, dc = (
        z.new_empty(z.shape, dtype=torch.float32) for z in (x, *weights, *hidden)
    )
    biases = (x.new_empty((weights[0].shape[0],), dtype=torch.float32) for _ in range(2))
    return dx, dih, dhh, *biases, dh, dc
