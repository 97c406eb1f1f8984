"""Shares of a datasheet's rates: bounds, sizes, types, and devices that are measured."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from brimful.cost.efficiency import (
    MEASURED,
    POWER_EXPONENT,
    ProductSize,
    efficiency_of,
    fused_bytes,
    generations,
    half_sizes,
    matrix_type,
    power_limit_w,
    product_share,
    products,
    size_of,
)
from brimful.hardware.datasheets import datasheets
from brimful.hardware.devices import gpus
from brimful.hardware.slices import slice_device, sliced
from brimful.models.config import load_model
from brimful.values.job import plain_job
from each_case import each

LARGE = ProductSize(1e9, 1e9)
DECISION = Path(__file__).parents[2] / "docs/decisions/0144-what-each-card-reaches.md"
LIMITED = {
    "a10", "a100-40gb-pcie", "a100-80gb-pcie", "a40", "a800-40gb", "h100-96gb", "h100-nvl",
    "h100-pcie", "h800-pcie", "quadro-rtx-5000", "quadro-rtx-6000", "quadro-rtx-8000",
    "rtx-5000-ada", "rtx-5880-ada", "rtx-6000-ada", "rtx-a5000", "rtx-a5500", "rtx-pro-4000",
    "rtx-pro-4500", "rtx-pro-6000-max-q", "titan-rtx",
}  # fmt: skip
"""Cards that few watts slow down, of which no product was measured."""


@each("name", gpus())
def test_every_gpu_has_one_generation(name):
    device = gpus()[name]
    found = [g for g in generations().values() if device.capability in g.capabilities]
    assert len(found) == 1
    assert efficiency_of(device).source == found[0].source


@pytest.mark.parametrize("name", generations())
def test_shares_are_shares_and_say_where_they_come_from(name):
    table = generations()[name]
    attended = [each.share for each in table.attention.values()]
    shares = (*table.matrix_shares.values(), *attended, table.memory_share)
    assert "other" in table.attention
    assert all(0 < share <= 1 for share in shares)
    assert any(word in table.source for word in ("fitted to", "assumed", "data/products.json"))


@each("name", gpus())
@each("precision", ["fp32", "tf32", "bf16-mixed", "fp16-mixed"])
def test_a_rate_that_is_known_has_a_share(name, precision):
    device = gpus()[name]
    kind = matrix_type(device, precision)
    if device.capability >= 7 or precision == "fp32":
        is_there = kind in efficiency_of(device).matrix_shares
        assert is_there or (kind == "bf16" and not device.matrix_flops_per_s.bf16)


def test_larger_products_are_faster_and_none_reaches_the_rate():
    device = gpus()["h100-80gb"]
    sizes = np.logspace(1, 6, 20)
    by_width = product_share(device, "bf16", ProductSize(4096, sizes))
    by_tokens = product_share(device, "bf16", ProductSize(sizes, 4096))
    for shares in (by_width, by_tokens):
        assert (np.diff(shares) > 0).all()
        assert (shares < efficiency_of(device).matrix_shares["bf16"]).all()
    whole = efficiency_of(device).matrix_shares["bf16"]
    assert product_share(device, "bf16", LARGE) == pytest.approx(whole, rel=1e-4)


def test_half_of_the_share_is_left_at_the_half_sizes():
    device = gpus()["a100-80gb"]
    at_half = half_sizes(device)
    whole = product_share(device, "bf16", LARGE)
    narrow = product_share(device, "bf16", ProductSize(1e9, at_half.width))
    short = product_share(device, "bf16", ProductSize(at_half.tokens, 1e9))
    assert narrow == pytest.approx(whole / 2, rel=1e-4)
    assert short == pytest.approx(whole / 2, rel=1e-4)


def test_small_products_lose_less_on_a_card_that_moves_more_for_what_it_computes():
    """One pair of sizes stood for all cards of a generation: an H20 lost what an H100 loses."""
    width = {name: half_sizes(gpus()[name]).width for name in ("h20", "h200", "h100-80gb")}
    assert 4 * width["h20"] < width["h100-80gb"]
    assert width["h200"] / width["h100-80gb"] == pytest.approx(3.35 / 4.8)


def test_half_of_the_last_wave_of_tiles_is_idle():
    """1,024 tokens fill 132 multiprocessors, and of 304 less than half: they were told alike."""
    few, many = ProductSize(1024, 4096), ProductSize(1024 * 64, 4096)
    kept = {}
    for name in ("h100-80gb", "mi300x"):
        shares = [product_share(gpus()[name], "bf16", size) for size in (few, many)]
        kept[name] = shares[0] / shares[1]
    assert kept["mi300x"] < kept["h100-80gb"] - 0.1
    tiny = product_share(gpus()["mi300x"], "bf16", ProductSize(64, 4096))
    assert tiny > 0  # small tiles are taken then, and the loss grows a quarter as fast


def test_slow_types_lose_less_to_their_size():
    device, small = gpus()["a100-80gb"], ProductSize(1000, 1000)
    kept = [product_share(device, p, small) / product_share(device, p, LARGE)
            for p in ("fp32", "tf32", "bf16")]  # fmt: skip
    assert kept == sorted(kept, reverse=True)


def test_arrays_equal_numbers():
    device, widths = gpus()["h200"], [64, 1024, 8192]
    whole = product_share(device, "bf16", ProductSize(2048, np.array(widths)))
    rows = [float(product_share(device, "bf16", ProductSize(2048, width))) for width in widths]
    assert whole.tolist() == rows


def test_a_size_that_is_unknown_is_no_reason_to_be_slow():
    device = gpus()["h100-80gb"]
    whole = efficiency_of(device).matrix_shares["bf16"]
    assert product_share(device, "bf16", ProductSize(0, 0)) == whole


def test_a_calibrated_device_reaches_what_was_measured():
    device = msgspec.structs.replace(gpus()["h100-80gb"], calibrated=True)
    assert efficiency_of(device) is MEASURED
    assert product_share(device, "bf16", ProductSize(1, 64)) == 1


def test_the_size_of_a_jobs_products():
    job = plain_job(load_model("gpt2"), seq_len=512, global_batch=8)
    assert size_of(job, 4) == (2048, 768)
    assert size_of(job, 4, tp=2).width == 384
    nothing = msgspec.structs.replace(job.model, hidden_size=0)
    assert size_of(msgspec.structs.replace(job, model=nothing), 4) == (0, 0)


@pytest.mark.parametrize(("name", "share"), [("a100-80gb", 0.82), ("h100-80gb", 0.64)])
def test_who_has_watts_enough_reaches_the_share_of_the_generation(name, share):
    device = gpus()[name]
    assert efficiency_of(device).matrix_shares["bf16"] == share
    assert power_limit_w(device) is None


@pytest.mark.parametrize(
    ("name", "reached"), [("h20", 142e12), ("l40s", 269e12), ("rtx-a6000", 123e12), ("l4", 71e12)]
)
def test_a_card_reaches_in_products_what_was_measured_of_it(name, reached):
    """An L40S was told to reach 143 TFLOP/s by one run of BERT, an H20 93 as an H100 does."""
    device = gpus()[name]
    share = efficiency_of(device).matrix_shares["bf16"]
    assert share * device.matrix_flops_per_s.bf16 == pytest.approx(reached, rel=0.01)
    assert power_limit_w(device) is None


@each("name", products().tflops_per_s)
def test_what_was_measured_is_of_a_card_and_no_more_than_its_rate(name):
    device, measured = gpus()[name], products().tflops_per_s[name]
    shares = efficiency_of(device).matrix_shares
    for kind, tflops in measured.items():
        if rate := getattr(device.matrix_flops_per_s, kind):
            assert 0.4 < tflops * 1e12 / rate < 1.2, kind
            assert shares[kind] <= 1


@pytest.mark.parametrize("name", ["a10", "a100-40gb-pcie", "h100-pcie", "rtx-6000-ada"])
def test_few_watts_slow_all_tensor_cores_down_and_nothing_else(name):
    device = gpus()[name]
    left = efficiency_of(device)
    whole = next(e for e in generations().values() if device.capability in e.capabilities)
    slower = left.matrix_shares["bf16"] / whole.matrix_shares["bf16"]
    assert slower < 0.9
    assert left.matrix_shares["tf32"] == pytest.approx(slower * whole.matrix_shares["tf32"])
    for kernel, reached in left.attention.items():
        assert reached.share == pytest.approx(slower * whole.attention[kernel].share)
    own = products().tflops_per_s.get(name, {})
    assert left.matrix_shares["fp32"] == whole.matrix_shares["fp32"] or "fp32" in own
    assert left.memory_share == whole.memory_share
    assert power_limit_w(device) == datasheets()[name].tdp_w


def test_what_a_chip_reaches_grows_with_its_watts():
    by_watts = [gpus()[name] for name in ("a10", "rtx-a5000", "a40")]
    rates = [efficiency_of(d).matrix_shares["bf16"] * d.matrix_flops_per_s.bf16 for d in by_watts]
    assert rates == sorted(rates)
    watts = [datasheets()[device.name].tdp_w for device in by_watts]
    assert rates[2] / rates[0] == pytest.approx((watts[2] / watts[0]) ** POWER_EXPONENT)


def test_kernels_that_pass_a_tensor_once_move_it_faster_than_one_operation_after_the_other():
    device = gpus()["h200"]
    moved = fused_bytes(1e12, device)
    reached = efficiency_of(device).memory_share
    assert reached == pytest.approx(3.33 / 4.8, abs=0.01)  # calibrated on such a card
    assert moved / reached == pytest.approx(1e12 / 0.85)
    cpu = msgspec.structs.replace(device, kernels="cpu")
    assert fused_bytes(1e12, cpu) == 1e12


@each(
    "name", [f"{card}-mig-{each}" for cut in sliced() for card in cut.gpus for each in cut.profiles]
)
def test_no_slice_is_faster_than_its_card(name):
    """The whole of an H100 PCIe as a slice was told 8 % faster than the card."""
    device, card = slice_device(name), gpus()[name.partition("-mig-")[0]]
    assert efficiency_of(device) == efficiency_of(card)
    assert power_limit_w(device) == power_limit_w(card)
    for kind, share in efficiency_of(card).matrix_shares.items():
        whole, part = (getattr(each.matrix_flops_per_s, kind) or 0 for each in (card, device))
        assert efficiency_of(device).matrix_shares[kind] * part <= share * whole


def test_every_card_that_few_watts_slow_down():
    assert {name for name, device in gpus().items() if power_limit_w(device) is not None} == LIMITED
    text = DECISION.read_text("utf-8")
    assert all(name in text for name in LIMITED)
