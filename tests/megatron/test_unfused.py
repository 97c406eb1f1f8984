"""A gate of several kernels, and micro-batches that wait for the host."""

import pytest

from brimful.hardware.gpus import load_cluster
from brimful.megatron import speed
from brimful.megatron.command_line import read_layout
from brimful.megatron.speed import Overlaps, slowest_step_s
from brimful.megatron.stage import _one_layer, asked_of
from brimful.programs.base import flags_of

TP, TOKENS, FFN, WIDTH = 2, 2048, 1536, 512
LINE = (
    f"--num-layers 2 --hidden-size 512 --num-attention-heads 8 --ffn-hidden-size {FFN} --swiglu "
    f"--tensor-model-parallel-size {TP} --seq-length {TOKENS} --max-position-embeddings {TOKENS} "
    "--micro-batch-size 1 --bf16 --position-embedding-type rope --normalization RMSNorm "
    "--disable-bias-linear --use-distributed-optimizer"
)
MIXTURE = (
    f"--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size {WIDTH} --moe-grouped-gemm "
    "--moe-token-dispatcher-type alltoall --expert-model-parallel-size 2 "
    "--expert-tensor-parallel-size 1 --sequence-parallel"
)
APART = "--no-bias-swiglu-fusion"


def read(*more):
    return read_layout(
        flags_of(f"{LINE} {' '.join(more)}".split(), "pretrain_gpt.py"),
        vocab=32000, world_size=2, stage=0, capability=(9, 0), kind="gpt",
    )  # fmt: skip


def test_both_factors_of_a_gate_are_kept():
    fused, apart = (_one_layer(read(more), is_mixture=False) for more in ("", APART))
    assert apart.kept_bytes - fused.kept_bytes == 2 * TOKENS * FFN // TP * 2


def test_experts_keep_what_probabilities_weigh_too():
    fused, apart = (_one_layer(read(MIXTURE, more), is_mixture=True) for more in ("", APART))
    assert apart.kept_bytes - fused.kept_bytes == 3 * 2 * TOKENS // 2 * WIDTH * 2


@pytest.mark.torch
def test_torch_keeps_these_factors():
    import torch

    halves = torch.zeros(4, 64, requires_grad=True)
    given = halves * 1
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        x, y = torch.chunk(given, 2, dim=-1)
        torch.nn.functional.silu(x) * (y + 0.0)
    assert kept.pop(given.untyped_storage().data_ptr()) == given.nbytes
    assert sum(kept.values()) == given.nbytes  # two halves


def step_s(cluster, *more):
    return slowest_step_s([read(*more)], cluster, Overlaps(replicas=True))


def test_a_small_micro_batch_takes_what_the_host_takes():
    cluster = load_cluster("2xh100-80gb", memory_limit_bytes=None)
    at = read()
    assert at.num_micro == 1
    host_s = asked_of(at).num_blocks * speed.LAUNCHED_S
    assert host_s <= step_s(cluster) < 1.1 * host_s
    assert step_s(cluster, "--micro-batch-size 64 --global-batch-size 64") > 2 * host_s
