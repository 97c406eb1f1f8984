"""What a CPU's convolutions hold beside their results: copies in the layouts of oneDNN's kernels.

A kernel takes pictures as PyTorch lays them out, or with channels last, or in blocks of channels,
the last block padded. PyTorch turns what it has into that, and the result back. What is alive at
once is read from ``mkldnn_convolution`` and ``mkldnn_convolution_backward`` in
``aten/src/ATen/native/mkldnn/Conv.cpp``, and ``mkldnn_to_dense`` in ``MKLDNNConversion.cpp`` beside
it. Which kernel has which layout was measured: oneDNN 3.12 said it itself
(``ONEDNN_VERBOSE=profile_exec``) of 300 shapes in fp32, bf16 and fp16, on a CPU with AMX, and of
some more with ``ONEDNN_MAX_CPU_ISA`` of AVX2, AVX-512 and AVX-512-BF16.

``Conv.cpp`` was read; the other files are named from memory, and what is said of them was checked
against the allocations of real calls (``tests/pretend/test_cpu_convolutions.py``).

Not in here: transposed convolutions, those that PyTorch does without oneDNN, CPUs other than x86.
"""

import math
from typing import Any, NamedTuple

import torch
from torch._prims_common import suggest_memory_format

from brimful.pretend.workspace_call import (
    FLOAT_BYTES,
    Call,
    Rule,
    Workspaces,
    ceil_div,
    copied,
    round_up,
    size,
)

_PLAIN, _LAST, _NARROW, _WIDE = 0, 1, 8, 16
"""Layouts: as PyTorch's, channels last, blocks of that many channels."""
_FEW = 3
"""Channels up to which a gradient of weights reads pictures as they are: a picture's own."""
_SMALL_KERNEL = 3
_VOLUMES = 5
"""Dimensions of a batch of volumes."""
_TILE = 32
_WEIGHT_COST = 4
"""How many times dearer than a pixel ``balance`` thinks a weight."""
_WHY = "copies in oneDNN's layouts"
_cpu = torch.cpu


class _Layouts(NamedTuple):
    """Of what is convolved and of the result; of both gradients in a backward pass."""

    x: int
    y: int


class _Convolution(NamedTuple):
    """One call, forward or backward; ``y`` is the result or its gradient."""

    x: torch.Tensor
    y: torch.Tensor
    weight: torch.Tensor
    groups: int
    strides: tuple[int, ...]
    is_pointwise: bool

    @property
    def is_strided(self) -> bool:
        """Whether it skips places."""
        return max(self.strides) > 1

    @property
    def block(self) -> int:
        """Channels in a block of kernels that take blocks."""
        return _WIDE if _cpu._is_avx512_supported() else _NARROW  # noqa: SLF001

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel is convolved by itself."""
        return bool(1 < self.groups == self.x.shape[1] == self.y.shape[1])

    @property
    def has_kernels_of_channels_last(self) -> bool:
        """Whether kernels of this type are products of matrices, which want channels last."""
        if self.x.dtype == torch.bfloat16:
            return bool(_cpu._is_amx_tile_supported())  # noqa: SLF001
        return bool(self.x.dtype == torch.float16)


# -- which layouts --


def _forward(conv: _Convolution) -> _Layouts:
    block = conv.block
    if conv.is_depthwise:
        return _Layouts(_LAST, _LAST) if conv.x.dtype == torch.float16 else _Layouts(block, block)
    if conv.has_kernels_of_channels_last:
        return _Layouts(_LAST, _LAST)
    if conv.groups > 1:
        return _grouped(conv)
    is_flat = conv.x.shape[1] < block and not conv.is_pointwise
    return _Layouts(_PLAIN if is_flat else block, block)


def _backward_data(conv: _Convolution) -> _Layouts:
    block = conv.block
    if conv.is_depthwise:
        is_last = conv.x.dtype == torch.float16 or (
            conv.x.dtype == torch.bfloat16 and conv.is_strided
        )
        return _Layouts(_LAST, _LAST) if is_last else _Layouts(block, block)
    if conv.has_kernels_of_channels_last:
        return _Layouts(_LAST, _LAST)
    if conv.groups > 1:
        return _grouped(conv)
    return _Layouts(_LAST, _LAST) if conv.is_strided else _Layouts(block, block)


def _backward_weights(conv: _Convolution) -> _Layouts:
    block = conv.block
    if conv.x.dtype == torch.float16:
        return _Layouts(_PLAIN, _PLAIN)  # the reference: no kernel knows fp16
    if conv.is_depthwise:
        is_small = not conv.is_strided and max(conv.weight.shape[2:]) <= _SMALL_KERNEL
        return _Layouts(block, block) if is_small else _Layouts(_PLAIN, _PLAIN)
    if conv.has_kernels_of_channels_last:
        return _Layouts(_LAST, _LAST)
    if conv.groups > 1:
        return _grouped(conv)
    return _backward_weights_in_blocks(conv)


def _backward_weights_in_blocks(conv: _Convolution) -> _Layouts:
    channels = conv.x.shape[1]
    if channels >= conv.block or conv.is_pointwise:
        return _Layouts(conv.block, conv.block)
    if channels <= _FEW:
        return _Layouts(_PLAIN, conv.block)
    narrow = _PLAIN if conv.x.dim() == _VOLUMES else _NARROW  # an AVX2 kernel, of pictures only
    return _Layouts(narrow, narrow)


def _grouped(conv: _Convolution) -> _Layouts:
    """Whole blocks in every group, or products of matrices of the layout that is there."""
    are_whole = all(z.shape[1] // conv.groups % conv.block == 0 for z in (conv.x, conv.y))
    return _Layouts(conv.block, conv.block) if are_whole else _Layouts(_PLAIN, _PLAIN)


# -- how many bytes --


def _bytes(x: torch.Tensor | None) -> int:
    return 0 if x is None else int(x.numel() * x.element_size())


def _laid_out(x: torch.Tensor, layout: int) -> int:
    """Bytes of x in a layout."""
    channels = int(x.shape[1])
    return _bytes(x) // channels * round_up(channels, max(layout, 1))


def _is_same(x: torch.Tensor, layout: int) -> bool:
    """Whether PyTorch's layout is that very one: one channel, or one place, has no order."""
    has_no_order: bool = x.shape[1] == 1 or math.prod(x.shape[2:]) == 1
    return layout == _PLAIN or (layout == _LAST and has_no_order)


def _turned(x: torch.Tensor, layout: int) -> int:
    return 0 if _is_same(x, layout) else _laid_out(x, layout)


def _turned_back(x: torch.Tensor, layout: int) -> int:
    """A result in oneDNN's layout, PyTorch's, and of channels last a copy of it between."""
    between = _bytes(x) if layout == _LAST and not _is_same(x, layout) else 0
    return _laid_out(x, layout) + between + _bytes(x)


def _weight_elements(conv: _Convolution, block: int) -> int:
    """Elements of weights in blocks of outputs and, where there is one at all, of inputs."""
    outputs, inputs, *places = map(int, conv.weight.shape)
    padded = inputs if inputs < block and not _is_low(conv) else round_up(inputs, block)
    return round_up(outputs, conv.block) * padded * math.prod(places)


def _turned_block(conv: _Convolution) -> int:
    """Of inputs of the weights that are read: pairs where kernels are products of matrices."""
    return 2 if conv.has_kernels_of_channels_last else conv.block


def _weight_scratch(conv: _Convolution) -> int:
    """What threads add gradients of weights up in, in fp32; of bf16 also a picture, transposed.

    Threads that share out pictures have a sum each; those that share out channels have one. In fp32
    pictures are shared out where these are dearer than weights, as in ``balance`` of oneDNN's
    ``src/cpu/x64/jit_avx512_common_conv_kernel.cpp`` with two threads; in bf16, as was measured,
    what pairs of blocks of inputs leave over, to some tens of kilobytes.
    """
    if conv.x.dtype == torch.float16:
        return 0
    threads, elements = int(torch.get_num_threads()), _weight_elements(conv, conv.block)
    if not _is_low(conv):
        read = conv.x.numel() // math.prod(conv.strides)
        is_dear = min(read, conv.y.numel()) > _WEIGHT_COST * elements
        return (threads - 1) * elements * FLOAT_BYTES if is_dear else 0
    num_shares = threads // math.gcd(threads, ceil_div(conv.x.shape[1], _TILE))
    kernel = tuple(conv.weight.shape[2:])
    pictures = _transposed(conv.x, kernel) + _transposed(conv.y, (1,) * len(kernel))
    return num_shares * (pictures + elements * FLOAT_BYTES)


def _is_low(conv: _Convolution) -> bool:
    return bool(conv.x.dtype == torch.bfloat16)


def _transposed(x: torch.Tensor, kernel: tuple[int, ...]) -> int:
    """A picture in blocks of channels, padded as for a kernel, with rows of whole tiles of AMX."""
    *others, row = (n + k - 1 for n, k in zip(map(int, x.shape[2:]), kernel, strict=True))
    channels, element = round_up(int(x.shape[1]), _WIDE), int(x.element_size())
    return channels * math.prod(others) * round_up(row, _TILE) * element


# -- rules --


def convolution(call: Call) -> Workspaces:
    """``convolution``: what it reads, turned, and its result before and after it is turned back."""
    conv = _read(call, call.out)
    if conv is None:
        return ()
    if _is_channels_last(conv):
        return _copied_last(conv.x, conv.weight)
    layouts = _forward(conv)
    weights = _weight_elements(conv, _turned_block(conv)) * conv.weight.element_size()
    runs = _turned(conv.x, layouts.x) + weights + _laid_out(conv.y, layouts.y)
    most = max(runs, _turned_back(conv.y, layouts.y))
    return (*copied(conv.x, "contiguous copy of the input"), *size(most - _bytes(conv.y), _WHY))


def convolution_backward(call: Call) -> Workspaces:
    """``convolution_backward``: the same for the gradient of the input, then for the weights'."""
    conv = _read(call, call.arg("grad_output"))
    if conv is None:
        return ()
    if _is_channels_last(conv):
        return _copied_last(conv.x, conv.y, conv.weight)
    element = conv.weight.element_size()
    weights = _weight_elements(conv, _turned_block(conv)) * element
    stages = [0]
    if call.out[0] is not None:
        data = _backward_data(conv)
        stages.append(_turned(conv.y, data.y) + weights + _laid_out(conv.x, data.x))
        stages.append(_turned_back(conv.x, data.x))
    if call.out[1] is not None:
        read = _backward_weights(conv)
        held = _bytes(call.out[0]) + _turned(conv.x, read.x) + _turned(conv.y, read.y)
        made = _weight_elements(conv, _TILE if _is_low(conv) else conv.block) * element
        stages.append(held + made + _weight_scratch(conv))
    copies = (*copied(conv.x, "contiguous copy of the input"),
              *copied(conv.y, "contiguous copy of the gradient"))  # fmt: skip
    return (*copies, *size(max(stages) - sum(map(_bytes, call.out)), _WHY))


def _read(call: Call, y: torch.Tensor) -> _Convolution | None:
    """Return what is convolved; None where it is not oneDNN that does it."""
    x, weight = call.arg("input"), call.arg("weight")
    if call.arg("transposed") or not _takes(x, weight, groups := call.arg("groups")):
        return None
    places = weight.shape[2:]
    is_pointwise = math.prod(places) == 1 and not any(call.arg("padding"))
    return _Convolution(x, y, weight, groups, tuple(call.arg("stride")), is_pointwise)


def _takes(x: torch.Tensor, weight: torch.Tensor, groups: int) -> bool:
    """``use_mkldnn`` in ``aten/src/ATen/native/Convolution.cpp``, on x86."""
    if not torch._C._get_mkldnn_enabled() or not _cpu._is_avx2_supported():  # noqa: SLF001
        return False
    if x.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    if x.dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())  # noqa: SLF001
    is_large = groups > 1 or x.shape[0] > 1 or min(weight.shape[2:]) > _SMALL_KERNEL
    return x.dtype == torch.float32 and (is_large or x.numel() > 20480)  # noqa: PLR2004 - theirs


def _is_channels_last(conv: _Convolution) -> bool:
    """``mkldnn_conv_use_channels_last`` in ``aten/src/ATen/native/ConvUtils.h``."""
    formats = (torch.channels_last, torch.channels_last_3d)
    return any(suggest_memory_format(z) in formats for z in (conv.x, conv.weight))


def _copied_last(*tensors: torch.Tensor) -> Workspaces:
    """Copies with channels last of what is not so already; kernels take these as they are."""
    return tuple(
        part
        for z in tensors
        if not z.is_contiguous(memory_format=_last(z))
        for part in size(_bytes(z), "copy with channels last")
    )


def _last(x: torch.Tensor) -> torch.memory_format:
    return torch.channels_last_3d if x.dim() == _VOLUMES else torch.channels_last


RULES: dict[Any, Rule] = {
    torch.ops.aten.convolution.default: convolution,
    torch.ops.aten.convolution_backward.default: convolution_backward,
}
