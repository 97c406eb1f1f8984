"""Recurrent layers by cuDNN: one call for the whole stack, its weights in one buffer.

``nn.RNNBase`` lays its parameters out one behind the other (``flatten_parameters``); a call finds
them so, or copies them into a buffer of its own. The gradients of weights are views of one buffer
too. What a call keeps for its backward (the *reserve space*) and its workspace have the sizes that
cuDNN answers (``cudnnGetRNNTempSpaceSizes``), which NVIDIA documents no formula for. That of the
reserve space was found by measuring (``reserve_bytes``); that of the workspace was not, so that the
operators are listed as unknown. The buffer holds the weights and both
biases of every layer, whether or not the module has any; what cuDNN may pad it by is unknown too.

Source: ``aten/src/ATen/native/cudnn/RNN.cpp``; ``aten/src/ATen/cudnn/AutocastRNN.cpp``;
``flatten_parameters`` in ``torch/nn/modules/rnn.py``; ``use_cudnn`` in
``aten/src/ATen/native/RNN.cpp``.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from brimful.pretend import autocast, kernels
from brimful.pretend.libraries import library
from brimful.pretend.recurrent_cells import GRU, LSTM, RELU, TANH, Hidden, Layers
from brimful.pretend.replacing import replaced

_aten = torch.ops.aten
_MODES = {RELU: 0, TANH: 1, LSTM: 2, GRU: 3}
"""``cudnnRNNMode_t``."""
_KINDS = {mode: kind for kind, mode in _MODES.items()}
_BF16_SINCE = (8, 0)
"""Capability of ``supportsBFloat16RNNWithCuDNN`` in ``aten/src/ATen/cuda/detail/CUDAHooks.cpp``."""
_TYPES = (torch.float32, torch.float16, torch.float64)
DROPOUT_STATE_BYTES = 2**21
"""Of cuDNN's random numbers for dropout; ``get_dropout_state`` calls it "slightly over 2MB"."""
_KEPT_OF_A_CELL = {RELU: 1, TANH: 1, LSTM: 5, GRU: 6}
"""Values that a cell keeps of a token for each hidden one: of an LSTM four gates and itself."""
_RESERVE_SCRATCH_BYTES = 256
_MASK_ALIGNMENT = 64
_dropout_states: dict[torch.device, torch.Tensor] = {}
_CALL = _aten._cudnn_rnn.default  # noqa: SLF001


def register() -> None:
    """Install the operators' shapes and what autocast makes of them."""
    shapes = library("Meta")
    shapes.impl("_cudnn_rnn", _shapes, allow_override=True)
    shapes.impl("_cudnn_rnn_backward", _backward_shapes)
    shapes.impl("_cudnn_init_dropout_state", _dropout_state_shape)
    own = library("AutocastPrivateUse1")
    own.impl("_cudnn_rnn", _lowered)


def takes(x: torch.Tensor) -> bool:
    """Tell whether cuDNN runs layers over this input: ``use_cudnn``, ``cudnn_is_acceptable``.

    ``x``: the input, or the rows of a packed one.
    """
    if not torch.backends.cudnn.enabled or not x.numel():
        return False
    if x.dtype == torch.bfloat16:
        return kernels.imitated().capability >= _BF16_SINCE
    return x.dtype in _TYPES


def run(  # noqa: PLR0913, PLR0917 - one call of cuDNN
    layers: Layers,
    x: torch.Tensor,
    hidden: Hidden,
    params: list[torch.Tensor],
    sizes: Sequence[int],
    train: bool,  # noqa: FBT001
    batch_first: bool,  # noqa: FBT001
) -> tuple[torch.Tensor, ...]:
    """Run a stack of layers in one call.

    ``x``: [steps, batch, input], or as ``batch_first`` says; packed: [rows, input]. ``hidden``:
    [layers, batch, hidden] each. ``sizes``: how many sequences each step has, packed; else empty.
    ``batch_first``: whether the batch is the first dimension. Returns the output, and the last
    hidden states.
    """
    h, c = hidden if layers.kind == LSTM else (hidden[0], None)
    last = h if c is None else c
    projection = h.shape[2] if h.shape[2] != last.shape[2] else 0
    each = len(params) // len(layers.weights)
    found = _CALL(
        x, params, each, _flat(params, layers), h, c, _MODES[layers.kind], last.shape[2],
        projection, layers.num_layers, batch_first, layers.dropout, train, layers.bidirectional,
        list(sizes), _dropout_state(x.device) if train and layers.dropout else None,
    )  # fmt: skip
    return tuple(found[: 2 if c is None else 3])


def _dropout_state(device: torch.device) -> torch.Tensor:
    """``get_dropout_state``: made once for each device, and never given back."""
    if device not in _dropout_states:
        _dropout_states[device] = _aten._cudnn_init_dropout_state(  # noqa: SLF001
            0.5, True, 0, dtype=torch.uint8, device=device
        )
    return _dropout_states[device]


def _buffer_elements(params: Sequence[torch.Tensor], has_biases: bool) -> int:  # noqa: FBT001
    """Elements of the weights and of both biases, which cuDNN has even where a module has none."""
    own = sum(int(p.numel()) for p in params)
    if has_biases:
        return own
    return own + 2 * sum(int(p.shape[0]) for p in params[:: _each(params)])


def _each(params: Sequence[torch.Tensor]) -> int:
    """Parameters of one layer in one direction, which has no biases: with a projection 3."""
    is_projecting = len(params) % 3 == 0 and params[2].shape[0] == params[1].shape[1]
    return 3 if is_projecting else 2


def _flat(params: Sequence[torch.Tensor], layers: Layers) -> torch.Tensor | None:
    """``try_get_weight_buf``: the parameters as one buffer, if they lie one behind the other."""
    first = params[0]
    has_biases = layers.weights[0].bias_ih is not None
    count = _buffer_elements(params, has_biases)
    storage = first.untyped_storage()
    if storage.nbytes() < count * first.element_size():
        return None
    if any(not _shares(p, storage) for p in params):
        return None
    with torch.no_grad():
        return first.detach().as_strided((count,), (1,), 0)


def _shares(x: torch.Tensor, storage: Any) -> bool:
    return bool(x.untyped_storage()._cdata == storage._cdata)  # noqa: SLF001


# -- one buffer for the parameters of a module --


@contextlib.contextmanager
def flattening() -> Iterator[None]:
    """Let ``nn.RNNBase`` lay its parameters on the pretend GPU out one behind the other.

    What cuDNN keeps for a whole process, it keeps inside the block.
    """
    original = nn.RNNBase.flatten_parameters

    def flatten_parameters(module: Any) -> None:
        params = getattr(module, "_flat_weights", [])
        complete = len(params) == len(getattr(module, "_flat_weights_names", []))
        if not complete or not all(isinstance(p, torch.Tensor) for p in params):
            original(module)
        elif params and _is_pretended(params[0]) and kernels.current() == "cuda":
            _flatten(module, params)
        else:
            original(module)

    _dropout_states.clear()
    try:
        with replaced([(nn.RNNBase, "flatten_parameters", flatten_parameters)]):
            yield
    finally:
        _dropout_states.clear()


def _is_pretended(x: torch.Tensor) -> bool:
    """Whether it lies on the pretend GPU, whatever its program calls that."""
    return isinstance(x, FakeTensor) and x.fake_device.type == "gpu"


def _flatten(module: Any, params: list[torch.Tensor]) -> None:
    """``flatten_parameters`` and ``_cudnn_rnn_flatten_weight``: copy, then point at the copy."""
    first = params[0]
    if not takes(first) or any(p.dtype != first.dtype or p.device != first.device for p in params):
        return
    if len({id(p) for p in params}) != len(params):
        return
    count = _buffer_elements(params, module.bias)
    with torch.no_grad():
        buffer = torch.zeros(count, dtype=first.dtype, device=first.device)
        offset = 0
        for p in params:
            view = buffer.narrow(0, offset, p.numel()).view(p.shape)
            view.copy_(p)
            p.set_(view)
            offset += p.numel()


# -- under autocast --


def _lowered(  # noqa: PLR0913, PLR0917 - the signature is PyTorch's
    x: torch.Tensor, weight: Any, stride: int, buffer: Any, h: Any, c: Any, *how: Any
) -> Any:
    """``_cudnn_rnn_cast_reflatten``: weights in the lower type, in a buffer of their own."""
    dtype = torch.get_autocast_dtype("gpu")
    with autocast.excluded():
        cast = [autocast.cast(z, dtype) for z in (x, h, c)]
        if weight[0].dtype != dtype and autocast.is_eligible(weight[0]):
            biased = stride in {4, 5}
            count = _buffer_elements(weight, biased)
            buffer = torch.zeros(count, dtype=dtype, device=x.device)
            weight = _copied(weight, buffer)
        return _CALL(cast[0], weight, stride, buffer, cast[1], cast[2], *how)


def _copied(weight: Sequence[torch.Tensor], buffer: torch.Tensor) -> list[torch.Tensor]:
    views, offset = [], 0
    for p in weight:
        view = torch.empty(0, dtype=buffer.dtype, device=buffer.device)
        with torch.no_grad():  # no view to autograd, as there
            view.set_(buffer.narrow(0, offset, p.numel()).view(p.shape))
        view.copy_(p)
        views.append(view)
        offset += p.numel()
    return views


# -- shapes --


def _dropout_state_shape(*_args: Any, **how: Any) -> torch.Tensor:
    """``_cudnn_init_dropout_state``."""
    return torch.empty(DROPOUT_STATE_BYTES, dtype=torch.uint8, device=how["device"])


def _shapes(  # noqa: PLR0913, PLR0917 - the signature is PyTorch's
    x: torch.Tensor, weight: Any, stride: int, buffer: Any, h: Any, c: Any, *how: Any
) -> tuple[torch.Tensor, ...]:
    """``_cudnn_rnn``: output, last hidden states, reserve space, the weight buffer."""
    mode, hidden_size, projection, num_layers, batch_first, dropout, train, bidirectional, sizes = (
        how[:9]
    )
    directions = 2 if bidirectional else 1
    width = (projection or hidden_size) * directions
    if sizes:
        out = x.new_empty((x.shape[0], width))
    elif batch_first:
        out = x.new_empty((x.shape[1], x.shape[0], width)).transpose(0, 1)
    else:
        out = x.new_empty((x.shape[0], x.shape[1], width))
    cell = h.new_empty((0,)) if c is None else torch.empty_like(c)
    reserved = 0
    if train:
        tokens = x.shape[0] if sizes else x.shape[0] * x.shape[1]
        kept = _KEPT_OF_A_CELL[_KINDS[mode]] * hidden_size * directions * num_layers
        reserved = reserve_bytes(
            tokens, kept, width * (num_layers - 1), x.element_size(), has_masks=dropout > 0
        )
    reserve = x.new_empty((reserved,), dtype=torch.uint8)
    if buffer is None:
        buffer = x.new_empty((_buffer_elements(weight, stride in {4, 5}),))
    return out, torch.empty_like(h), cell, reserve, buffer


def reserve_bytes(tokens: int, kept: int, between: int, element: int, *, has_masks: bool) -> int:
    """Return the reserve space: what cells keep, what layers hand on, and masks of dropout.

    To the byte in 48 calls of cuDNN 9.19 on an H200: LSTM, GRU and plain cells of 1 to 3 layers, in
    one direction and both, fp32 and bf16 (validation/gpu/kernels-nvidia-h200-2026-11.jsonl).

    ``between``: values that all layers but the last hand on of a token. ``element``: bytes of a
    value. ``has_masks``: whether what layers hand on is dropped out; a mask has a bit for each
    value.
    """
    masks = -(-tokens * between // 8 // _MASK_ALIGNMENT) * _MASK_ALIGNMENT if has_masks else 0
    return tokens * (kept + between) * element + masks + _RESERVE_SCRATCH_BYTES


def _backward_shapes(
    x: torch.Tensor, weight: Any, _stride: int, buffer: Any, h: Any, c: Any, _out: Any, *rest: Any
) -> tuple[Any, ...]:
    """``_cudnn_rnn_backward``: gradients of weights are views of one buffer."""
    wants_weights = rest[-1][3]
    if all(gradient is None for gradient in rest[:3]):
        return None, None, None, [None] * len(weight)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    dc = None if c is None else torch.empty_like(c)
    gradients: list[torch.Tensor] = []
    if wants_weights:
        made, offset, gradients = torch.empty_like(buffer), 0, []
        for p in weight:
            gradients.append(made.narrow(0, offset, p.numel()).view(p.shape))
            offset += p.numel()
    return dx, torch.empty_like(h), dc, gradients
