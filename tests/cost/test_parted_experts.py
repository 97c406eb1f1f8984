"""Devices that part experts, on the first rung: formulas give what one of them takes and sends."""

import random
from math import prod

import msgspec
import numpy as np
import pytest

from brimful.cost.estimate import estimate, estimate_or_none
from brimful.cost.exchange import sent_of
from brimful.cost.expert_exchange import expert_messages, experts_seconds
from brimful.cost.expert_shards import held_shapes, is_by_rows, part_experts, shard_shape
from brimful.cost.family import family_of
from brimful.cost.formula import missing_formula
from brimful.cost.saved import saved_sizes
from brimful.cost.states import states_of, updates_of
from brimful.cost.trained import trained_shapes
from brimful.hardware.gpus import load_cluster
from brimful.models.config import layout_of, read_config
from brimful.models.layout import all_parameters
from brimful.techniques.runnable import check_strategy
from brimful.values.results import GATHERED, OPTIMIZER_STATE, PARAMETERS, REDUCED, WORKSPACES
from brimful.values.strategy import data_parallel, num_micro_batches, world_size
from samples import make_adapter, make_cluster, make_job, make_strategy

NUM_CASES = 48
PEAK_SHARE = 5e-4
"""Of the peak without workspaces; the bar is 1 %."""
ALONE_SHARE = 0.01
"""Where a device has its experts alone: one of eight such cases is 0.63 % too high."""
BUFFER_BYTES = 1024
ADAMW_STEP_BYTES = 4
RANDOM_STATES = 8192
KINDS = ("mixtral", "qwen3_moe")
RECIPES = ("bf16", "bf16-mixed", "bf16-master", "fp32")
ALONE, BY_EXPERT, BY_ROWS, REPLICAS = "alone", "by expert", "by rows", "replicas"
LAYOUTS = (
    (ALONE, {"dp_shard": 4, "ep": 4}, 8),
    (BY_EXPERT, {"dp_shard": 4, "ep": 2}, 8),
    (BY_EXPERT, {"dp_shard": 6, "ep": 2}, 12),
    (BY_ROWS, {"dp_shard": 16, "ep": 4}, 8),
    (BY_ROWS, {"dp_shard": 8, "ep": 2}, 6),
    (REPLICAS, {"dp_replicate": 2, "dp_shard": 4, "ep": 2}, 8),
    (REPLICAS, {"dp_replicate": 2, "dp_shard": 2, "ep": 2}, 4),
)
"""How the devices share a stack of experts, their degrees, and the experts of a block."""


def mixture(rng, kind, num_experts):
    """Draw a model of a kind, whose heads are grouped."""
    heads, head_dim = rng.choice((4, 6)), rng.choice((32, 64))
    width = rng.choice((128, 192))
    fields = {
        "model_type": kind,
        "hidden_size": rng.choice((256, 384)),
        "head_dim": head_dim,
        "intermediate_size": width,
        "num_hidden_layers": rng.choice((2, 3, 5)),
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "num_experts_per_tok": rng.choice((1, 2, 3)),
        "vocab_size": rng.choice((1001, 2048)),
        "max_position_embeddings": 2048,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    own = {"num_local_experts": num_experts}
    if kind == "qwen3_moe":
        own = {
            "num_experts": num_experts, "moe_intermediate_size": width, "norm_topk_prob": True,
        }  # fmt: skip
    return read_config(f"tiny-{kind}", {**fields, **own})


def draw(number):
    """Draw a job, a cluster and a strategy whose experts are parted; recipes take turns."""
    rng = random.Random(number)  # noqa: S311 - cases, not secrets
    precision, (_, degrees, num_experts) = RECIPES[number % len(RECIPES)], rng.choice(LAYOUTS)
    model = mixture(rng, KINDS[number // len(RECIPES) % len(KINDS)], num_experts)
    blocks = ("none", "full", "selective", f"full:{rng.randint(1, model.num_layers)}")
    strategy = make_strategy(
        micro_batch=rng.choice((2, 3) if precision == "fp32" else (1, 2)),
        activation_checkpointing=rng.choice(blocks),
        loss_chunks=rng.choice((1, 1, 2, 4)),
        zero=rng.choice((2, 3)),
        accumulate=rng.choice(("hold", "reduce-each", "reduce-each")),
        **degrees,
    )
    job = make_job(
        model=model,
        precision=precision,
        optimizer=rng.choice(("adamw", "adamw-foreach")),
        seq_len=rng.choice((128, 256)),
        global_batch=strategy.micro_batch * rng.choice((1, 2, 3)) * data_parallel(strategy),
    )
    cluster = msgspec.structs.replace(make_cluster("cuda"), num_devices=world_size(strategy))
    return job, cluster, check_strategy(job, strategy)


def items(found):
    return {item.name: item.num_bytes for item in found}


def compare(job, cluster, strategy):
    """Return by what share of the peak the prediction is off; workspaces apart."""
    from brimful.simulate.run import simulate

    predicted, simulated = estimate(job, cluster, strategy), simulate(job, cluster, strategy)
    said, truth = items(predicted.items), items(simulated.items)
    is_alone = strategy.ep == strategy.dp_shard
    for item in (PARAMETERS,) if is_alone else (PARAMETERS, GATHERED, REDUCED):
        # What a device copies alone, the simulation cannot tell from what a forward makes.
        assert said.get(item, 0) == truth.get(item, 0), item
    steps = truth.get(OPTIMIZER_STATE, 0) - said.get(OPTIMIZER_STATE, 0)
    num_parameters = len(list(all_parameters(layout_of(job.model))))
    assert 0 <= steps <= ADAMW_STEP_BYTES * num_parameters
    said_phases = {phase.phase: phase.num_bytes for phase in predicted.phases}
    loaded = next(phase.num_bytes for phase in simulated.phases if phase.phase == "load")
    assert 0 <= loaded - said_phases["load"] <= BUFFER_BYTES
    found = {message.kind: message.num_bytes for message in simulated.collectives}
    assert sent_to_experts(job, strategy) == found["all-to-all"]
    peak = simulated.simulated_peak_allocated_bytes
    off = predicted.predicted_peak_allocated_bytes - peak
    return off / (peak - truth.get(WORKSPACES, 0))


def sent_to_experts(job, strategy):
    """Return the bytes that a device sends to experts and back in a step."""
    sent = sent_of(job, family_of(job, strategy))
    each = sum(float(np.sum(m.times * m.num_bytes)) for m in expert_messages(job, sent))
    return num_micro_batches(job, strategy) * each


@pytest.mark.torch
@pytest.mark.few(only=["24"])
@pytest.mark.parametrize("number", [n for n in range(NUM_CASES) if draw(n)[0].precision != "fp32"])
def test_the_prediction_of_adapters_is_the_simulation(number):
    (job, cluster, strategy), base = draw(number), ("same", "nf4-double")[number // 8 % 2]
    job = msgspec.structs.replace(
        job, method="lora" if base == "same" else "qlora", adapter=make_adapter(base=base)
    )
    is_alone = strategy.ep == strategy.dp_shard
    assert abs(compare(job, cluster, strategy)) <= (ALONE_SHARE if is_alone else PEAK_SHARE)


@pytest.mark.torch
@pytest.mark.few(only=["16"])
@pytest.mark.parametrize("number", range(NUM_CASES))
def test_the_prediction_is_the_simulation(number):
    job, cluster, strategy = draw(number)
    is_alone = strategy.ep == strategy.dp_shard
    assert abs(compare(job, cluster, strategy)) <= (ALONE_SHARE if is_alone else PEAK_SHARE)


def test_every_kind_of_case_is_drawn_and_has_a_formula():
    cases = [draw(number) for number in range(NUM_CASES)]
    assert not [
        missing_formula(j, s, c.device) for j, c, s in cases if estimate_or_none(j, c, s) is None
    ]
    strategies = [strategy for _, _, strategy in cases]
    assert {s.zero for s in strategies} == {2, 3}
    assert {(s.dp_replicate, s.dp_shard, s.ep) for s in strategies} == {
        (degrees.get("dp_replicate", 1), degrees["dp_shard"], degrees["ep"])
        for _, degrees, _ in LAYOUTS
    }
    assert {s.activation_checkpointing.partition(":")[0] for s in strategies} == {
        "none", "full", "selective",
    }  # fmt: skip


@pytest.mark.parametrize(("how", "degrees", "num_experts"), LAYOUTS)
def test_all_shards_of_a_stack_are_the_stack(how, degrees, num_experts):
    rng = random.Random(1)  # noqa: S311 - cases, not secrets
    job = make_job(model=mixture(rng, "qwen3_moe", num_experts))
    num_same = degrees["dp_shard"] // degrees["ep"]
    for stack in part_experts(job, degrees["ep"])[0]:
        assert stack[0] * degrees["ep"] == num_experts
        assert num_same * prod(shard_shape(stack, num_same)) == prod(stack)
        assert is_by_rows(stack, num_same) == (how == BY_ROWS)


def test_more_devices_with_the_same_experts_hold_less_each():
    job, _, strategy = draw(0)
    family, parameters = family_of(job, strategy), tuple(all_parameters(layout_of(job.model)))
    held = [
        sum(map(prod, held_shapes(parameters, family._replace(ep=2), shards)))
        for shards in (2, 4, 8, 16)
    ]
    assert held == sorted(held, reverse=True)
    whole = sum(parameter.num_elements for parameter in parameters)
    assert all(n * each >= whole for n, each in zip((2, 4, 8, 16), held, strict=True))


@pytest.mark.parametrize("number", range(8))
def test_what_is_saved_is_what_training_holds(number):
    job, cluster, strategy = draw(number)
    held = estimate(job, cluster, strategy).items
    saved = sum(saved_sizes(job, strategy, "cuda"))
    kept = sum(item.num_bytes for item in held if item.name in {PARAMETERS, OPTIMIZER_STATE})
    num_parameters = len(list(all_parameters(layout_of(job.model))))
    assert 0 <= saved - kept <= ADAMW_STEP_BYTES * num_parameters + RANDOM_STATES


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_what_is_saved_of_adapters_is_their_shards_and_a_part_of_the_base(optimizer):
    """All of the base was taken for trained, with state; Muon's ended in an error."""
    job, _, strategy = draw(0)
    changes = {"method": "lora", "adapter": make_adapter(), "optimizer": optimizer}
    job = msgspec.structs.replace(job, precision="bf16", **changes)
    family = family_of(job, strategy)
    updates = updates_of(job, family, make_cluster("cuda").device)
    held = states_of(job, family, updates, "cuda")
    saved = sum(saved_sizes(job, strategy, "cuda"))
    kept = held.frozen[0] + held.trained[0] + held.optimizer_state[0]
    num_adapters = len(trained_shapes(job))
    assert 0 <= saved - kept <= ADAMW_STEP_BYTES * num_adapters + RANDOM_STATES


def test_one_device_sends_no_rows_and_an_unknown_link_is_no_time():
    job, _, strategy = draw(0)
    known = load_cluster("2x8xh100-80gb", memory_limit_bytes=None)
    family = family_of(job, strategy)
    sent = sent_of(job, family)
    assert experts_seconds(job, family._replace(ep=1), known, sent) == 0
    inside, across = (
        experts_seconds(job, family._replace(ep=ep), known, sent._replace(tokens=1e6))
        for ep in (2, 16)
    )
    assert 0 < inside < across
    unknown = msgspec.structs.replace(known, link="")
    assert np.isnan(experts_seconds(job, family, unknown, sent))
    assert estimate(job, unknown, strategy).predicted_step_s is None
    assert estimate(job, known, strategy).predicted_step_s > 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tp": 2, "dp_shard": 2, "ep": 2}, "tp=2"),
    ],
)
def test_what_is_not_predicted_says_so(changes, named):
    job, cluster, strategy = draw(0)
    asked = msgspec.structs.replace(strategy, dp_replicate=1, **changes)
    reason = missing_formula(job, asked, cluster.device)
    assert named in reason
    assert "ep=2" in reason
    assert estimate_or_none(job, cluster, asked) is None
