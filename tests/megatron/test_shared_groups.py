"""Fewer groups of keys and values than tensor parallelism has processes: what they share."""

import pytest
from msgspec.structs import replace

from brimful.cost.comm import collective_seconds
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.gpus import load_cluster
from brimful.megatron.command_line import read_layout
from brimful.megatron.exchanges import within_a_stage
from brimful.megatron.stage import _one_layer, peak
from brimful.megatron.states import attention_shapes, parameters
from brimful.programs.base import flags_of

TP, HEADS, CHANNELS, HIDDEN, TOKENS = 8, 16, 64, 1024, 2 * 2048
EIGHT = load_cluster("8xh100-80gb", memory_limit_bytes=None)
LINE = (
    f"--num-layers 2 --hidden-size {HIDDEN} --num-attention-heads {HEADS} --kv-channels {CHANNELS} "
    f"--tensor-model-parallel-size {TP} --sequence-parallel --seq-length 2048 "
    "--max-position-embeddings 2048 --micro-batch-size 2 --bf16 --position-embedding-type rope "
    "--disable-bias-linear --use-distributed-optimizer --group-query-attention"
)


def read(groups, more="", line=LINE):
    words = f"{line} --num-query-groups {groups} {more}".split()
    return read_layout(
        flags_of(words, "pretrain_gpt.py"),
        vocab=32000, world_size=8, stage=0, capability=(9, 0), kind="gpt",
    )  # fmt: skip


def whole_product(groups):
    return TOKENS * (HEADS + 2 * groups) * CHANNELS * 2


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_product_is_cut_evenly(groups):
    at = read(groups)
    assert attention_shapes(at)[0] == ((HEADS + 2 * groups) * CHANNELS // TP, HIDDEN)
    less = sum(parameters(read(TP))[0]) - sum(parameters(at)[0])
    assert less == 2 * 2 * (TP - groups) * CHANNELS * HIDDEN // TP  # of two layers


@pytest.mark.parametrize("backend", ["fused", "flash"])
def test_a_kernel_has_one_group_and_nothing_of_the_others_is_kept(backend):
    shared, own = (read(groups, f"--attention-backend {backend}") for groups in (2, TP))
    one, other = (_one_layer(at, is_mixture=False) for at in (shared, own))
    assert one.kept_bytes == other.kept_bytes
    # Gathered twice over and scattered twice over, and the gradient of a group's queries and of it.
    heads = HEADS // 2
    gained = 4 * whole_product(2) + TOKENS * (heads + heads + 2) * CHANNELS * 2
    before = TOKENS * (HEADS // TP + 2) * CHANNELS * 2  # a product, and once more its gradient
    after = whole_product(2) // TP
    assert one.asked.num_bytes - other.asked.num_bytes == gained + 2 * (after - before)


def test_recomputed_attention_keeps_the_product_of_all():
    shared, own = (read(groups, "--recompute-granularity selective") for groups in (2, TP))
    one, other = (_one_layer(at, is_mixture=False).kept_bytes for at in (shared, own))
    assert one - other == whole_product(2) - whole_product(TP) // TP


def test_norms_of_heads_keep_copies_alone():
    shared, own = (read(groups, "--qk-layernorm") for groups in (2, TP))
    one, other = (_one_layer(at, is_mixture=False).kept_bytes for at in (shared, own))
    assert other - TOKENS * CHANNELS * 2 <= one <= other


@pytest.mark.parametrize("more", ["", "--position-embedding-type none", "--qk-layernorm"])
def test_nothing_of_a_micro_batch_is_left(more):
    at = read(2, more)
    left = {
        peak(replace(at, num_micro=num), cublas_bytes=0, capacity_bytes=None).between_steps_bytes
        for num in (1, 2, 5)
    }
    assert len(left) == 1


def test_what_is_gathered_is_sent():
    shared, own = (within_a_stage(read(groups), EIGHT) for groups in (2, TP))
    each = (
        float(collective_seconds(kind, whole_product(2), TP, EIGHT, 1))
        for kind in ("all-gather", "reduce-scatter")
    )
    assert shared.waited - own.waited == pytest.approx(2 * sum(each))  # of two layers
    assert shared.beside == own.beside


def test_what_megatron_refuses_is_refused():
    with pytest.raises(InputError, match="--num-query-groups is 3, no multiple of 8"):
        read(3)
    with pytest.raises(UnsupportedError, match="drop --attention-backend"):
        read(2, "--attention-backend unfused")
