"""Seconds from work, and what share of a device's rate they amount to."""

import msgspec
import numpy as np
import pytest

from brimful.cost.attending import scores_by
from brimful.cost.efficiency import ProductSize, efficiency_of, product_share
from brimful.cost.estimate import estimate
from brimful.cost.speed import speed_of, step_flops
from brimful.cost.step import StepWork, step_seconds, update_on_device, utilization
from brimful.hardware.devices import gpus
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model, parameter_count
from brimful.values.job import Adapter, plain_job
from brimful.values.strategy import Strategy

H100 = gpus()["h100-80gb"]
SIZE = ProductSize(16384, 4096)
JOB = plain_job(load_model("llama-3.1-8b"), precision="bf16", seq_len=2048, global_batch=4)
OTHER, CUDNN = scores_by("other", JOB), scores_by("cudnn", JOB)
STRATEGY = Strategy(micro_batch=2, activation_checkpointing="none", loss_chunks=1, attention="sdpa")


def work(matrix_flops=0.0, attention_flops=0.0, moved_bytes=0.0, num_ops=0.0):
    return StepWork(*(np.array([x]) for x in (matrix_flops, attention_flops, moved_bytes, num_ops)))


def test_each_kind_of_work_takes_its_own_rate():
    reached, rate = efficiency_of(H100), H100.matrix_flops_per_s.bf16
    products = step_seconds(work(matrix_flops=1e15), JOB, H100, SIZE, OTHER)
    assert products.matrix_s == pytest.approx(1e15 / (rate * product_share(H100, "bf16", SIZE)))
    attended = step_seconds(work(attention_flops=1e15), JOB, H100, SIZE, OTHER)
    assert attended.matrix_s == pytest.approx(0.5e15 / (rate * reached.attention["other"].share))
    moved = step_seconds(work(moved_bytes=1e12), JOB, H100, SIZE, OTHER)
    assert moved.memory_s == pytest.approx(1e12 / (H100.memory_bytes_per_s * reached.memory_share))


def test_many_kernels_of_an_update_move_more_than_one():
    """AdamW of whole lists was told to take what its fused kernel does."""
    moved = [
        update_on_device(msgspec.structs.replace(JOB, optimizer=name), H100, 1e9, 3e9)
        for name in ("adamw", "adamw-foreach")
    ]
    clip, fused = 3e9, 7e9
    assert moved[1] / moved[0] == pytest.approx((clip + 20 / 7 * fused) / (clip + fused))


@pytest.mark.torch  # transformers reads what no file here describes
@pytest.mark.parametrize("name", ["bert-base-uncased", "t5-small", "bart-base"])
def test_what_has_a_mask_of_its_own_skips_nothing(name):
    """Its kernels compute every score, where a causal one skips half."""
    whole = msgspec.structs.replace(JOB, model=load_model(name))
    seconds = [
        step_seconds(work(attention_flops=1e15), job, H100, SIZE, scores_by("other", job)).matrix_s
        for job in (JOB, whole)
    ]
    assert seconds[1] == 2 * seconds[0]


def test_attention_of_fp8_runs_in_16_bits():
    narrow = msgspec.structs.replace(JOB, precision="fp8")
    attended = [
        step_seconds(work(attention_flops=1e15), job, H100, SIZE, CUDNN) for job in (JOB, narrow)
    ]
    assert attended[0].matrix_s == attended[1].matrix_s
    products = [
        step_seconds(work(matrix_flops=1e15), job, H100, SIZE, CUDNN) for job in (JOB, narrow)
    ]
    assert products[1].matrix_s < products[0].matrix_s


def test_attention_of_what_upcast_norms_feed_runs_in_fp32():
    """Layers in 4 bits give back the type they are given; autocast narrows it before attention."""
    adapter = Adapter(
        rank=8,
        alpha=16.0,
        targets=("q_proj",),
        trained_modules=(),
        dtype="fp32",
        base="nf4",
        upcast="all",
        input_requires_grad=False,
    )
    for precision, rate in (("bf16", "fp32"), ("bf16-mixed", "bf16")):
        job = msgspec.structs.replace(JOB, precision=precision, method="qlora", adapter=adapter)
        attended = step_seconds(work(attention_flops=1e15), job, H100, SIZE, OTHER).matrix_s
        share = efficiency_of(H100).attention["other"].share
        reached = getattr(H100.matrix_flops_per_s, rate) * share
        assert attended == pytest.approx(0.5e15 / reached)


def test_launches_hide_behind_work_on_cuda():
    busy = step_seconds(work(matrix_flops=1e15, num_ops=1000), JOB, H100, SIZE, OTHER)
    idle = step_seconds(work(num_ops=1000), JOB, H100, SIZE, OTHER)
    assert busy.launch_s == 0
    assert idle.launch_s == pytest.approx(1000 * H100.op_overhead_s)


def test_a_calibrated_device_takes_its_rates_as_they_are():
    device = msgspec.structs.replace(H100, calibrated=True)
    parts = step_seconds(work(1e15, 1e15, 1e12), JOB, device, SIZE, OTHER)
    assert parts.matrix_s == pytest.approx(2e15 / device.matrix_flops_per_s.bf16)
    assert parts.memory_s == pytest.approx(1e12 / device.memory_bytes_per_s)


def test_an_unknown_rate_makes_the_time_unknown():
    assert step_seconds(work(1.0), JOB, gpus()["t4"], SIZE, OTHER) is None
    assert utilization(1.0, 1.0, gpus()["t4"], "bf16") is None


def test_larger_micro_batches_are_never_slower_per_step():
    cluster = load_cluster("h100-80gb", memory_limit_bytes=None)
    seconds = [
        estimate(JOB, cluster, msgspec.structs.replace(STRATEGY, micro_batch=n)).predicted_step_s
        for n in (1, 2, 4)
    ]
    assert seconds == sorted(seconds, reverse=True)


def test_model_flops_are_six_per_parameter_and_token_and_attention():
    cluster, model = load_cluster("h100-80gb", memory_limit_bytes=None), JOB.model
    found = step_flops(JOB, cluster, STRATEGY) / JOB.tokens_per_step
    parameters = parameter_count(model)
    products = 6 * (parameters.total - parameters.embedding)
    attention = 14 * model.num_layers * model.hidden_size * JOB.seq_len
    assert found == pytest.approx(products + attention, rel=2e-3)


def test_hfu_counts_recomputation_and_mfu_does_not():
    cluster = load_cluster("h100-80gb", memory_limit_bytes=None)
    full = msgspec.structs.replace(STRATEGY, activation_checkpointing="full")
    once, again = (speed_of(JOB, cluster, how, 1.0) for how in (STRATEGY, full))
    assert once.mfu == once.hfu == again.mfu
    # A third more, less the head and, since recomputing stops early, the block's last product.
    assert 1.2 < again.hfu / again.mfu < 4 / 3
    assert once.tokens_per_s == JOB.tokens_per_step


def test_more_devices_share_the_same_flops():
    one, eight = (load_cluster(n, memory_limit_bytes=None) for n in ("h100-80gb", "8xh100-80gb"))
    spread = msgspec.structs.replace(STRATEGY, zero=3, dp_shard=2, tp=4)
    assert step_flops(JOB, one, STRATEGY) == step_flops(JOB, eight, spread)
    alone, shared = speed_of(JOB, one, STRATEGY, 8.0), speed_of(JOB, eight, spread, 1.0)
    assert shared.mfu == pytest.approx(alone.mfu)
    assert shared.tokens_per_s == pytest.approx(8 * alone.tokens_per_s)


def test_a_time_that_is_unknown_has_no_speed():
    cluster = load_cluster("h100-80gb", memory_limit_bytes=None)
    assert speed_of(JOB, cluster, STRATEGY, None) == (None, None, None)
