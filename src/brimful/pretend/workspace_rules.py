"""What all other kernels allocate for themselves; each rule is named by a row of the table."""

import torch

from brimful.pretend import kernels
from brimful.pretend.workspace_attention import (
    cudnn_backward,
    cudnn_forward,
    efficient_backward,
    efficient_forward,
    flash_backward,
    flash_forward,
    sdpa_flash_backward,
    sdpa_flash_forward,
)
from brimful.pretend.workspace_call import (
    FLOAT_BYTES,
    MEASURED,
    Call,
    Rule,
    Workspaces,
    ceil_div,
    copied,
    is_deterministic,
    round_up,
    size,
)
from brimful.pretend.workspace_copies import chunk_cat, split_copy
from brimful.pretend.workspace_indexing import (
    counted,
    histogram,
    index_put,
    masked_scatter,
    scan,
    small_topk,
    sorted_rows,
)
from brimful.pretend.workspace_reductions import (
    extremes,
    indexed_extremes,
    maxima,
    moments,
    partial_sums,
    sums,
)

_LOW = (torch.float16, torch.bfloat16)
CHUNK = 65536
"""Elements that a block of a multi-tensor kernel takes (``kChunkSize``)."""
EMBEDDING_SMALL = 3072
"""Indices up to which the backward of an embedding does not sort them."""
EMBEDDING_ROWS = 10
"""Rows that one thread adds up (``NROWS_PER_THREAD``)."""
NORM_MANY_ROWS = 64 * 1024
NORM_BLOCK = 32
NORM_GRID = 64 * 1024 // 2


def accumulated_bytes(dtype: torch.dtype) -> int:
    """Size of the type that a kernel adds values of ``dtype`` up in."""
    return FLOAT_BYTES if dtype in _LOW else dtype.itemsize


# -- matrix products --


def product(call: Call) -> Workspaces:
    """``mm``, ``addmm``: a copy of a matrix whose strides cuBLAS cannot take."""
    names = ("self", "mat2") if "mat1" not in _names(call) else ("mat1", "mat2")
    return tuple(part for name in names for part in _matrix_copy(call.arg(name)))


def batched_product(call: Call) -> Workspaces:
    """``bmm``, ``baddbmm``: as ``mm``, for every matrix of a batch."""
    names = ("self", "mat2") if "batch1" not in _names(call) else ("batch1", "batch2")
    return tuple(part for name in names for part in _batch_copy(call.arg(name)))


def _names(call: Call) -> set[str]:
    return {argument.name for argument in call.func._schema.arguments}  # noqa: SLF001


def _matrix_copy(x: torch.Tensor) -> Workspaces:
    """``prepare_matrix_for_cublas`` of cuBlasCommonArgs.h."""
    (rows, columns), (by_row, by_column) = x.shape, x.stride()
    dense = x.is_contiguous() or x.t().is_contiguous()
    column_major = by_row == 1 and by_column >= max(1, rows)
    row_major = by_column == 1 and by_row >= max(1, columns)
    if dense or column_major or row_major:
        return ()
    return size(x.numel() * x.element_size(), "contiguous copy of a matrix for cuBLAS")


def _batch_copy(x: torch.Tensor) -> Workspaces:
    """``prepare_batch_matrix_for_cublas`` of Blas.cpp."""
    (_, rows, columns), (_, by_row, by_column) = x.shape, x.stride()
    column_major = by_row == 1 and by_column >= max(1, rows)
    row_major = by_column == 1 and by_row >= max(1, columns)
    dense = x.is_contiguous() and by_row != 0 and by_column != 0
    if column_major or row_major or dense:
        return ()
    return size(x.numel() * x.element_size(), "contiguous copy of matrices for cuBLAS")


GROUP_BYTES = 60
"""Pointers, problem size and strides of a group, on the card."""
CUTLASS_BYTES, _MULTIPROCESSORS = 67584, 132
"""Of CUTLASS's workspace on a card of capability 9.0 with so many multiprocessors."""


def grouped_product(call: Call) -> Workspaces | None:
    """``_grouped_mm``: what tells CUTLASS's kernel of its groups, and its workspace."""
    left = call.arg("self")
    is_measured = kernels.imitated().chip.num_multiprocessors == _MULTIPROCESSORS
    if call.capability != MEASURED or not is_measured or left.dtype != torch.bfloat16:
        return None
    ends = call.arg("offs")
    groups = left.shape[0] if ends is None else ends.numel()
    return (
        *size(GROUP_BYTES * groups, "pointers, sizes and strides of the groups"),
        *size(CUTLASS_BYTES, "CUTLASS's workspace"),
    )


def eight_bit_product(call: Call) -> Workspaces | None:
    """``_scaled_mm``, ``_int_mm``: nothing, where that was measured."""
    return () if call.capability == MEASURED else None


CHANNELS = 8
"""cuDNN's kernels take multiples of it."""
COPIES = 3
"""Of inputs, weights and results that a convolution is taken to need at most."""
_MEASURED_TYPES = (torch.float32, torch.bfloat16)


def convolution(call: Call) -> Workspaces | None:
    """``convolution`` and its backward: the most that cuDNN's algorithm may take."""
    x = call.arg("input")
    is_plain = x.dim() in {3, 4} and x.dtype in _MEASURED_TYPES and not call.arg("transposed")
    is_dilated = any(step != 1 for step in call.arg("dilation"))
    searches = torch.backends.cudnn.benchmark or is_deterministic()
    if call.capability != MEASURED or not is_plain or is_dilated or searches:
        return None
    given = call.arg("grad_output") if "grad_output" in _names(call) else call.out
    num_bytes = sum(map(_padded_bytes, (x, call.arg("weight"), given)))
    return size(COPIES * num_bytes, "copies in another layout, at most")


def _padded_bytes(x: torch.Tensor) -> int:
    """Bytes of a tensor whose second dimension is rounded up to whole groups of channels."""
    channels = int(x.shape[1])
    return int(x.numel()) // max(channels, 1) * round_up(channels, CHANNELS) * int(x.element_size())


# -- softmax and losses --


def softmax(call: Call) -> Workspaces:
    """``_softmax``, ``_log_softmax``: a contiguous input."""
    return copied(call.arg("self"), "contiguous copy of the input")


def log_softmax_backward(call: Call) -> Workspaces:
    """``_log_softmax_backward_data``: contiguous inputs."""
    return (
        *copied(call.arg("grad_output"), "contiguous copy of the gradient"),
        *copied(call.arg("output"), "contiguous copy of the output"),
    )


def softmax_backward(call: Call) -> Workspaces:
    """``_softmax_backward_data``: the gradient times the output, as large as either."""
    grad, output = call.arg("grad_output"), call.arg("output")
    times = torch.result_type(grad, output).itemsize * output.numel()
    return (
        *size(times, "gradient times output"),
        *copied(output, "contiguous copy of the output"),
    )


def safe_softmax(call: Call) -> Workspaces:
    """``_safe_softmax``: the mask of what was minus infinity, its rows, and a zero."""
    x, dim = call.arg("self"), call.arg("dim")
    return (
        *size(x.numel(), "mask of minus infinity"),
        *size(x.numel() // max(x.shape[dim], 1), "fully masked rows"),
        *size(call.out.element_size(), "zero"),
    )


LONG_BYTES, CTC_LENGTHS = 8, 3
"""Of an integer; and lengths of inputs, of targets and where these begin, of every text."""


def ctc(call: Call) -> Workspaces:
    """``_ctc_loss``: what tells its kernel of lengths."""
    return size(CTC_LENGTHS * LONG_BYTES * call.arg("log_probs").shape[1], "lengths of the texts")


def ctc_backward(call: Call) -> Workspaces:
    """``_ctc_loss_backward``: the same, and backward probabilities as large as the forward ones."""
    log_alpha = call.arg("log_alpha")
    return (*ctc(call), *size(log_alpha.numel() * log_alpha.element_size(), "log_beta"))


def loss(call: Call) -> Workspaces:
    """``nll_loss``: contiguous targets."""
    return copied(call.arg("target"), "contiguous copy of the targets")


def reduced_loss(call: Call) -> Workspaces | None:
    """``mse_loss`` and its like: the loss of every element, which is then reduced."""
    x = call.arg("self")
    if not call.arg("reduction"):
        return ()
    if x.shape != call.arg("target").shape:
        return None
    element, vector = call.out.element_size(), 8 if x.dtype in _LOW else 4
    parts = partial_sums(x, tuple(range(x.dim())), accumulated_bytes(x.dtype), vector)
    return (*size(x.numel() * element, "loss of every element"), *parts)


# -- norms --


def group_norm_forward(call: Call) -> Workspaces:
    """``native_group_norm``: scale and shift of every channel of every row, in fp32."""
    x = call.arg("input")
    if call.arg("HxW") == 1:  # another kernel, without them
        return copied(x, "contiguous copy of the input")
    affine = call.arg("weight") is not None or call.arg("bias") is not None
    per_channel = x.shape[0] * x.shape[1] * accumulated_bytes(x.dtype)
    return (
        *copied(x, "contiguous copy of the input"),
        *size(2 * per_channel if affine else 0, "scale and shift of every channel"),
    )


def group_norm_backward(call: Call) -> Workspaces | None:
    """``native_group_norm_backward``: sums of every channel, and of every group."""
    if call.arg("HxW") == 1:
        return None
    grad, x = call.arg("grad_out"), call.arg("input")
    element, rows, channels = accumulated_bytes(x.dtype), x.shape[0], x.shape[1]
    num_sums = 3 if call.arg("weight") is not None else 2
    return (
        *copied(grad, "contiguous copy of the gradient"),
        *copied(x, "contiguous copy of the input"),
        *size(num_sums * rows * channels * element, "ds, db and c1 of every channel"),
        *size(2 * rows * call.arg("group") * element, "c2 and c3 of every group"),
    )


def batch_norm(call: Call) -> Workspaces | None:
    """``native_batch_norm`` and its backward: channels first, nothing but contiguous copies."""
    x = call.arg("input")
    is_measured = call.capability == MEASURED and x.dtype in _MEASURED_TYPES
    if not is_measured or not x.is_contiguous():
        return None
    grad = next(
        (call.arg(name) for name in ("grad_out", "grad_output") if name in _names(call)), None
    )
    return copied(grad, "contiguous copy of the gradient")


def norm_forward(call: Call) -> Workspaces:
    """``native_layer_norm``, ``_fused_rms_norm``: a contiguous input."""
    return copied(call.arg("input"), "contiguous copy of the input")


def norm_backward(call: Call) -> Workspaces:
    """``native_layer_norm_backward``, ``_fused_rms_norm_backward``: copies, and partial sums.

    Of very many short rows the gradients of weight and bias are first added up by blocks of 32
    rows; a sum of those replaces the tensor that was made for the result.
    """
    grad, x = call.arg("grad_out"), call.arg("input")
    columns = 1
    for length in call.arg("normalized_shape"):
        columns *= int(length)
    copies = (
        *copied(grad, "contiguous copy of the gradient"),
        *copied(x, "contiguous copy of the input"),
    )
    gradients = [g for g in call.out[1:] if g is not None]
    rows = x.numel() // max(columns, 1)
    few = columns // NORM_BLOCK >= kernels.imitated().chip.num_multiprocessors // 2
    if rows <= NORM_MANY_ROWS or few or not gradients:
        return copies
    blocks = min(NORM_GRID // ceil_div(columns, NORM_BLOCK), ceil_div(rows, NORM_BLOCK))
    one = gradients[0].element_size() * columns
    parts = size(blocks * one * len(gradients), "partial gradients of weight and bias")
    return (*copies, *parts, *size(one * len(gradients), "gradients before their partials"))


# -- embeddings --


def embedding_backward(call: Call) -> Workspaces:
    """``embedding_dense_backward``: sorted indices and partial sums of rows in fp32.

    Few indices are added up by one kernel without any of this. What cub takes to sort the indices
    is given back before the partial sums, which are larger, are allocated.
    """
    grad, indices = call.arg("grad_output"), call.arg("indices")
    copies = (
        *copied(indices, "contiguous copy of the indices"),
        *copied(grad, "contiguous copy of the gradient"),
    )
    count, by_frequency = indices.numel(), call.arg("scale_grad_by_freq")
    if count <= EMBEDDING_SMALL and not by_frequency:
        return copies
    segments = min(count, int(call.arg("num_weights")))
    partials = count // EMBEDDING_ROWS + segments
    index = indices.element_size()
    summed = partials * grad.shape[-1] * accumulated_bytes(grad.dtype)
    sorts = 3 * count + 2 * segments + partials + (count if by_frequency else 0)
    return (
        *copies,
        *size(sorts * index, "sorted indices, their places, segments and partial segments"),
        *size(2 * 8, "number of segments and of partial segments"),
        *size(summed, "grad_weight_per_segment, partial sums of rows"),
    )


# -- many tensors at once --


def foreach_norm(call: Call) -> Workspaces:
    """``_foreach_norm``: a norm of every 65,536 elements, as many for each as for the largest."""
    tensors = call.arg("self")
    dtype = call.arg("dtype") or tensors[0].dtype
    return _chunked(tensors, accumulated_bytes(dtype))


def foreach_max(call: Call) -> Workspaces:
    """``_foreach_max``: as ``_foreach_norm``, in the type of the tensors."""
    tensors = call.arg("self")
    return _chunked(tensors, tensors[0].element_size())


def _chunked(tensors: list[torch.Tensor], element: int) -> Workspaces:
    chunks = max(ceil_div(x.numel(), CHUNK) for x in tensors)
    return size(len(tensors) * chunks * element, "output_per_tensor, one value for every chunk")


# -- copies between devices --


def copy(call: Call) -> Workspaces:
    """``copy_``, ``_to_copy``: to or from the host, the layout or type is changed on the way."""
    source = call.arg("src" if "src" in _names(call) else "self")
    target = call.out
    if source.device.type == target.device.type:
        return ()
    if source.dtype == target.dtype and source.is_contiguous() and target.is_contiguous():
        return ()
    staged = size(target.numel() * target.element_size(), "staging of a copy between devices")
    if source.device.type != "cpu":
        return staged
    return () if target.is_contiguous() else staged


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        batch_norm, batched_product, chunk_cat, convolution, copy, counted, ctc, ctc_backward,
        cudnn_backward, cudnn_forward, efficient_backward, efficient_forward, eight_bit_product,
        embedding_backward,
        extremes, flash_backward, flash_forward, foreach_max, foreach_norm, group_norm_backward,
        group_norm_forward, grouped_product, histogram, index_put, indexed_extremes,
        log_softmax_backward, loss, masked_scatter, maxima, moments, norm_backward, norm_forward,
        product, reduced_loss, safe_softmax, scan, sdpa_flash_backward, sdpa_flash_forward,
        small_topk, softmax, softmax_backward, sorted_rows, split_copy, sums,
    )
}  # fmt: skip
