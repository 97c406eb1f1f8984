"""The least that a run needs is below what formulas predict, and what it needs of each."""

import pytest
from msgspec.structs import replace

from brimful.cost.estimate import estimate
from brimful.cost.least import (
    blocks_away_bytes,
    least_bytes,
    least_flops_per_token,
    least_on_device,
    spread_of,
)
from brimful.cost.recipes import RECIPES
from brimful.models.config import active_parameters, load_model, parameter_count
from brimful.values.job import Adapter
from samples import make_cluster, make_job, make_strategy

MODEL = load_model("qwen2.5-0.5b")
COUNT = parameter_count(MODEL).total
ADAPTER = Adapter(
    rank=8, alpha=16.0, targets=("all-linear",), trained_modules=(), dtype="same", base="bf16",
    upcast="none", input_requires_grad=False,
)  # fmt: skip


def job_of(**changes):
    return make_job(model=MODEL, seq_len=512, global_batch=4, **changes)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["bf16", "bf16-mixed", "bf16-master"])
def test_no_prediction_is_below_it(zero, precision):
    if (zero, precision) == (1, "bf16-master"):
        pytest.skip("is not run")
    job = job_of(precision=precision)
    degrees = {"dp_replicate": 4} if zero == 0 else {"dp_shard": 4}
    strategy = make_strategy(zero=zero, micro_batch=1, **degrees)
    cluster = replace(make_cluster(), num_devices=4, devices_per_node=4)
    made = estimate(job, cluster, strategy)
    each = least_on_device(least_bytes(job, COUNT), spread_of(4, zero, replicas=1, offload="none"))
    assert each.total <= made.predicted_peak_allocated_bytes
    held = {item.name: item.num_bytes for item in made.items}
    if zero == 0:
        assert each.parameters == held["parameters"]
        assert each.optimizer_state == held["optimizer state"]


def test_a_model_of_unknown_blocks_takes_its_count_by_its_recipe():
    unknown = job_of(precision="bf16-mixed")
    unknown = replace(unknown, model=replace(MODEL, model_type="falcon"))
    recipe, count = RECIPES["bf16-mixed"], 1_000_000
    least = least_bytes(unknown, count)
    assert least.parameters == count * recipe.parameter
    assert least.gradients == count * recipe.gradient
    assert least.optimizer_state == 2 * 4 * count
    assert least_bytes(replace(unknown, optimizer="adafactor"), count).optimizer_state == 0
    quantized = replace(unknown, method="qlora", adapter=replace(ADAPTER, base="nf4"))
    rows = MODEL.vocab_size * MODEL.hidden_size * (2 - MODEL.tied_embeddings)
    whole = min(rows, count)  # embedding and head are in 16 bits
    assert least_bytes(quantized, count).total == (count - whole) // 2 + 2 * whole


def test_what_is_offloaded_is_on_no_device():
    least = least_bytes(job_of(), COUNT)
    away = least_on_device(least, spread_of(1, None, replicas=1, offload="optimizer"))
    assert (away.gradients, away.optimizer_state) == (0, 0)
    assert away.parameters == least.parameters


@pytest.mark.parametrize("num_layers", [1, MODEL.num_layers])
def test_a_base_that_waits_on_the_host_is_on_no_device(num_layers):
    """Embedding and head stay; a bound has no more of a layer than what is there."""
    job = replace(job_of(), method="qlora", adapter=replace(ADAPTER, base="nf4"))
    least = least_bytes(job, COUNT)
    away = blocks_away_bytes(job, least, f"parameters:{num_layers}")
    kept = least_on_device(
        least, spread_of(2, 1, replicas=1, offload="")._replace(parameters_away=away)
    )
    rows = MODEL.vocab_size * MODEL.hidden_size * (2 - MODEL.tied_embeddings)
    layers = least.parameters - 2 * rows
    stays = layers * (1 - num_layers / MODEL.num_layers)
    assert kept.parameters == pytest.approx(2 * rows + stays, abs=1)
    assert blocks_away_bytes(job, least, "optimizer") == blocks_away_bytes(job, least, "") == 0


def test_products_of_a_token_are_below_those_that_are_predicted():
    job, cluster = job_of(precision="bf16"), make_cluster()
    flops = least_flops_per_token(job, COUNT)
    made = estimate(job, cluster, make_strategy(micro_batch=1))
    least_s = flops * job.tokens_per_step / cluster.device.matrix_flops_per_s.bf16
    assert 0 < least_s < made.predicted_step_s
    lora = replace(job, method="lora", adapter=ADAPTER)
    assert least_flops_per_token(lora, COUNT) == pytest.approx(flops * 2 / 3)


def test_products_of_a_mixture_are_those_of_the_experts_that_a_token_is_sent_to():
    model = load_model("mixtral-8x7b")
    flops = least_flops_per_token(replace(job_of(), model=model), 1)
    assert flops == 6 * (active_parameters(model) - model.vocab_size * model.hidden_size)


def test_products_of_a_mixture_that_nobody_has_read_are_not_known(monkeypatch):
    monkeypatch.setattr("brimful.models.config.find_built", lambda _: None)
    job = replace(job_of(), model=load_model("deepseek-v4-flash"))
    assert least_flops_per_token(job, 1) is None
