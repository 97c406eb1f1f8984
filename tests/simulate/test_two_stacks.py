"""Encoder-decoders, whose two stacks are traced as one sequence of blocks, against the simulation.

What is learnt is a pair of texts, each as long as ``seq_len`` says.
"""

import pytest

from brimful.cost.estimate import estimate
from brimful.cost.family import bodies_of
from brimful.cost.formula import missing_formula
from brimful.cost.own_programs import needs_of
from brimful.cost.reserved import predicted_reserved
from brimful.models.config import layout_of, read_config
from brimful.models.traced import find_built
from brimful.search.lean import ladder
from brimful.search.pins import Pins
from brimful.search.solve import tabulate
from brimful.search.space import grids, needs
from brimful.search.table import strategy_at
from samples import make_adapter, make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

T5 = {
    "model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 160, "num_layers": 3, "num_heads": 4,
    "vocab_size": 304, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
}  # fmt: skip
SWITCH = {
    "model_type": "switch_transformers", "d_model": 64, "d_kv": 16, "d_ff": 160, "num_layers": 4,
    "num_sparse_encoder_layers": 2, "num_decoder_layers": 4, "num_sparse_decoder_layers": 2,
    "num_heads": 4, "vocab_size": 304, "num_experts": 4,
}  # fmt: skip
BART = {
    "model_type": "bart", "d_model": 64, "encoder_layers": 4, "decoder_layers": 3,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 160,
    "decoder_ffn_dim": 160, "vocab_size": 304, "max_position_embeddings": 1024,
}  # fmt: skip
EVEN = T5 | {"num_layers": 5}
UNEVEN = EVEN | {"num_decoder_layers": 2}
LORA = {"method": "lora", "adapter": make_adapter(rank=8)}
CASES = {
    "plain": (T5, {}, {"micro_batch": 2}),
    "alone": (T5, {}, {"micro_batch": 1, "activation_checkpointing": "full"}),
    "selective": (T5, {}, {"micro_batch": 2, "activation_checkpointing": "selective"}),
    "chunks": (T5, {}, {"micro_batch": 2, "loss_chunks": 4}),
    "tied": (
        T5 | {"tie_word_embeddings": True, "feed_forward_proj": "relu"}, {}, {"micro_batch": 2}
    ),
    "uneven": (
        T5 | {"num_decoder_layers": 2}, {}, {"micro_batch": 1, "activation_checkpointing": "full"}
    ),
    "adapters": (T5, LORA, {"micro_batch": 2, "activation_checkpointing": "full"}),
    "halves": (T5, {"precision": "bf16"}, {"micro_batch": 2}),
    "sharded": (
        T5,
        {"global_batch": 16},
        {"micro_batch": 2, "dp_shard": 8, "zero": 3, "activation_checkpointing": "full"},
    ),
    "another class": (BART, {}, {"micro_batch": 2}),
    "another, sharded": (
        BART,
        {"global_batch": 16},
        {"micro_batch": 2, "dp_shard": 8, "zero": 3, "activation_checkpointing": "full"},
    ),
    "what each hands to the next, sharded": (
        BART | {"encoder_layers": 5, "decoder_layers": 5},
        {"global_batch": 32, "precision": "bf16", **LORA},
        {"micro_batch": 2, "dp_shard": 8, "zero": 2, "activation_checkpointing": "full"},
    ),
    "experts": (SWITCH, {}, {"micro_batch": 2}),
    **{
        f"{how} of 5 + {5 if even else 2}": (
            EVEN if even else UNEVEN, {}, {"micro_batch": 2, "activation_checkpointing": how}
        )
        for how, even in {
            "full:1": True, "full:2": False, "full:3": True, "full:4": True, "full:5": True,
            "full:6": False, "full:7": True, "full:8": True, "selective:3": True,
            "selective:4": False, "selective:5": False, "selective:6": True, "selective:9": True,
        }.items()
    },
    "some, sharded": (
        EVEN,
        {"global_batch": 16, "precision": "bf16"},
        {"micro_batch": 2, "dp_shard": 8, "zero": 3, "activation_checkpointing": "full:7"},
    ),
    "some of another class": (
        BART | {"encoder_layers": 5}, {}, {"micro_batch": 2, "activation_checkpointing": "full:3"}
    ),
    "some with experts": (
        SWITCH | {"num_layers": 6}, {}, {"micro_batch": 2, "activation_checkpointing": "full:8"}
    ),
    "replicas": (T5, {"global_batch": 8}, {"micro_batch": 1, "dp_replicate": 8, "zero": 0}),
}  # fmt: skip


def job_of(config, **changes):
    model = read_config(f"tiny-{config['model_type']}", config)
    settings = {"task": "seq2seq", "packing": "none", "precision": "bf16-mixed", "seq_len": 512}
    return make_job(model=model, **settings | changes)


def traced(job, strategy):
    from brimful.simulate.on_demand import trace_needs

    trace_needs(job, strategy.attention, "cuda", needs_of(job, strategy), watch=lambda _state: None)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
@pytest.mark.few(only=["what each hands to the next, sharded", "uneven", "full:8 of 5 + 5"])
@pytest.mark.parametrize("case", CASES)
def test_two_stacks_are_predicted_as_they_are_simulated(case):
    from brimful.simulate.run import simulate

    config, changes, how = CASES[case]
    job, cluster = job_of(config, **changes), make_cluster("cuda")
    strategy = make_strategy(attention="eager", **how)
    traced(job, strategy)
    assert not missing_formula(job, strategy, cluster.device)
    expected = simulate(job, cluster, strategy)
    predicted = estimate(job, cluster, strategy)
    assert predicted.predicted_peak_allocated_bytes == pytest.approx(
        expected.simulated_peak_allocated_bytes, rel=1e-4
    )
    assert predicted_reserved(
        job, cluster, strategy
    ).predicted_peak_reserved_bytes == pytest.approx(
        expected.reserved.simulated_peak_reserved_bytes, rel=1e-2
    )


def test_the_layout_that_is_read_off_is_the_one_that_is_described():
    job, strategy = job_of(T5), make_strategy(attention="eager", micro_batch=2)
    traced(job, strategy)
    built = find_built(job.model)
    assert built.layout == layout_of(job.model)
    assert built.kinds == (0, 1, 1, 2, 3, 3)


def test_a_search_tries_numbers_that_share_a_program():
    job, cluster = job_of(T5 | {"num_layers": 6, "num_decoder_layers": 5}), make_cluster("cuda")
    assert {need.body for need in needs(job, [Pins()], "eager", cluster)} == {
        "plain", "mixed", "later-mixed", "checkpointed"
    }  # fmt: skip
    assert list(bodies_of(job)["mixed"]) == [3, 4]
    assert list(bodies_of(job)["later-mixed"]) == [9]
    asked = needs(job, [Pins(activation_checkpointing="full:7")], "eager", cluster)
    assert {need.body for need in asked} == {"plain", "7 checkpointed"}
    leaner = ladder(job, cluster, make_strategy(attention="eager"))
    assert {each.activation_checkpointing for each in leaner} == {
        "none", "selective", "full:5", "full"
    }  # fmt: skip


@pytest.mark.long  # tables of other models are compared in tests/search
def test_a_search_over_two_stacks_is_its_estimates():
    from brimful.simulate.on_demand import trace_needs

    job, cluster = job_of(EVEN, global_batch=4), make_cluster("cuda")
    pins = Pins(loss_chunks=1)
    asked = needs(job, [pins], "eager", cluster)
    trace_needs(job, "eager", "cuda", asked, watch=lambda _state: None)
    table = tabulate(job, cluster, "eager", grids(job, pins, attention="eager", cluster=cluster))
    assert set(table.num_blocks.tolist()) == {0, 3, 8, 10}
    for row in range(len(table.peak_bytes)):
        strategy = strategy_at(job, table, row, "eager")
        assert not missing_formula(job, strategy, cluster.device)
        alone = estimate(job, cluster, strategy)
        assert round(table.peak_bytes[row]) == alone.predicted_peak_allocated_bytes, strategy
        assert table.step_s[row] == pytest.approx(alone.predicted_step_s, rel=1e-9)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # of the last block of the encoder
def test_a_router_in_fp32_is_gathered_where_the_rest_is_in_16_bits():
    """It was passed by, and its layer met a shard of its weight."""
    from brimful.simulate.run import simulate

    few = {"num_layers": 1, "num_decoder_layers": 1, "num_experts": 2}
    few |= {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    job = job_of(SWITCH | few, precision="bf16", seq_len=64, global_batch=4)
    strategy = make_strategy(micro_batch=2, attention="eager", zero=3, dp_shard=2)
    assert simulate(job, make_cluster("cuda"), strategy).simulated_peak_allocated_bytes
