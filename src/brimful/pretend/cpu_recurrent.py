"""What oneDNN's LSTM holds on a CPU: its workspace, weights in its layouts, its scratchpad.

A layer in one direction is one call. Its forward keeps a workspace for its backward, which is a
result; weights are copied into the layouts of its kernels, and both passes have a scratchpad.

Source: ``init_conf``, ``set_conf``, ``get_good_ld`` and ``set_offsets`` in oneDNN's
``src/cpu/rnn/rnn_utils.hpp`` and ``rnn_utils.cpp``; ``mkldnn_rnn_layer`` and
``mkldnn_rnn_layer_backward`` in ``aten/src/ATen/native/mkldnn/RNN.cpp``. Layouts of weights and the
constants of scratchpads were measured: the allocations of oneDNN 3.12 for 20 shapes in fp32 and
bf16, of training and of inference, on a CPU with AVX-512-BF16 and without AMX, and are exact there.
Of other CPUs the workspace is known and the rest is not.
"""

from typing import Any, NamedTuple

import torch

from brimful.pretend.workspace_call import FLOAT_BYTES, Call, Rule, Workspaces, round_up, size

_PAGE = 4096
_LINE = 64
_GATES = 4
_BLOCK = 32
"""Channels in a block of the weights of kernels of bf16, and of fp32 without a backward."""
_ALIASED = 256
"""Rows of a multiple of this many elements are moved apart by a cache line."""
_MANY_ROWS = 128
"""Sequences from which the forward in fp32 multiplies step by step, not all at once."""
_CONSTANT = {"training": 568, "inference": 776, "low": 760, "low backward": 1264}
"""Bytes of a scratchpad that no dimension changes."""
_cpu = torch.cpu


class _Layer(NamedTuple):
    """Dimensions of one call."""

    steps: int
    batch: int
    input: int
    hidden: int
    dtype: torch.dtype

    @property
    def element(self) -> int:
        """Bytes of an element."""
        num_bytes: int = self.dtype.itemsize
        return num_bytes

    @property
    def gates(self) -> int:
        """Rows of the weights."""
        return _GATES * self.hidden

    @property
    def widest(self) -> int:
        """The larger of input and hidden size."""
        return max(self.input, self.hidden)


def _shaped(x: torch.Tensor, hidden_size: int) -> _Layer:
    steps, batch, width = map(int, x.shape)
    return _Layer(steps, batch, width, hidden_size, x.dtype)


def _apart(columns: int, element: int) -> int:
    """``get_good_ld``: a row's elements in whole cache lines, and not 256 times any."""
    line = _LINE // element
    padded = round_up(columns, line)
    return padded + line if padded % _ALIASED == 0 else padded


def _pages(num_bytes: int) -> int:
    return round_up(num_bytes, _PAGE)


def workspace_bytes(x: torch.Tensor, hidden_size: int) -> int:
    """Return the workspace that the forward of one layer keeps for its backward, in bytes.

    ``x``: [steps, batch, input].
    """
    layer = _shaped(x, hidden_size)
    rows = layer.steps * layer.batch
    gates = rows * _apart(layer.gates, layer.element) * layer.element
    projected = rows * _apart(layer.hidden, layer.element) * layer.element
    return _pages(gates) + _pages(projected) + _states(layer) + _gradients(layer)


def _state_rows(layer: _Layer) -> int:
    return 2 * (layer.steps + 1) * layer.batch


def _states(layer: _Layer) -> int:
    """Hidden and cell states before the first step and behind every one, of input and output."""
    hidden = _state_rows(layer) * _apart(layer.widest, layer.element) * layer.element
    return _pages(hidden) + _pages(_state_rows(layer) * layer.hidden * layer.element)


def _gradients(layer: _Layer) -> int:
    """The same of gradients, in fp32: of outputs, of hidden and of cell states."""
    hidden = _state_rows(layer) * _apart(layer.widest, FLOAT_BYTES) * FLOAT_BYTES
    return 2 * _pages(hidden) + _pages(_state_rows(layer) * layer.hidden * FLOAT_BYTES)


def _blocked(rows: int, columns: int, layer: _Layer) -> int:
    """Weights with columns in blocks, and in bf16 with rows in pairs."""
    rows = rows if layer.dtype == torch.float32 else round_up(rows, 2)
    return rows * round_up(columns, _BLOCK) * layer.element


def _forward_weights(layer: _Layer, *, train: bool) -> int:
    if train and layer.dtype == torch.float32:
        row = _apart(layer.gates, FLOAT_BYTES) * FLOAT_BYTES
        return (layer.input + layer.hidden) * row
    return _GATES * sum(_blocked(rows, layer.hidden, layer) for rows in (layer.input, layer.hidden))


def _backward_weights(layer: _Layer) -> int:
    """Transposed; in fp32 as they are where rows already have the right length."""
    widths = (layer.input, layer.hidden)
    if layer.dtype != torch.float32:
        return _GATES * sum(_blocked(layer.hidden, width, layer) for width in widths)
    padded = [_apart(width, FLOAT_BYTES) for width in widths]
    turned = [new for new, old in zip(padded, widths, strict=True) if new != old]
    return layer.gates * sum(turned) * FLOAT_BYTES


def _weight_gradients(layer: _Layer) -> int:
    """Gradients of weights and bias in oneDNN's layout, before they are turned back."""
    row = _apart(layer.gates, FLOAT_BYTES) * FLOAT_BYTES
    return (layer.input + layer.hidden) * row + layer.gates * FLOAT_BYTES


def _step_scratch(layer: _Layer, rows: int, element: int) -> int:
    """Gates of so many rows, a step's output, and a page."""
    gates = _pages(rows * _apart(layer.gates, element) * element)
    output = _pages(layer.batch * _apart(layer.hidden, layer.element) * layer.element)
    return gates + output + _PAGE


def _output_gradient(layer: _Layer) -> int:
    return _pages(layer.batch * _apart(layer.hidden, FLOAT_BYTES) * FLOAT_BYTES)


def _forward_scratch(layer: _Layer, *, train: bool) -> int:
    is_low = layer.dtype != torch.float32
    if not train:
        constant = _CONSTANT["low" if is_low else "inference"]
        return _states(layer) + _step_scratch(layer, layer.batch, FLOAT_BYTES) + constant
    is_merged = not is_low and layer.batch < _MANY_ROWS
    rows = layer.batch * layer.steps if is_merged else layer.batch
    constant = _CONSTANT["low" if is_low else "training"]
    return _step_scratch(layer, rows, FLOAT_BYTES) + _output_gradient(layer) + constant


def _backward_scratch(layer: _Layer) -> int:
    if layer.dtype == torch.float32:
        rows = layer.batch * layer.steps
        scratch = _step_scratch(layer, rows, FLOAT_BYTES) + _output_gradient(layer)
        return scratch + _CONSTANT["training"]
    turned = round_up(layer.batch, 2) * (layer.input + layer.hidden + _BLOCK) * layer.element
    scratch = _step_scratch(layer, layer.batch, layer.element) + _output_gradient(layer)
    return scratch + turned + _CONSTANT["low backward"]


def is_measured(dtype: torch.dtype) -> bool:
    """Tell whether this CPU's kernels for a type are those that were measured."""
    if not _cpu._is_avx512_supported():  # noqa: SLF001
        return False
    if dtype != torch.bfloat16:
        return bool(dtype == torch.float32)
    has_amx: bool = _cpu._is_amx_tile_supported()  # noqa: SLF001
    return not has_amx and bool(_cpu._is_avx512_bf16_supported())  # noqa: SLF001


# -- rules --


def lstm(call: Call) -> Workspaces | None:
    """``mkldnn_rnn_layer``: the bias, weights in oneDNN's layout, its scratchpad."""
    layer = _layer(call)
    if not is_measured(layer.dtype):
        return None
    train = torch.is_grad_enabled()
    return (
        *_bias(layer),
        *size(_forward_weights(layer, train=train), "weights in oneDNN's layout"),
        *size(_forward_scratch(layer, train=train), "oneDNN's scratchpad"),
    )


def lstm_backward(call: Call) -> Workspaces | None:
    """``mkldnn_rnn_layer_backward``: gradients it makes itself, weights, their gradients."""
    layer = _layer(call)
    if not is_measured(layer.dtype):
        return None
    return (
        *_bias(layer),
        *_made_gradients(call),
        *size(_backward_weights(layer), "weights in oneDNN's layout"),
        *size(_weight_gradients(layer), "gradients of weights in oneDNN's layout"),
        *size(_backward_scratch(layer) - layer.gates * FLOAT_BYTES, "oneDNN's scratchpad"),
    )


def _layer(call: Call) -> _Layer:
    return _shaped(call.arg("input"), call.arg("hidden_size"))


def _bias(layer: _Layer) -> Workspaces:
    return size(layer.gates * layer.element, "sum of both biases")


def _made_gradients(call: Call) -> Workspaces:
    """Zeros for results that nobody used, and copies in fp32 or of other strides."""
    found: list[Any] = []
    for gradient, like in (("grad_output", "output"), ("grad_hy", "hx_"), ("grad_cy", "cx_tmp")):
        given, shaped = call.arg(gradient), call.arg(like)
        num = int(shaped.numel())
        if given is None or not given.is_contiguous():
            found += size(num * shaped.element_size(), "gradients, contiguous")
        if shaped.dtype != torch.float32:
            found += size(num * FLOAT_BYTES, "gradients in fp32")
    h, c = call.arg("hx_"), call.arg("cx_tmp")
    if h.untyped_storage()._cdata == c.untyped_storage()._cdata:  # noqa: SLF001
        found += size(c.numel() * c.element_size(), "cell states apart from hidden states")
    return tuple(found)


RULES: dict[Any, Rule] = {
    torch.ops.aten.mkldnn_rnn_layer.default: lstm,
    torch.ops.aten.mkldnn_rnn_layer_backward.default: lstm_backward,
}
