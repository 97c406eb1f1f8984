"""Activations that blocks send to the host: predicted by a trace, against the simulation."""

import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.formula import missing_formula
from brimful.cost.own_programs import needs_of
from brimful.cost.reserved import predicted_reserved
from brimful.cost.speed import step_flops
from brimful.models.config import read_config
from brimful.values.results import SAVED_ACTIVATIONS
from samples import make_adapter, make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

SIZES = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 9, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 304, "num_local_experts": 4,
    "num_experts_per_tok": 2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
CASES = {
    "all": ("llama", {}, {"offload": "activations"}),
    "some": ("llama", {}, {"offload": "activations:4"}),
    "one": ("llama", {}, {"offload": "activations:1"}),
    "all but one": ("llama", {}, {"offload": "activations:8"}),
    "more than are checkpointed": (
        "llama", {}, {"offload": "activations:6", "activation_checkpointing": "full:3"},
    ),
    "fewer than are checkpointed": (
        "llama", {}, {"offload": "activations:3", "activation_checkpointing": "selective:6"},
    ),
    "all checkpointed": (
        "llama", {}, {"offload": "activations", "activation_checkpointing": "full"},
    ),
    "with the optimizer": ("llama", {}, {"offload": "optimizer,activations:5"}),
    "sharded": (
        "llama", {"global_batch": 16},
        {"offload": "activations:5", "dp_shard": 4, "zero": 3, "loss_chunks": 2},
    ),
    "adapters": (
        "llama", {"method": "lora", "adapter": make_adapter(rank=8)}, {"offload": "activations:5"},
    ),
    "beside a base that is away": (
        "llama", {"method": "qlora", "adapter": make_adapter(rank=8, base="nf4-double")},
        {"offload": "parameters,activations", "activation_checkpointing": "full:4"},
    ),
    "beside a base that each device brings": (
        "llama",
        {"method": "qlora", "global_batch": 8, "adapter": make_adapter(rank=8, base="nf4-double")},
        {"offload": "parameters,activations:5", "dp_replicate": 2},
    ),
    "experts": ("mixtral", {}, {"offload": "activations:5", "activation_checkpointing": "full:2"}),
    "windows": ("gemma2", {}, {"offload": "activations:5", "attention": "eager"}),
}  # fmt: skip


def settings(case, *, longest=8192, **changes):
    model_type, of_job, of_strategy = CASES[case]
    sizes = {**SIZES, "model_type": model_type, "max_position_embeddings": longest}
    model = read_config(f"tiny-{model_type}", sizes)
    job = make_job(model=model, **{"seq_len": 1024, "precision": "bf16-mixed", **of_job, **changes})
    return job, make_strategy(**{"micro_batch": 2, **of_strategy})


def traced(job, strategy, kernels):
    from brimful.simulate.on_demand import trace_needs

    needs = needs_of(job, strategy)
    trace_needs(job, strategy.attention, kernels, needs, watch=lambda _state: None)


@pytest.mark.few(only=["one"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_sent_is_predicted_as_it_is_simulated(case):
    from brimful.simulate.run import simulate

    (job, strategy), cluster = settings(case), make_cluster("cuda")
    traced(job, strategy, "cuda")
    assert not missing_formula(job, strategy, cluster.device)
    predicted, simulated = estimate(job, cluster, strategy), simulate(job, cluster, strategy)
    peak = simulated.simulated_peak_allocated_bytes
    assert predicted.predicted_peak_allocated_bytes == pytest.approx(peak, rel=1e-3)
    reserved = simulated.reserved.simulated_peak_reserved_bytes
    assert predicted_reserved(
        job, cluster, strategy
    ).predicted_peak_reserved_bytes == pytest.approx(reserved, rel=0.02)


@pytest.mark.parametrize(
    ("case", "seq_len", "micro_batch"),
    [("all", 154, 12), ("more than are checkpointed", 30, 1), ("experts", 77, 3)],
)
def test_short_texts_send_as_they_are_simulated(case, seq_len, micro_batch):
    """A statistic of a norm is of fewer bytes than a constant has to have, and is sent as well."""
    from brimful.simulate.run import simulate

    (job, strategy), cluster = settings(case, longest=154, seq_len=seq_len), make_cluster("cuda")
    strategy = msgspec.structs.replace(strategy, micro_batch=micro_batch)
    job = msgspec.structs.replace(job, global_batch=2 * micro_batch)
    traced(job, strategy, "cuda")
    assert not missing_formula(job, strategy, cluster.device)
    peak = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    assert predicted == pytest.approx(peak, rel=1e-3)


@pytest.mark.long  # the same program on a card is above
@pytest.mark.parametrize("case", ["some", "more than are checkpointed", "adapters"])
def test_a_cpu_sends_too(case):
    from brimful.simulate.run import simulate

    (job, strategy), cluster = settings(case), make_cluster("cpu")
    traced(job, strategy, "cpu")
    peak = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    assert predicted == pytest.approx(peak, rel=1e-3)


@pytest.mark.few(only=["all"])
@pytest.mark.parametrize("case", ["all", "fewer than are checkpointed", "experts"])
def test_the_host_has_room_for_every_copy(case):
    from brimful.simulate.run import simulate

    (job, strategy), cluster = settings(case), make_cluster("cuda")
    traced(job, strategy, "cuda")
    host = estimate(job, cluster, strategy).host
    held = {item.name: item.num_bytes for item in host.items}
    simulated = simulate(job, cluster, strategy)
    assert held[SAVED_ACTIVATIONS] == simulated.simulated_host_block_bytes


def test_the_same_work_is_done():
    (job, strategy), cluster = settings("all"), make_cluster("cuda")
    traced(job, strategy, "cuda")
    here = msgspec.structs.replace(strategy, offload="none")
    assert step_flops(job, cluster, strategy) == step_flops(job, cluster, here) > 0
