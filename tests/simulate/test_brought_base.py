"""A frozen base on the host where its coming and going was not derived: predicted by a trace."""

import pytest
from msgspec.structs import replace

from brimful.cost.base_copies import base_sizes
from brimful.cost.estimate import estimate
from brimful.cost.family import family_of
from brimful.cost.formula import missing_formula
from brimful.cost.memory import profile_for
from brimful.cost.needed import needed
from brimful.cost.on_host import copied_of, on_host
from brimful.cost.reserved import predicted_reserved
from brimful.cost.sent_activations import sent_activations
from brimful.models.config import read_config
from brimful.values.strategy import world_size
from samples import make_adapter, make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

SIZES = {
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 304, "num_local_experts": 4,
    "num_experts_per_tok": 2, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    "max_position_embeddings": 4096,
}  # fmt: skip
PLAIN, CAST, PACKED = ("same", "bf16"), ("same", "bf16-mixed"), ("nf4-double", "bf16-mixed")
CASES = {
    "some blocks": ("llama", PLAIN, {"offload": "parameters:4"}),
    "one block": ("llama", PACKED, {"offload": "parameters:1"}),
    "all but one, computed again": (
        "llama", PACKED, {"offload": "parameters:5", "activation_checkpointing": "full"},
    ),
    "some, and others computed again": (
        "llama", PACKED, {"offload": "parameters:2", "activation_checkpointing": "selective:4"},
    ),
    "cast by autocast": ("llama", CAST, {"offload": "parameters"}),
    "cast and computed again": (
        "llama", CAST, {"offload": "parameters", "activation_checkpointing": "full"},
    ),
    "blocks of several kinds": ("gemma2", CAST, {"offload": "parameters", "attention": "eager"}),
    "experts": ("mixtral", CAST, {"offload": "parameters:3"}),
    "beside what others send": (
        "llama", PLAIN, {"offload": "parameters:2,activations:4", "accumulate": "hold"},
    ),
    "with the optimizer": ("llama", PACKED, {"offload": "optimizer,parameters:3"}),
    "several devices": ("llama", PACKED, {"offload": "parameters:3", "dp_replicate": 2}),
}  # fmt: skip


def asked(name, **adapter):
    model_type, (base, precision), how = CASES[name]
    strategy = make_strategy(**{"micro_batch": 2, **how})
    job = make_job(
        model=read_config(f"tiny-{model_type}", {**SIZES, "model_type": model_type}),
        seq_len=512,
        global_batch=4 * world_size(strategy),
        precision=precision,
        method="qlora" if base == "nf4-double" else "lora",
        adapter=make_adapter(rank=8, base=base, **adapter),
    )
    num = world_size(strategy)
    return job, strategy, replace(make_cluster("cuda"), num_devices=num, devices_per_node=num)


def traced(job, strategy):
    from brimful.simulate.on_demand import trace_needs

    trace_needs(job, strategy.attention, "cuda", needed(job, strategy), watch=lambda _state: None)


@pytest.mark.few(only=["beside what others send"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_brought_is_predicted_as_it_is_simulated(name):
    from brimful.simulate.run import simulate

    job, strategy, cluster = asked(name)
    traced(job, strategy)
    assert not missing_formula(job, strategy, cluster.device)
    predicted, simulated = estimate(job, cluster, strategy), simulate(job, cluster, strategy)
    peak = simulated.simulated_peak_allocated_bytes
    assert predicted.predicted_peak_allocated_bytes == pytest.approx(peak, rel=1e-3)
    reserved = simulated.reserved.simulated_peak_reserved_bytes
    assert predicted_reserved(
        job, cluster, strategy
    ).predicted_peak_reserved_bytes == pytest.approx(reserved, rel=0.02)
    profile = profile_for(job, strategy.attention, cluster.device, family_of(job, strategy))
    sent = sent_activations(job, profile, family_of(job, strategy))
    held = sum(on_host(job, family_of(job, strategy), pins=False, sent=sent))
    assert held == pytest.approx(simulated.simulated_peak_host_bytes, rel=0.01)


def test_adapters_on_some_layers_show_nothing_and_are_traced():
    from brimful.simulate.run import simulate

    job, strategy, cluster = asked("some blocks", targets=("q_proj", "v_proj"))
    traced(job, strategy)
    peak = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    assert predicted == pytest.approx(peak, rel=1e-3)


def test_what_is_brought_is_no_activation_that_comes_back():
    job, strategy, cluster = asked("beside what others send")
    traced(job, strategy)
    family = family_of(job, strategy)
    sent = sent_activations(job, profile_for(job, "sdpa", cluster.device, family), family)
    assert sent.to_device == sum(sent.sizes) > 0
    copied = copied_of(job, family, sent)
    assert copied.to_device == 2 * (sent.to_device + 2 * sum(base_sizes(job, 2)))
    assert sum(base_sizes(job, 2)) * 3 == sum(base_sizes(job))
