"""A few blocks, unrolled, are the whole model: for adapters, quantised bases, other decoders."""

import msgspec
import pytest

from brimful.cost.family import family_of
from brimful.cost.on_host import on_host
from brimful.models.config import read_config
from brimful.models.mixtures import known_experts
from brimful.simulate import unrolled
from brimful.simulate.run import simulate, trace
from other_decoders import CONFIGS, EAGER_ONLY
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

NUM_BLOCKS = 7
BASE = make_adapter()


def adapted(precision, base):
    adapter = msgspec.structs.replace(BASE, base=base)
    model = make_model(num_hidden_layers=NUM_BLOCKS)
    return make_job(model=model, method="lora", adapter=adapter, precision=precision)


def other(model_type, **changes):
    config = {**CONFIGS[model_type], "num_hidden_layers": NUM_BLOCKS, **changes}
    return make_job(model=read_config(f"tiny-{model_type}", {"model_type": model_type, **config}))


def attention(job):
    return "eager" if job.model.model_type in EAGER_ONLY else "sdpa"


JOBS = {
    "lora": adapted("bf16", "same"),
    "lora, 16-bit base": adapted("bf16-mixed", "bf16"),
    "nf4": adapted("bf16-mixed", "nf4"),
    "nf4-double": adapted("bf16", "nf4-double"),
    "int8": adapted("bf16", "int8"),
    "LLM.int8()": adapted("bf16", "llm-int8"),
    "mistral": other("mistral"),
    "qwen3": other("qwen3"),
    "phi3": other("phi3"),
    "mixtral": other("mixtral"),
    "gemma2": other("gemma2", num_hidden_layers=13),
    "qwen3 in rounds": other(
        "qwen3",
        num_hidden_layers=13,
        use_sliding_window=True,
        layer_types=["sliding_attention", "full_attention"] * 6 + ["sliding_attention"],
    ),
    "deepseek_v3": other("deepseek_v3", num_hidden_layers=NUM_BLOCKS + 3, first_k_dense_replace=2),
}

ROUNDS = {"gemma2": 2, "qwen3 in rounds": 2}
"""Blocks after which their kinds come round."""


@pytest.mark.few(only=["none-lora"])
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_few_blocks_unrolled_are_the_whole_model(name, checkpointing):
    job = JOBS[name]
    strategy = make_strategy(activation_checkpointing=checkpointing, attention=attention(job))
    depths = []

    def record(job, strategy):
        depths.append(job.model.num_layers)
        return trace(job, strategy, imitate="cuda").recording

    short, whole = unrolled.record_whole(job, strategy, record), record(job, strategy)
    num_layers = job.model.num_layers
    num_first = known_experts(job.model).sparse_blocks[0] if name == "deepseek_v3" else 0
    num_deep = unrolled.NUM_DEEP_PREFIXED if num_first else unrolled.NUM_DEEP
    period = ROUNDS.get(name, 1)
    first = num_first + num_layers % period
    traced = [num_deep * period, unrolled.NUM_SHALLOW * period]
    assert depths == [*(first + num for num in traced), num_layers]
    assert_same(short, whole)


@pytest.mark.few(only=["nf4-double"])
@pytest.mark.parametrize("base", ["same", "nf4-double", "int8"])
def test_a_base_that_is_brought_is_unrolled_where_blocks_are_computed_again(base):
    job, depths = deeper(adapted("bf16", base), 10), []
    strategy = make_strategy(activation_checkpointing="full", offload="parameters")

    def record(job, strategy):
        depths.append(job.model.num_layers)
        return trace(job, strategy, imitate="cuda").recording

    short, whole = unrolled.record_whole(job, strategy, record), record(job, strategy)
    assert depths == [unrolled.NUM_DEEP_AWAY, unrolled.NUM_SHALLOW, 10]
    assert_same(short, whole)


def test_what_is_on_the_host_of_a_base_is_that_of_all_blocks():
    job, cluster = deeper(adapted("bf16", "nf4-double"), 10), make_cluster("cuda")
    strategy = make_strategy(activation_checkpointing="full", offload="parameters")
    held = on_host(job, family_of(job, strategy), pins=False)
    assert simulate(job, cluster, strategy).simulated_peak_host_bytes == held.base


@pytest.mark.parametrize(
    ("how", "counts_costs"),
    [
        ({"activation_checkpointing": "none"}, False),
        ({"activation_checkpointing": "full"}, True),
        ({"activation_checkpointing": "full", "offload": "optimizer,parameters"}, False),
        ({"activation_checkpointing": "full", "dp_replicate": 2}, False),
    ],
    ids=str,
)
def test_all_else_that_is_offloaded_is_traced_whole(how, counts_costs):
    job, depths = deeper(adapted("bf16", "same"), 10), []
    strategy = make_strategy(**{"offload": "parameters", **how})
    unrolled.record_whole(
        job, strategy, lambda job, _: depths.append(job.model.num_layers), counts_costs=counts_costs
    )
    assert depths == [10]


def assert_same(short, whole):
    assert (short.events == whole.events).all()
    assert (short.num_bytes == whole.num_bytes).all()
    assert [short.owners[i] for i in short.owner] == [whole.owners[i] for i in whole.owner]


def deeper(job, num_blocks):
    config = {**job.model.hf_config, "num_hidden_layers": num_blocks}
    model = msgspec.structs.replace(job.model, num_layers=num_blocks, hf_config=config)
    return msgspec.structs.replace(job, model=model)


MIXED = {
    "both cut": ("full:6", 12, 8, 3),
    "selective": ("selective:7", 13, 8, 3),
    "a few plain": ("full:6", 8, 6, 3),
    "a few checkpointed": ("full:2", 9, 6, 3),
}
"""What is checkpointed, of how many blocks; how many are traced, and how many the second time."""


@pytest.mark.long  # rounds of blocks are unrolled so below
@pytest.mark.parametrize(
    "name", [name for name in JOBS if name != "deepseek_v3" and name not in ROUNDS]
)
@pytest.mark.parametrize("mixed", MIXED)
def test_checkpointed_blocks_are_unrolled_apart_from_plain_ones(name, mixed):
    checkpointing, num_blocks, *traced = MIXED[mixed]
    job = deeper(JOBS[name], num_blocks)
    strategy = make_strategy(activation_checkpointing=checkpointing)
    depths = []

    def record(job, strategy):
        depths.append(job.model.num_layers)
        return trace(job, strategy, imitate="cuda").recording

    short, whole = unrolled.record_whole(job, strategy, record), record(job, strategy)
    assert depths == [*traced, num_blocks]
    assert_same(short, whole)


ROUNDS_MIXED = {"full:13": (27, 17, 7), "full:12": (25, 17, 7), "full:3": (16, 12, 6)}
"""What is checkpointed, of how many blocks; how many are traced, and how many the second time."""


@pytest.mark.few(only=["full:3-gemma2"])
@pytest.mark.parametrize("name", ROUNDS)
@pytest.mark.parametrize("checkpointing", ROUNDS_MIXED)
def test_checkpointed_rounds_are_unrolled_apart_from_plain_ones(name, checkpointing):
    num_blocks, *traced = ROUNDS_MIXED[checkpointing]
    kinds = (["sliding_attention", "full_attention"] * num_blocks)[:num_blocks]
    listed = {"layer_types": kinds, "use_sliding_window": True} if name != "gemma2" else {}
    job = other(name.partition(" ")[0], num_hidden_layers=num_blocks, **listed)
    strategy = make_strategy(activation_checkpointing=checkpointing, attention=attention(job))
    depths = []

    def record(job, strategy):
        depths.append(job.model.num_layers)
        return trace(job, strategy, imitate="cuda").recording

    short, whole = unrolled.record_whole(job, strategy, record), record(job, strategy)
    assert depths == [*traced, num_blocks]
    assert_same(short, whole)


DENSE_FIRST = {"full:2": [], "full:8": [(14, "full:8"), (9, "full:8")]}


@pytest.mark.few(only=["full:2"])  # pretend/test_unroll.py unrolls such models
@pytest.mark.parametrize("checkpointing", DENSE_FIRST)
def test_dense_first_blocks_are_of_no_group(checkpointing):
    job = deeper(JOBS["deepseek_v3"], 16)
    strategy, depths = make_strategy(activation_checkpointing=checkpointing), []

    def record(job, strategy):
        depths.append((job.model.num_layers, strategy.activation_checkpointing))
        return trace(job, strategy, imitate="cuda").recording

    short = unrolled.record_whole(job, strategy, record)
    assert [each for each in depths if each[0] < 16] == DENSE_FIRST[checkpointing]
    if DENSE_FIRST[checkpointing]:  # what was traced whole is what it is
        assert_same(short, record(job, strategy))


def test_what_operations_cost_is_not_told_apart_by_two_tapes():
    job, depths = deeper(make_job(), 12), []

    def record(job, strategy):
        depths.append(job.model.num_layers)
        return trace(job, strategy, imitate="cuda", count_costs=True).recording

    strategy = make_strategy(activation_checkpointing="full:6")
    unrolled.record_whole(job, strategy, record, counts_costs=True)
    assert depths == [12]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "job",
    [
        other("qwen2"),
        other("qwen3_moe", mlp_only_layers=[1]),
        other("qwen3", use_sliding_window=True, max_window_layers=3),
    ],
)
def test_blocks_of_several_kinds_are_traced_whole(job):
    depths = []

    def record(job, strategy):
        depths.append(job.model.num_layers)
        return trace(job, strategy, imitate="cuda").recording

    unrolled.record_whole(job, make_strategy(), record)
    assert depths == [NUM_BLOCKS]
