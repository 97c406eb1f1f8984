"""What kernels allocate beside their results: the table, the rules, and numbers from PyTorch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from brimful.hardware.cuda_chips import chips
from brimful.hardware.cuda_libraries import libraries
from brimful.hardware.cuda_reductions import Reduction, global_memory, ordered
from brimful.pretend import kernels, workspaces
from brimful.pretend.workspace_attention import num_splits
from brimful.pretend.workspace_data import OUTPUTS_ONLY, UNKNOWN, rows
from brimful.pretend.workspace_rules import RULES

pytestmark = pytest.mark.torch

ATEN = torch.ops.aten
A100, H100 = (8, 0), (9, 0)
MIB = 2**20


def parts(op, *args, out=None, capability=H100, **kwargs):
    """What one call allocates, as {why: bytes}, with shapes of fake tensors."""
    with kernels.imitate("cuda", capability=capability):
        out = op(*args, **kwargs) if out is None else out
        found = workspaces.workspaces(op, args, kwargs, out, capability=capability)
    return {part.why: part.num_bytes for part in found}


def empty(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype)


@pytest.fixture(autouse=True)
def _fake():
    with FakeTensorMode():
        yield


# -- the table --


def test_every_row_names_a_rule_its_source_and_real_operators():
    for row in rows():
        assert row.rule in {OUTPUTS_ONLY, UNKNOWN, *RULES}, row
        assert row.allocates
        assert row.source
        assert all("::" in op for op in row.ops)


def test_every_rule_is_named_by_a_row():
    assert set(RULES) == {row.rule for row in rows()} - {OUTPUTS_ONLY, UNKNOWN}


def test_no_operator_is_named_twice():
    named = [op for row in rows() for op in row.ops]
    assert len(named) == len(set(named))


@pytest.mark.parametrize("row", [row for row in rows() if row.rule in RULES], ids=lambda r: r.rule)
def test_operators_with_a_rule_exist_in_this_torch(row):
    for op in row.ops:
        namespace, _, name = op.partition("::")
        assert hasattr(getattr(torch.ops, namespace), name), op


def test_chips_are_those_of_the_gpus_table():
    assert chips()[H100].num_multiprocessors == 132
    assert chips()[A100].num_multiprocessors == 108
    assert all(chip.threads_per_multiprocessor in {1024, 1536, 2048} for chip in chips().values())


def test_cudnn_is_that_of_the_wheel():
    assert libraries().cudnn_version((2, 10)) == 91002
    assert libraries().cudnn_version((2, 13)) == 92000
    assert libraries().cudnn_version((2, 99)) == 92000


# -- what is known --


@pytest.mark.parametrize(
    "op",
    [
        ATEN.add.Tensor, ATEN.mul_.Tensor, ATEN.gelu_backward.default, ATEN.view.default,
        ATEN.transpose.int, ATEN.mm.default, ATEN.empty.memory_format, ATEN._fused_adamw_.default,
        ATEN._foreach_add_.List, ATEN.native_dropout.default, ATEN.sum.dim_IntList,
    ],
    ids=str,
)  # fmt: skip
def test_what_training_is_made_of_is_known(op):
    assert workspaces.is_known(op)


@pytest.mark.parametrize(
    "op",
    [
        ATEN._scaled_grouped_mm.default, ATEN.nonzero.default, ATEN.linalg_svd.default,
        ATEN._cudnn_attention_backward.default,
    ],
    ids=str,
)  # fmt: skip
def test_what_no_source_tells_is_unknown_and_counted_as_nothing(op):
    assert not workspaces.is_known(op)
    assert workspaces.workspaces(op, (), {}, None, capability=H100) == ()


def test_a_view_is_not_a_write_in_place():
    assert workspaces.is_known(ATEN.alias.default)
    assert not workspaces.is_known(ATEN.sparse_resize_.default)


def test_a_row_gives_the_source():
    row = workspaces.row_of(ATEN._scaled_dot_product_flash_attention_backward.default)
    assert "flash_api.cpp" in row.source
    assert workspaces.row_of(ATEN.add.Tensor) is None


# -- cuBLAS --


def test_cublas_workspaces_are_those_that_pytorch_states(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert workspaces.blas_workspace_bytes(A100) == 8_519_680  # measured on an A100 too
    assert workspaces.blas_workspace_bytes(H100) == 32 * MIB
    assert workspaces.blas_lt_workspace_bytes(H100) == MIB


def test_cublas_workspaces_follow_the_environment(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8:16:2")
    assert workspaces.blas_workspace_bytes(H100) == (4096 * 8 + 16 * 2) * 1024
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert workspaces.blas_lt_workspace_bytes(H100) == 16 * 8 * 1024
    monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1")
    assert workspaces.blas_lt_workspace_bytes(H100) == 0


def test_products_in_place_are_products():
    c, a, b = empty(4, 4), empty(4, 8), empty(8, 4)
    for op, args in ((ATEN.addmm_.default, (c, a, b)), (ATEN.addmm.default, (c, a, b))):
        assert workspaces.uses_blas(op)
        assert not workspaces.uses_blas_lt(op, args)
        assert parts(op, c, empty(4, 16)[:, ::2], b)


def test_a_bias_row_goes_to_cublaslt():
    matrices = (empty(8, 16), empty(16, 32))
    assert workspaces.uses_blas(ATEN.addmm.default)
    assert workspaces.uses_blas_lt(ATEN.addmm.default, (empty(32), *matrices))
    assert not workspaces.uses_blas_lt(ATEN.addmm.default, (empty(8, 32), *matrices))
    assert not workspaces.uses_blas_lt(ATEN.mm.default, matrices)
    assert not workspaces.uses_blas(ATEN.add.Tensor)


def test_cublas_copies_what_is_neither_row_nor_column_major():
    square = empty(64, 64)
    assert parts(ATEN.mm.default, square, square.t()) == {}
    assert parts(ATEN.mm.default, square[:, :32], square[:32]) == {}
    assert parts(ATEN.mm.default, empty(64, 1).expand(64, 64), square) == {
        "contiguous copy of a matrix for cuBLAS": 64 * 64 * 2
    }
    batch = empty(4, 64, 64)
    assert parts(ATEN.bmm.default, batch, batch.transpose(1, 2)) == {}
    wide = empty(4, 64, 1).expand(4, 64, 64)
    assert sum(parts(ATEN.bmm.default, wide, batch).values()) == 4 * 64 * 64 * 2


# -- attention --


def flash_backward(queries, keys, *, heads=8, key_heads=8, head_dim=128):
    q, o, g = (empty(2, queries, heads, head_dim).transpose(1, 2) for _ in range(3))
    k, v = (empty(2, keys, key_heads, head_dim).transpose(1, 2) for _ in range(2))
    sums = empty(2, heads, queries, dtype=torch.float32)
    op = ATEN._scaled_dot_product_flash_attention_backward.default
    seed = torch.empty(2, dtype=torch.int64)
    args = (g, q, k, v, o, sums, None, None, queries, keys, 0.0, True, seed, seed)
    return parts(op, *args, out=(q, k, v))


def test_flash_backward_pads_queries_to_128_and_heads_to_32_or_64():
    assert flash_backward(1000, 1000, head_dim=72) == {
        "softmax_d, fp32 row sums": 2 * 8 * 1024 * 4,
        "dq_accum, fp32": 2 * 1024 * 8 * 96 * 4,
    }
    assert flash_backward(128, 128, head_dim=136)["dq_accum, fp32"] == 2 * 128 * 8 * 192 * 4


def test_flash_backward_makes_dk_and_dv_of_every_query_head_when_they_are_grouped():
    found = flash_backward(256, 512, key_heads=2)
    assert found["dk of every query head"] == found["dv of every query head"] == 2 * 512 * 8 * 256


def test_a_deterministic_flash_backward_keeps_one_dq_for_every_split():
    plain = flash_backward(256, 256)["dq_accum, fp32"]
    torch.use_deterministic_algorithms(True)
    try:
        assert flash_backward(256, 256)["dq_accum, fp32"] == math.ceil(132 / 16) * plain
    finally:
        torch.use_deterministic_algorithms(False)


def test_flash_backward_copies_a_gradient_that_lies_head_by_head():
    q = empty(2, 8, 256, 64)
    sums, seed = empty(2, 8, 256, dtype=torch.float32), torch.empty(2, dtype=torch.int64)
    op = ATEN._scaled_dot_product_flash_attention_backward.default
    args = (q, q, q, q, q, sums, None, None, 256, 256, 0.0, True, seed, seed)
    found = parts(op, *args, out=(q, q, q))
    assert found["contiguous copy of the gradient of the output"] == q.numel() * 2
    assert found["contiguous copy of the output"] == q.numel() * 2


def test_packed_sequences_are_padded_by_128_rows_each():
    q, sums = empty(1000, 8, 64), empty(8, 1000, dtype=torch.float32)
    offsets, seed = torch.empty(6, dtype=torch.int32), torch.empty(2, dtype=torch.int64)
    args = (q, q, q, q, q, sums, offsets, offsets, 300, 300, 0.0, True, seed, seed)
    found = parts(ATEN._flash_attention_backward.default, *args, out=(q, q, q))
    rows_ = 1000 + 128 * 5
    assert found == {
        "softmax_d, fp32 row sums": rows_ * 8 * 4,
        "dq_accum, fp32": rows_ * 8 * 64 * 4,
    }


def test_keys_are_split_only_where_queries_do_not_fill_the_card():
    assert num_splits(48, 108, 64) == 2  # the example in flash_api.cpp
    assert num_splits(100, 108, 64) == 1
    op = ATEN._scaled_dot_product_flash_attention.default
    full, few = empty(4, 32, 2048, 128), empty(1, 2, 64, 128)
    keys = empty(1, 2, 4096, 128)
    assert parts(op, full, full, full, 0.0, True) == {}
    found = parts(op, few, keys, keys, 0.0, False)
    assert found["out_accum of split keys"] == 128 * found["softmax_lse_accum of split keys"]
    assert parts(op, few, keys, keys, 0.5, False) == {}
    by_token = [each.transpose(1, 2).contiguous() for each in (few, keys, keys)]
    direct = ATEN._flash_attention_forward.default
    assert parts(direct, *by_token, None, None, 64, 4096, 0.0, False, False) == found


def test_packed_sequences_split_no_keys():
    """But for those of one token, which are written rather than read."""
    op = ATEN._flash_attention_forward.default
    few, keys, ends = empty(64, 2, 128), empty(4096, 2, 128), torch.empty(2, dtype=torch.int32)
    assert parts(op, few, keys, keys, ends, ends, 64, 4096, 0.0, True, False) == {}
    assert parts(op, few[:1], keys, keys, ends, ends, 1, 4096, 0.0, True, False) != {}


@given(st.integers(1, 500), st.sampled_from([108, 132]), st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_splits_are_never_more_than_blocks_of_keys(blocks, multiprocessors, key_blocks):
    assert 1 <= num_splits(blocks, multiprocessors * 2, key_blocks) <= min(key_blocks, 128)


def efficient_backward(dtype, head_dim, capability=A100):
    q = empty(2, 200, 4, head_dim, dtype=dtype).transpose(1, 2)
    sums, seed = empty(2, 4, 224, dtype=torch.float32), torch.empty((), dtype=torch.int64)
    op = ATEN._scaled_dot_product_efficient_attention_backward.default
    args = (q, q, q, q, None, q, sums, seed, seed, 0.0, [True] * 3 + [False], True)
    return parts(op, *args, out=(q, q, q, None), capability=capability)


def tiles(rows_, columns, block_rows, block_columns):
    """Bytes of dq staged in tiles of fp32, a lock of 16 bytes each."""
    blocks = math.ceil(rows_ / block_rows) * math.ceil(columns / block_columns)
    return 2 * 4 * blocks * (16 + 4 * block_rows * block_columns)


def test_the_efficient_backward_stages_dq_in_tiles_of_fp32():
    assert efficient_backward(torch.bfloat16, 64) == {
        "delta, fp32 row sums": 2 * 4 * 200 * 4,
        "gradients in fp32": tiles(200, 64, 64, 64),
    }
    half = efficient_backward(torch.bfloat16, 128)["gradients in fp32"]
    assert half == tiles(200, 128, 128, 128)
    single = efficient_backward(torch.float32, 128)["gradients in fp32"]
    assert single == tiles(200, 128, 128, 64)


def test_little_shared_memory_stages_dk_and_dv_too():
    splits = min(math.ceil(200 / 64), 200 // (2 * 4))
    keys = 2 * (2 * 4) * splits * 64 * 128 * 4
    found = efficient_backward(torch.bfloat16, 128, capability=(8, 6))["gradients in fp32"]
    assert found == tiles(200, 128, 64, 64) + keys


def test_the_efficient_forward_accumulates_wide_heads_in_fp32():
    op = ATEN._scaled_dot_product_efficient_attention.default
    wide, narrow = empty(2, 4, 64, 256), empty(2, 4, 64, 128)
    found = parts(op, wide, wide, wide, None, True)
    assert found == {"output_accum, fp32": 2 * 4 * 64 * 256 * 4}
    assert parts(op, narrow, narrow, narrow, None, True) == {}


# -- losses, norms, embeddings, many tensors --


def test_softmax_backward_multiplies_gradient_and_output_first():
    y = empty(2, 8, 64, 64, dtype=torch.float32)
    found = parts(ATEN._softmax_backward_data.default, y, y, -1, torch.float32)
    assert found == {"gradient times output": y.numel() * 4}
    assert parts(ATEN._log_softmax_backward_data.default, y, y, -1, torch.float32) == {}


def test_softmax_copies_what_is_not_contiguous():
    shifted = empty(2, 65, 100, dtype=torch.float32)[:, :-1]
    found = parts(ATEN._log_softmax.default, shifted, -1, False)
    assert found == {"contiguous copy of the input": shifted.numel() * 4}


def test_embedding_backward_adds_up_rows_in_fp32():
    op = ATEN.embedding_dense_backward.default
    indices = torch.empty(2, 4096, dtype=torch.int64)
    found = parts(op, empty(2, 4096, 512), indices, 32000, -1, False)
    partials = 8192 // 10 + 8192
    assert found["grad_weight_per_segment, partial sums of rows"] == partials * 512 * 4
    small = torch.empty(2, 1536, dtype=torch.int64)
    assert parts(op, empty(2, 1536, 512), small, 32000, -1, False) == {}
    few = parts(op, empty(2, 4096, 512), indices, 2, -1, False)
    assert few["grad_weight_per_segment, partial sums of rows"] == (819 + 2) * 512 * 4


def test_norm_backward_needs_partials_only_of_many_short_rows():
    op = ATEN.native_layer_norm_backward.default

    def backward(rows_, columns):
        x, weight = empty(rows_, columns), empty(columns)
        mean = empty(rows_, 1, dtype=torch.float32)
        args = (x, x, [columns], mean, mean, weight, weight, [True] * 3)
        return parts(op, *args, out=(x, weight, weight))

    assert backward(16384, 1024) == {}
    assert backward(2**17, 4096) == {}
    found = backward(2**17, 64)
    assert found["partial gradients of weight and bias"] == 2**17 // 32 * 64 * 2 * 2


def test_the_norms_of_many_tensors_are_padded_to_the_largest():
    tensors = [empty(65536 * 3 + 1), empty(10), empty(65536)]
    found = parts(ATEN._foreach_norm.Scalar, tensors, 2)
    assert list(found.values()) == [3 * 4 * 4]


def test_one_row_is_scanned_in_tiles_and_rows_side_by_side_are_not():
    assert parts(ATEN.cumsum.default, empty(4, 4096), -1) == {}
    (states,) = parts(ATEN.cumsum.default, empty(1, 4096, dtype=torch.float32), -1).values()
    assert states == 512 + 256 + 255  # 3 tiles and 32 states of 8 bytes
    (most,) = parts(ATEN.cumsum.default, empty(1, 4096), -1).values()
    assert most == (8 + 32) * 16
    assert parts(ATEN.cumsum.default, empty(1, 4096), 0) == {}


# -- reductions --


def bias_gradient(tokens, features):
    return parts(ATEN.sum.dim_IntList, empty(tokens, features), [0], True)


def test_a_bias_gradient_leaves_partial_sums_far_larger_than_itself():
    # 32 blocks of 32 x 4 threads take 4 features a thread; 66 blocks a column fill 132 x 16.
    assert bias_gradient(16384, 4096) == {
        "partial results of every block": 4 * 4096 * 66 * 32 * 4,
        "semaphores of the blocks": 32 * 4,
    }
    assert bias_gradient(512, 4096) == {}


def test_rows_are_reduced_without_partial_sums():
    assert parts(ATEN.mean.dim, empty(4096, 4096, dtype=torch.float32), [-1], True) == {}


def test_the_largest_of_all_is_found_as_amax_finds_it_and_along_rows_with_indices():
    x = empty(2**20, 8)
    of_all = parts(ATEN.amax.default, x)
    assert of_all == parts(ATEN.max.default, x) == parts(ATEN.min.default, x)
    assert sum(of_all.values())
    along = parts(ATEN.max.dim, x, 0)
    assert sum(along.values()) > sum(parts(ATEN.amax.default, x, [0]).values())
    assert not parts(ATEN.max.other, x, x)


def test_only_half_precision_is_summed_without_being_widened():
    mask = torch.empty(64, 100, dtype=torch.bool)
    assert parts(ATEN.sum.default, mask)["the input in the type of the result"] == 6400 * 8
    low = empty(64, 100)
    assert parts(ATEN.sum.default, low, dtype=torch.float32) == {}
    assert parts(ATEN.sum.default, empty(8, dtype=torch.float32), dtype=torch.float64) == {
        "the input in the type of the result": 64
    }


def test_dimensions_are_merged_as_tensor_iterator_does():
    shape, strides = (4, 8, 16), (128, 16, 1)
    assert [tuple(dim) for dim in ordered(shape, strides, (0, 1))] == [(32, 0, 16), (16, 1, 1)]
    assert [tuple(dim) for dim in ordered(shape, strides, (0, 1, 2))] == [(512, 0, 1)]
    assert [tuple(dim) for dim in ordered(shape, strides, (2,))] == [(16, 0, 1), (32, 1, 16)]
    assert [d.length for d in ordered(shape, strides, (1,))] == [8, 16, 4]
    assert ordered((), (), ()) == ()


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=4),
    st.data(),
)
@settings(max_examples=80, deadline=None)
def test_every_reduction_has_a_configuration(shape, data):
    reduced = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    dims = ordered(tuple(shape), tuple(strides), tuple(reduced))
    assert math.prod(dim.length for dim in dims) == math.prod(shape)
    inner = [dim.output_stride == 0 for dim in dims]
    assert inner == sorted(inner, reverse=True)
    buffer, semaphores = global_memory(Reduction(dims, 4, 4), chips()[H100])
    assert (buffer > 0) is (semaphores > 0)
    num_outputs = math.prod(n for d, n in enumerate(shape) if d not in reduced)
    assert buffer % (4 * num_outputs) == 0


# -- against a card --


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU is visible")
@pytest.mark.parametrize("tokens", [512, 4096, 16384])
def test_a_bias_gradient_takes_what_a_real_card_takes(tokens):
    with unset_fake_temporarily():
        grad = torch.ones(tokens, 4096, dtype=torch.bfloat16, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        out = grad.sum(0, keepdim=True)
        taken = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        capability = torch.cuda.get_device_capability()
        with kernels.imitate("cuda", capability=capability):
            found = workspaces.workspaces(
                ATEN.sum.dim_IntList, (grad, [0], True), {}, out, capability=capability
            )
    assert taken == sum(-(-part.num_bytes // 512) * 512 for part in found)


# -- copies of many tensors --


def bound(op, *args, **kwargs):
    with kernels.imitate("cuda", capability=H100):
        return workspaces.bound_bytes(op, args, kwargs, None, capability=H100)


def test_what_fsdp_copies_together_is_told_to_blocks_of_threads_in_lists():
    shards, world = [empty(1000, 512), empty(7, 3), empty(5)], 4
    out = empty(world, 250 * 512 + 2 * 3 + 2)
    taken = bound(torch.ops.fsdp.chunk_cat.default, shards, 0, world, out=out)
    blocks = 250 * 512 * 2 / 2048 + 1 + 1  # padded chunks of 2 bytes, in tiles of 2 KiB
    numbers = 7 * 3 + 2 + blocks - 3  # six lists of one each, two of them with one more
    assert taken == 8 * numbers
    wide = empty(*out.shape, dtype=torch.float32)
    again = bound(torch.ops.fsdp.chunk_cat.default, shards, 0, world, out=wide)
    assert again - taken == 8 * 250 * 512 * 2 / 2048


def test_a_gathered_buffer_is_split_by_such_lists_too():
    whole = empty(8, 3000)
    parts_of_it = [empty(8, 1000), empty(8, 2000)]
    sizes = [1000, 2000]
    taken = bound(torch.ops.fsdp.split_with_sizes_copy.default, whole, sizes, 1, out=parts_of_it)
    assert taken == 8 * (4 * 2 + 1 + 1 + 2)


def test_where_the_fused_copy_is_not_taken_nobody_knows():
    half = [empty(8, 8, dtype=torch.float16)]
    wide = empty(4, 16, dtype=torch.float32)
    assert bound(torch.ops.fsdp.chunk_cat.default, half, 0, 4, out=wide) is None
    gaps = [empty(8, 8)[:, :4]]
    assert bound(torch.ops.fsdp.chunk_cat.default, gaps, 0, 4, out=empty(4, 8)) is None


# -- indexing, counting, sorting --


def test_one_mask_and_one_value_are_a_masked_fill():
    x, mask, one = empty(64, 8), empty(64, dtype=torch.bool), empty(dtype=torch.bfloat16)
    assert parts(ATEN.index_put_.default, x, [mask], one) == {}
    assert parts(ATEN.index_put_.default, x, [empty(64, 8, dtype=torch.bool)], one) == {}


def test_what_is_added_up_in_its_places_is_sorted_first():
    x, places, rows = empty(64, 8), empty(5, dtype=torch.int64), empty(5, 8)
    (sort, tile) = asked(ATEN.index_put_.default, x, [places], rows, accumulate=True)
    assert (sort.num_bytes, tile.num_bytes) == (4 * 5 * 8, 1)
    one = empty(8)
    assert asked(ATEN.index_put_.default, x, [places], one, True)[0].num_bytes == 5 * 8 * 2
    assert asked(ATEN.index_put_.default, x, [None, places], empty(64, 5), True) is None
    few = empty(4, dtype=torch.int64)
    held, each = asked(ATEN.index_put_.default, x, [few, few], empty(4), True)
    assert (held.num_bytes, each.num_bytes) == (4 * 2, (4 + 2 * 2) * 4 * 8)
    assert asked(ATEN.index_put_.default, x, [None, few], empty(64, 4), True) is None


@pytest.mark.parametrize("case", ["mask and values", "deterministic"])
def test_what_is_sorted_or_searched_before_it_is_put_is_unknown(case):
    x, places, rows = empty(64, 8), empty(5, dtype=torch.int64), empty(5, 8)
    if case == "mask and values":
        taken = asked(ATEN.index_put_.default, x, [empty(64, dtype=torch.bool)], rows)
    else:
        torch.use_deterministic_algorithms(mode=True)
        try:
            taken = asked(ATEN.index_put_.default, x, [places], rows)
        finally:
            torch.use_deterministic_algorithms(mode=False)
    assert taken is None
    assert asked(ATEN.index_put_.default, x, [places], rows) == ()


def test_indices_of_unlike_strides_are_copied():
    x, rows, columns = empty(64, 8), empty(5, 3, dtype=torch.int64), empty(3, 5, dtype=torch.int64)
    assert asked(ATEN.index_put_.default, x, [rows, rows], empty(5, 3)) == ()
    (copy,) = asked(ATEN.index_put_.default, x, [rows, columns.t()], empty(5, 3))
    assert copy.num_bytes == 15 * 8


def test_counting_makes_a_mask_and_widens_it():
    taken = parts(ATEN.count_nonzero.default, empty(1000, 1000, dtype=torch.float32))
    assert taken["mask of what is not zero"] == 10**6
    assert taken["the mask in the type of the result"] == 8 * 10**6
    of_mask = parts(ATEN.count_nonzero.default, empty(1000, dtype=torch.bool))
    assert "mask of what is not zero" not in of_mask


def test_short_rows_are_sorted_in_place():
    assert asked(ATEN.sort.default, empty(4096, 64), 1)[0].num_bytes == 64 * 8
    assert asked(ATEN.sort.default, empty(8192, 64), 0) is None
    assert asked(ATEN.topk.default, empty(4096, 64), 8) == ()
    (copy,) = asked(ATEN.topk.default, empty(64, 4096).t(), 8)
    assert copy.num_bytes == 4096 * 64 * 2
    assert asked(ATEN.topk.default, empty(64, 4096), 8) is None


def asked(op, *args, **kwargs):
    """What one call allocates; None: nobody knows."""
    with kernels.imitate("cuda", capability=H100):
        out = op(*args, **kwargs)
        return workspaces.workspaces(op, args, kwargs, out, capability=H100)
