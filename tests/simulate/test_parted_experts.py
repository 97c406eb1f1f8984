"""Devices that part the experts of what ships no profile: predicted by a trace, and simulated."""

import random

import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.exchange import sent_of
from brimful.cost.expert_exchange import expert_messages
from brimful.cost.family import family_of
from brimful.cost.formula import missing_formula
from brimful.cost.own_programs import missing_needs, needs_of
from brimful.cost.reserved import predicted_reserved
from brimful.errors import UnsupportedError
from brimful.models.config import experts_of, read_config
from brimful.techniques.runnable import check_strategy
from brimful.values.results import WORKSPACES
from brimful.values.strategy import data_parallel, num_micro_batches, world_size
from samples import make_adapter, make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

SIZES = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64,
    "num_key_value_heads": 2, "moe_intermediate_size": 192, "num_experts_per_tok": 2,
    "vocab_size": 2000, "max_position_embeddings": 2048, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32, "v_head_dim": 32, "head_dim": 16,
}  # fmt: skip
ROUTED = {"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 2, "topk_group": 1}
MODELS = {
    "deepseek_v3": {**LATENT, **ROUTED, "num_hidden_layers": 4, "first_k_dense_replace": 1},
    "gpt_oss": {"num_hidden_layers": 4, "num_local_experts": 8, "intermediate_size": 192},
    "glm4_moe": {**ROUTED, "num_hidden_layers": 6, "first_k_dense_replace": 2},
    "ernie4_5_moe": {
        "num_hidden_layers": 6, "moe_num_experts": 8, "moe_k": 2, "moe_layer_interval": 2,
        "moe_layer_start_index": 1, "moe_layer_end_index": 5,
    },
    "qwen3_next": {
        "num_hidden_layers": 4, "num_experts": 8, "shared_expert_intermediate_size": 128,
        "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
    "lfm2_moe": {
        "num_hidden_layers": 5, "num_dense_layers": 1, "num_experts": 8,
        "layer_types": ["conv", "conv", "full_attention", "conv", "full_attention"],
    },
    "olmoe": {"num_hidden_layers": 4, "num_experts": 8, "intermediate_size": 192},
}  # fmt: skip
"""Dense first blocks, dense blocks between others, biases, windows, recurrences, shared experts."""
LAYOUTS = (
    {"dp_shard": 8, "ep": 8},  # each device alone with its experts
    {"dp_shard": 8, "ep": 4},
    {"dp_shard": 6, "ep": 2},  # by rows
    {"dp_shard": 32, "ep": 2},
    {"dp_replicate": 2, "dp_shard": 4, "ep": 2},
)
NUM_DRAWN = 40
FEW = {
    "dense first": ("deepseek_v3", "bf16-mixed", "full", {"activation_checkpointing": "full"}),
    "dense between, by rows": (
        "ernie4_5_moe", "fp32", "full", {"dp_shard": 6, "ep": 2, "accumulate": "hold"},
    ),
    "biases, alone": ("gpt_oss", "bf16", "qlora", {"dp_shard": 8, "ep": 8, "zero": 2}),
    "all alike, in groups": ("olmoe", "bf16-mixed", "full", {}),
}  # fmt: skip
PEAK_SHARE, RESERVED_SHARE, SENT_SHARE = 1e-3, 0.02, 5e-3
"""Of a token and an expert weights of four bytes are taken for two, beside a row of hundreds."""


def settings(kind, precision, method, strategy, *, num_batches=2):
    model = read_config(f"tiny-{kind}", {**SIZES, **MODELS[kind], "model_type": kind})
    spread = {"zero": 3, "dp_shard": 8, "ep": 4, **strategy}
    attention = "eager" if kind == "gpt_oss" else "sdpa"
    strategy = make_strategy(**{"micro_batch": 2, "attention": attention, **spread})
    base = "nf4-double" if method == "qlora" else "same"
    job = make_job(
        model=model,
        precision=precision,
        method=method,
        adapter=None if method == "full" else make_adapter(rank=8, base=base),
        seq_len=256,
        global_batch=strategy.micro_batch * num_batches * data_parallel(strategy),
    )
    cluster = msgspec.structs.replace(make_cluster("cuda"), num_devices=world_size(strategy))
    return job, cluster, check_strategy(job, strategy)


def draw(number):
    """Draw a job whose experts are parted; models take turns."""
    rng = random.Random(number)  # noqa: S311 - cases, not secrets
    kind = list(MODELS)[number % len(MODELS)]
    num_layers = MODELS[kind]["num_hidden_layers"]
    some = rng.randint(1, num_layers - 1)
    blocks = ("none", "full", f"full:{some}", "selective", f"selective:{some}")
    strategy = {
        "micro_batch": rng.choice((1, 2, 3)),
        "activation_checkpointing": rng.choice(blocks),
        "loss_chunks": rng.choice((1, 1, 2, 4)),
        "zero": rng.choice((2, 3)),
        "accumulate": rng.choice(("hold", "reduce-each")),
        **rng.choice(LAYOUTS),
    }
    precision = rng.choice(("bf16-mixed", "fp32", "bf16"))
    if kind == "ernie4_5_moe" and precision == "bf16":
        precision = "fp32"  # its routers are in fp32, which FSDP2 does not gather beside bf16
    method = rng.choice(("full", "full", "lora", "qlora"))
    return settings(kind, precision, method, strategy, num_batches=rng.choice((1, 2, 3)))


def traced(job, strategy):
    from brimful.simulate.on_demand import trace_needs

    needs = needs_of(job, strategy)
    trace_needs(job, strategy.attention, "cuda", needs, watch=lambda _state: None)


def compare(job, cluster, strategy):
    from brimful.simulate.run import simulate

    traced(job, strategy)
    assert not missing_formula(job, strategy, cluster.device)
    predicted, simulated = estimate(job, cluster, strategy), simulate(job, cluster, strategy)
    peak = simulated.simulated_peak_allocated_bytes
    beside = sum(item.num_bytes for item in simulated.items if item.name == WORKSPACES)
    off = abs(predicted.predicted_peak_allocated_bytes - peak)
    assert off <= PEAK_SHARE * (peak - beside)
    reserved = predicted_reserved(job, cluster, strategy).predicted_peak_reserved_bytes
    assert reserved == pytest.approx(
        simulated.reserved.simulated_peak_reserved_bytes, rel=RESERVED_SHARE
    )
    found = {message.kind: message.num_bytes for message in simulated.collectives}
    sent = sent_of(job, family_of(job, strategy))
    each = sum(float((m.times * m.num_bytes).sum()) for m in expert_messages(job, sent))
    sent_bytes = num_micro_batches(job, strategy) * each
    assert sent_bytes == pytest.approx(found["all-to-all"], rel=SENT_SHARE)


@pytest.mark.few(only=["all alike, in groups"])
@pytest.mark.parametrize("case", FEW)
def test_what_parts_experts_is_predicted_as_it_is_simulated(case):
    compare(*settings(*FEW[case]))


@pytest.mark.long
@pytest.mark.parametrize("number", range(NUM_DRAWN))
def test_drawn_jobs_are_predicted_as_they_are_simulated(number):
    compare(*draw(number))


def test_experts_are_read_off_a_model_that_was_built():
    from brimful.build.layout import read_built

    job, _, strategy = settings("ernie4_5_moe", "bf16", "full", {})
    read_built(job, strategy.attention)
    found = experts_of(job.model)
    assert found[:3] == (8, 2, 192)
    assert found.sparse_blocks == (1, 3, 5)


def test_a_class_with_experts_of_its_own_is_refused_in_a_sentence():
    own = {"num_local_experts": 4, "num_hidden_layers": 2, "intermediate_size_mlp": 512}
    model = read_config("tiny-llama4", {**SIZES, **own, "model_type": "llama4_text"})
    job = make_job(model=model, seq_len=256, global_batch=8)
    strategy = make_strategy(zero=3, dp_shard=4, ep=4)
    with pytest.raises(UnsupportedError, match=r"does not run as one grouped product; use ep=1"):
        traced(job, check_strategy(job, strategy))
    every = {need._replace(ep=ep) for need in needs_of(job, strategy) for ep in (1, 4)}
    left = missing_needs(job, "sdpa", "cuda", every)  # of a search, which goes on without it
    assert {need.ep for need in left} == {1}
    with pytest.raises(UnsupportedError, match="use ep=1"):  # at the door, once it was built
        check_strategy(job, strategy)
