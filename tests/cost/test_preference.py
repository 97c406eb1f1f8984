"""The first rung of preference tuning: predicted against simulated, and laws of the formulas."""

import random
from functools import cache

import msgspec
import numpy as np
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.formula import missing_formula
from brimful.cost.preference import copied_as_moved, reference_parts, second_model_bytes
from brimful.cost.requests import asked_of
from brimful.cost.reserved import predicted_reserved
from brimful.errors import BrimfulError
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.techniques.runnable import check_strategy
from brimful.units import GIB, MIB
from brimful.values.results import REFERENCE, WORKSPACES
from cost.replays import ALLOCATORS, live_peak, reserved
from pairs import make_lora, make_pair_job
from samples import make_cluster, make_model, make_strategy

NUM_CASES = 60
VARIANTS = ("resident", "offloaded", "adapters-off", "precomputed")


def draw(seed):
    """Draw a job and a strategy that a formula covers."""
    rng = random.Random(seed)  # noqa: S311 - a sample
    cluster = make_cluster("cuda")
    while True:
        job, strategy = _drawn(rng)
        try:
            check_strategy(job, strategy)
        except BrimfulError:
            continue
        if not missing_formula(job, strategy, cluster.device):
            return job, strategy, cluster


def _drawn(rng):
    architecture, width = rng.choice(("llama", "gpt2")), rng.choice((64, 128, 256))
    vocab = rng.choice((1000, 8000))
    fields = {"n_embd": width, "n_layer": rng.choice((2, 3))}
    if architecture == "llama":
        fields = {
            "hidden_size": width,
            "num_hidden_layers": rng.choice((2, 3)),
            "tie_word_embeddings": rng.random() < 0.3,
        }
    precision = rng.choice(("fp32", "bf16", "bf16-mixed", "bf16-master"))
    micro_batch, times = rng.choice((1, 2)), rng.choice((1, 2))
    base = "bf16" if precision == "bf16-mixed" else "same"
    job = make_pair_job(
        architecture,
        model=make_model(architecture, vocab_size=vocab, **fields),
        precision=precision,
        seq_len=rng.choice((32, 64, 160)),
        global_batch=micro_batch * times,
        **(make_lora(base=base) if rng.random() < 0.6 else {}),
    )
    return job, make_strategy(
        micro_batch=micro_batch,
        reference=rng.choice(VARIANTS),
        loss_chunks=rng.choice((1, 2, 4)),
        activation_checkpointing=rng.choice(("none", "full", "full:1", "selective")),
    )


@pytest.mark.torch
@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_the_predicted_peak_is_the_simulated_one(seed):
    """Beside cuBLAS's workspaces, which are much of such small peaks."""
    from brimful.simulate.run import simulate

    job, strategy, cluster = draw(seed)
    predicted, simulated = estimate(job, cluster, strategy), simulate(job, cluster, strategy)
    blas = sum(i.num_bytes for i in simulated.items if i.name == WORKSPACES)
    peak = simulated.simulated_peak_allocated_bytes
    assert predicted.predicted_peak_allocated_bytes == pytest.approx(peak, abs=0.01 * (peak - blas))
    assert _held(predicted) == pytest.approx(_held(simulated), abs=1024)


def _held(rung):
    return sum(item.num_bytes for item in rung.items if item.name == REFERENCE)


@cache
def lora_8b(reference, **changes):
    model = load_model("llama-3.1-8b")
    job = make_pair_job(
        model=model,
        precision="bf16",
        seq_len=1024,
        global_batch=8,
        **make_lora(rank=16, base="same"),
    )
    switches = {"micro_batch": 1, "activation_checkpointing": "full", "loss_chunks": 8, **changes}
    cluster = load_cluster("h100-80gb", memory_limit_bytes=None)
    return estimate(job, cluster, make_strategy(reference=reference, **switches)), job


def test_variants_of_one_job_are_in_order():
    """A second model costs its bytes, a part of it less, none nothing; copies and forwards time."""
    told = {reference: lora_8b(reference)[0] for reference in VARIANTS}
    peaks = {name: made.predicted_peak_allocated_bytes for name, made in told.items()}
    second = second_model_bytes(lora_8b("resident")[1])
    assert peaks["resident"] - peaks["precomputed"] == second
    assert peaks["adapters-off"] == peaks["precomputed"] <= peaks["offloaded"]
    assert peaks["offloaded"] - peaks["precomputed"] <= max(reference_parts(lora_8b("resident")[1]))
    seconds = {name: made.predicted_step_s for name, made in told.items()}
    assert seconds["precomputed"] < seconds["adapters-off"] == seconds["resident"]
    assert seconds["resident"] < seconds["offloaded"]


def test_the_reference_is_one_more_forward_pass():
    """A step is three forwards, a bit more where attention's backward runs its forward again."""
    job = make_pair_job(model=make_model(vocab_size=97), seq_len=128, precision="bf16")
    cluster = make_cluster("cuda")

    def flops(reference, checkpointing):
        strategy = make_strategy(reference=reference, activation_checkpointing=checkpointing)
        return estimate(job, cluster, strategy).step_flops

    asked = flops("resident", "none") - flops("precomputed", "none")
    again = flops("precomputed", "full") - flops("precomputed", "none")
    assert 3 * asked <= flops("precomputed", "none") <= 3.5 * asked
    assert again < asked < 1.5 * again  # nor the output layer nor a block's last product again
    assert flops("resident", "full") - flops("precomputed", "full") == asked


def test_two_rows_of_a_pair_are_two_sequences():
    """A preference step without a reference is a causal one of twice the sequences, but for the
    few numbers of its loss."""
    job = make_pair_job(model=make_model(vocab_size=2000), seq_len=128)
    plain = msgspec.structs.replace(
        job, task="chat", preference=None, global_batch=2 * job.global_batch
    )
    cluster = make_cluster("cuda")
    pairs = estimate(job, cluster, make_strategy(reference="precomputed", micro_batch=2))
    chats = estimate(plain, cluster, make_strategy(micro_batch=4))
    assert pairs.phases == chats.phases
    assert pairs.predicted_step_s == chats.predicted_step_s
    assert pairs.tokens_per_s == chats.tokens_per_s


def test_a_copy_over_a_link_that_nobody_knows_has_no_time():
    cluster = make_cluster("cuda")
    job = make_pair_job()
    made = estimate(job, cluster, make_strategy(reference="offloaded"))
    assert made.predicted_step_s is None
    assert made.predicted_peak_allocated_bytes > 0


def test_copies_take_as_long_as_the_link_says():
    from brimful.cost.efficiency import efficiency_of
    from brimful.cost.family import family_of
    from brimful.hardware.datasheets import datasheets

    cluster = load_cluster("h100-80gb", memory_limit_bytes=None)
    job = lora_8b("offloaded")[1]
    family = family_of(job, make_strategy(reference="offloaded", micro_batch=2))
    device = cluster.device
    memory = device.memory_bytes_per_s * efficiency_of(device).memory_share
    link = next(x for x in datasheets()["h100-80gb"].links if x.kind == "pcie").bytes_per_s
    seconds = copied_as_moved(job, family, device) / memory
    assert seconds == pytest.approx(4 * second_model_bytes(job) / link)


def test_a_second_model_that_is_away_is_in_the_host():
    """In pinned blocks, which are powers of two."""
    held = {reference: lora_8b(reference)[0].host for reference in VARIANTS}
    sizes = {
        reference: sum(i.num_bytes for i in host.items if i.name == REFERENCE)
        for reference, host in held.items()
    }
    second = second_model_bytes(lora_8b("offloaded")[1])
    assert second <= sizes.pop("offloaded") <= 2 * second
    assert not any(sizes.values())


@pytest.mark.parametrize("reference", VARIANTS)
def test_a_search_finds_what_single_estimates_say(reference):
    job = make_pair_job(
        model=make_model(vocab_size=2048), precision="bf16", seq_len=64, **make_lora()
    )
    cluster = msgspec.structs.replace(
        make_cluster("cuda"),
        device=msgspec.structs.replace(make_cluster("cuda").device, name="h100-80gb"),
    )
    pins = Pins(reference=reference)
    found = solve(job, cluster, pins, attention="sdpa", objective="time")
    assert {row.strategy.reference for row in found.record.rows} == {reference}
    for row in found.record.rows:
        made = estimate(job, cluster, row.strategy)
        assert row.peak_bytes == made.predicted_peak_allocated_bytes
        assert row.step_s == pytest.approx(made.predicted_step_s, rel=1e-9)
    assert len(found.record.rows) > 3
    assert np.isfinite(found.plan.estimate.predicted_step_s)


REPLAYED = {
    "resident": ({}, {"reference": "resident"}, 1e-3),
    "resident, beside adapters": (
        make_lora(rank=16),
        {"reference": "resident", "activation_checkpointing": "full", "loss_chunks": 4},
        1e-3,
    ),
    "offloaded": ({}, {"reference": "offloaded", "loss_chunks": 4}, 1e-3),
    "adapters off": (
        make_lora("qlora", rank=16, base="nf4-double"), {"reference": "adapters-off"}, 0.02
    ),
    "precomputed": ({"precision": "bf16-mixed"}, {"reference": "precomputed"}, 1e-3),
}  # fmt: skip


def replayed(name):
    fields, how, rel = REPLAYED[name]
    common = {"model": load_model("qwen3-0.6b"), "precision": "bf16", "seq_len": 1024}
    job = make_pair_job(**{**common, "global_batch": 4, **fields})
    return job, make_strategy(micro_batch=2, **how), rel


@pytest.mark.few(3)
@pytest.mark.parametrize("name", REPLAYED)
def test_requests_add_up_to_the_predicted_peak(name):
    job, strategy, _ = replayed(name)
    cluster = make_cluster("cuda", usable_bytes=80 * GIB)
    asked = asked_of(job, strategy, cluster.device)
    assert asked.num_unmatched == 0
    predicted = estimate(job, cluster, strategy)
    assert live_peak(asked.requests()) == pytest.approx(
        predicted.predicted_peak_allocated_bytes, abs=2 * MIB
    )
    assert predicted_reserved(job, cluster, strategy).word == "fits"


@pytest.mark.torch
@pytest.mark.few(1)
@pytest.mark.parametrize("name", REPLAYED)
def test_what_is_reserved_is_what_the_simulation_reserves(name):
    from brimful.simulate.run import simulate_recorded

    job, strategy, rel = replayed(name)
    cluster = make_cluster("cuda", usable_bytes=80 * GIB)
    mine = asked_of(job, strategy, cluster.device).requests()
    theirs = simulate_recorded(job, cluster, strategy).recording.requests()
    for allocator in ALLOCATORS:
        assert reserved(mine, allocator) == pytest.approx(reserved(theirs, allocator), rel=rel)


SHARDED = {
    "resident": ({}, {"zero": 3, "activation_checkpointing": "full", "loss_chunks": 8}),
    "a whole second model": ({}, {"zero": 1}),
    "adapters-off": (make_lora(base="bf16"), {"zero": 2}),
    "4 bits": (make_lora("qlora", base="nf4-double"), {"zero": 3}),
}


@pytest.mark.torch
@pytest.mark.few(only=["adapters-off"])
@pytest.mark.parametrize("case", SHARDED)
def test_sharded_peaks_are_the_simulated_ones(case):
    from brimful.simulate.run import simulate

    fields, how = SHARDED[case]
    job = make_pair_job(
        model=load_model("llama-3.2-1b"),
        precision="bf16-mixed",
        seq_len=1024,
        global_batch=8,
        **fields,
    )
    reference = "adapters-off" if job.adapter else "resident"
    strategy = check_strategy(job, make_strategy(reference=reference, dp_shard=4, **how))
    cluster = load_cluster("4xh100-80gb", memory_limit_bytes=None)
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    simulated = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
    assert predicted == pytest.approx(simulated, rel=2e-5)
    is_replayed = predicted_reserved(job, cluster, strategy) is not None
    assert is_replayed == (strategy.zero == 1)
