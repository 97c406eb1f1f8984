"""Which kernel computes scores, and how fast: as benchmarks of kernels say."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from brimful.cost.attending import attention_seconds, scores_by, scores_of, scores_on_tape
from brimful.cost.efficiency import attention_share, efficiency_of
from brimful.hardware.devices import gpus
from brimful.models.config import load_model
from brimful.values.job import plain_job
from each_case import each

MEASURED = Path(__file__).parents[2] / "validation/attention_kernels.jsonl"
ROWS = [json.loads(line) for line in MEASURED.read_text("utf-8").splitlines()]
BEST = {row["gpu"]: row["products"] for row in ROWS if "products" in row}
JOB = plain_job(load_model("llama-3.1-8b"), precision="bf16-mixed", seq_len=4096, global_batch=4)
FLOPS = np.array([1e15])


@each("row", [row for row in ROWS if "kernel" in row])
def test_a_kernel_loses_as_much_of_its_benchmark_as_products_lose_of_theirs(row):
    device = gpus()[row["gpu"]]
    measured = 3.5 / (1 / row["forward"] + 2.5 / row["backward"]) / BEST[row["gpu"]]
    told = attention_share(device, row["kernel"], row["length"], row["head"])
    share = efficiency_of(device).matrix_shares["bf16"]
    assert float(told) == pytest.approx(measured * share, rel=0.08)


def kernels(job, attention, gpu, **how):
    return {part.kernel: part.share for part in scores_of(job, attention, gpus()[gpu], **how)}


@each(
    "gpu, attention, torch, kernel",
    [
        ("h100-80gb", "sdpa", (2, 11), "cudnn"),
        ("h100-80gb", "sdpa", (2, 10), "flash"),
        ("h100-80gb", "flash", (2, 11), "flash"),
        ("b200", "sdpa", (2, 11), "cudnn"),
        ("a100-80gb", "sdpa", (2, 11), "flash"),
        ("a100-80gb", "cudnn", (2, 10), "cudnn"),
        ("rtx-5090", "sdpa", (2, 11), "flash"),
        ("a100-80gb", "efficient", (2, 11), "other"),
        ("a100-80gb", "flex", (2, 11), "other"),
        ("v100-32gb", "sdpa", (2, 11), "other"),
        ("mi300x", "flash", (2, 11), "other"),
    ],
)
def test_the_kernel_of_a_card_and_of_pytorchs_version(gpu, attention, torch, kernel):
    assert kernels(JOB, attention, gpu, torch=torch) == {kernel: 1}


WIDE = msgspec.structs.replace(JOB.model, head_dim=320)
PACKED = {"packing": "documents"}
PAIR = {"model": load_model("t5-base"), "task": "seq2seq", "packing": "none"}
WINDOW = {"model": load_model("mistral-7b-v0.1"), "seq_len": 8192}


@each(
    "changed, gpu, kernel",
    [
        ({"precision": "fp32"}, "h100-80gb", "other"),
        ({"precision": "fp8"}, "h100-80gb", "cudnn"),
        (PACKED, "a100-80gb", "other"),
        (PACKED, "h100-80gb", "cudnn"),
        (PAIR, "a100-80gb", "other"),
        (PAIR, "h100-80gb", "cudnn"),
        (WINDOW, "a100-80gb", "other"),
        (WINDOW | {"seq_len": 4096}, "a100-80gb", "flash"),
        ({"model": WIDE}, "a100-80gb", "other"),
        ({"model": WIDE}, "h100-80gb", "other"),
        ({"model": load_model("gemma-2b")}, "h100-80gb", "cudnn"),
        ({"model": load_model("gemma-2b")}, "b200", "flash"),
    ],
)
def test_the_kernel_of_a_type_a_mask_and_a_width(changed, gpu, kernel):
    job = msgspec.structs.replace(JOB, **changed)
    assert kernels(job, "sdpa", gpu) == {kernel: 1}


GEMMA = load_model("gemma-3-1b")
KINDS = (["sliding_attention"] * 5 + ["full_attention"]) * 4 + ["sliding_attention"] * 2
LISTED = msgspec.structs.replace(GEMMA, hf_config={**GEMMA.hf_config, "layer_types": KINDS})


def test_blocks_with_a_window_are_masked_and_others_are_not():
    job = msgspec.structs.replace(JOB, model=LISTED, seq_len=2048)
    found = scores_of(job, "sdpa", gpus()["a100-80gb"])
    assert found == ((1 - 22 / 26, "flash", False), (22 / 26, "other", True))
    short = msgspec.structs.replace(job, seq_len=512)
    assert scores_of(short, "sdpa", gpus()["a100-80gb"]) == ((1, "flash", False),)


def test_what_has_a_mask_is_computed_whole():
    device, packed = gpus()["a100-80gb"], msgspec.structs.replace(JOB, **PACKED)
    causal, whole = (
        attention_seconds(FLOPS, JOB, device, scores)
        for scores in (scores_by("other", JOB), scores_of(packed, "sdpa", device))
    )
    assert whole == 2 * causal


def test_a_tape_says_which_kernels_ran():
    flops = {
        "aten._scaled_dot_product_efficient_attention.default": 3.0,
        "aten._scaled_dot_product_flash_attention.default": 1.0,
    }
    job = msgspec.structs.replace(JOB, model=LISTED, seq_len=2048)
    assert scores_on_tape(flops, job, "sdpa") == ((0.25, "flash", False), (0.75, "other", True))
    assert scores_on_tape(flops, JOB, "flash")[1] == (0.75, "other", False)
    assert scores_on_tape({}, JOB, "eager") == ()


def test_long_rows_and_wide_heads_are_faster():
    device = gpus()["h200"]
    lengths = attention_share(device, "cudnn", np.array([512, 4096, 65536]), 128)
    assert (np.diff(lengths) > 0).all()
    heads = [attention_share(device, "cudnn", 4096, head) for head in (64, 128)]
    assert heads[0] < heads[1]


def test_a_card_that_is_calibrated_has_one_rate():
    device = msgspec.structs.replace(gpus()["h100-80gb"], calibrated=True)
    seconds = [
        attention_seconds(FLOPS, JOB, device, scores_by(kernel, JOB))
        for kernel in ("flash", "cudnn")
    ]
    assert seconds[0] == seconds[1] == FLOPS / device.matrix_flops_per_s.bf16
