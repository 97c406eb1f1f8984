"""Hidden tokens of an encoder: the formulas that are traced for them, against the simulation."""

import pytest

from brimful.cost.estimate import estimate
from brimful.cost.formula import missing_formula
from brimful.cost.own_programs import needs_of
from brimful.cost.reserved import predicted_reserved
from brimful.models.config import for_task, layout_of, read_config
from brimful.models.traced import find_built
from samples import make_adapter, make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

BERT = {
    "model_type": "bert", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4,
    "num_attention_heads": 4, "vocab_size": 304, "max_position_embeddings": 512,
}  # fmt: skip
ROBERTA = BERT | {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
ESM = ROBERTA | {
    "model_type": "esm", "mask_token_id": 4, "token_dropout": True,
    "position_embedding_type": "rotary",
}  # fmt: skip
NUMBERS = 24 * 2**10
"""Of positions and kinds of tokens: buffers that are counted in no model that is described here."""
CASES = {
    "plain": (BERT, {}, {"micro_batch": 2}),
    "chunks": (BERT, {}, {"micro_batch": 4, "loss_chunks": 8}),
    "again": (BERT, {}, {"micro_batch": 1, "activation_checkpointing": "full:2"}),
    "adapters": (BERT, {"method": "lora", "adapter": make_adapter(rank=8)}, {"micro_batch": 2}),
    "another head": (ROBERTA, {"precision": "bf16"}, {"micro_batch": 2}),
    "a head that hides": (ESM, {}, {"micro_batch": 2}),
    "sharded": (
        BERT,
        {"global_batch": 16},
        {"micro_batch": 2, "dp_shard": 8, "zero": 3, "activation_checkpointing": "full"},
    ),
}  # fmt: skip


def job_of(config, **changes):
    model = for_task(read_config(f"tiny-{config['model_type']}", config), "masked-lm")
    settings = {"task": "masked-lm", "packing": "wrapped", "precision": "bf16-mixed"}
    return make_job(model=model, **{**settings, "seq_len": 512, **changes})


def traced(job, strategy):
    from brimful.simulate.on_demand import trace_needs

    trace_needs(job, strategy.attention, "cuda", needs_of(job, strategy), watch=lambda _state: None)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
@pytest.mark.few(only=["chunks", "a head that hides"])  # of whole logits is the second
@pytest.mark.parametrize("case", CASES)
def test_hidden_tokens_are_predicted_as_they_are_simulated(case):
    from brimful.simulate.run import simulate

    config, changes, how = CASES[case]
    job, cluster = job_of(config, **changes), make_cluster("cuda")
    strategy = make_strategy(attention="sdpa", **how)
    traced(job, strategy)
    assert not missing_formula(job, strategy, cluster.device)
    expected = simulate(job, cluster, strategy)
    predicted = estimate(job, cluster, strategy)
    assert predicted.predicted_peak_allocated_bytes == pytest.approx(
        expected.simulated_peak_allocated_bytes, rel=1e-4, abs=NUMBERS
    )
    reserved = predicted_reserved(job, cluster, strategy)
    assert reserved.predicted_peak_reserved_bytes == pytest.approx(
        expected.reserved.simulated_peak_reserved_bytes, rel=1e-2
    )


def test_the_layout_that_is_read_off_is_the_one_that_is_described():
    job, strategy = job_of(BERT), make_strategy(attention="sdpa", micro_batch=2)
    traced(job, strategy)
    read, told = find_built(job.model).layout, layout_of(job.model)
    assert read.embedding == told.embedding
    assert read.blocks == told.blocks
    assert sorted(read.final + read.head) == sorted(told.final + told.head)
