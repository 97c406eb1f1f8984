"""Gradients that never come, that wait for no other; masks and sums that are a class's own."""

import pytest

from brimful.cost.estimate import estimate
from brimful.cost.formula import missing_formula
from brimful.cost.needed import needed
from brimful.cost.states import states
from brimful.cost.trained import learning_shapes, num_learning, num_trained, trained_shapes
from brimful.cost.update import CUDA, update_of
from brimful.models.config import layout_of, read_config
from brimful.models.layout import all_parameters
from brimful.simulate.on_demand import trace_needs
from brimful.simulate.run import simulate
from other_models import make_other_job
from samples import make_adapter, make_cluster, make_strategy

pytestmark = pytest.mark.torch

FEW_BYTES = 2048
"""Numbers of steps, and what norms leave."""

SIZES = {
    "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 2,
    "vocab_size": 997, "max_position_embeddings": 1026, "pad_token_id": 0,
    "id2label": {"0": "a", "1": "b", "2": "c"},
}  # fmt: skip
LUKE = {"entity_vocab_size": 50000, "entity_emb_size": 32}
NARROW = {
    "hidden_size": 256, "intermediate_size": 16, "eos_token_id": 1, "bos_token_id": 1,
    "cls_token_id": 1, "sep_token_id": 1,
}  # fmt: skip
OF_EIGHT = {"global_batch": 32}
ROC_BERT = {"pronunciation_vocab_size": 91, "shape_vocab_size": 2485, "shape_embed_dim": 64}
ZAMBA = {
    "layers_block_type": ["mamba", "hybrid", "hybrid"], "num_mem_blocks": 1, "adapter_rank": 8,
    "num_key_value_heads": 2, "n_mamba_heads": 4, "mamba_d_state": 16, "attention_head_dim": 64,
}  # fmt: skip
CASES = {
    "no gradient of entities": ("luke", LUKE, {"precision": "fp16-mixed", "seq_len": 64}, {}),
    "sharded": ("luke", LUKE, {"precision": "bf16", **OF_EIGHT}, {"dp_shard": 8, "zero": 2}),
    "adapters of what blocks share": (
        "zamba2", ZAMBA,
        {"task": "causal-lm", "precision": "bf16", "method": "lora",
         "adapter": make_adapter(rank=8), **OF_EIGHT},
        {"attention": "sdpa", "dp_shard": 8, "zero": 3},
    ),
    "embeddings that are no head": ("roc_bert", ROC_BERT, OF_EIGHT, {"dp_replicate": 8}),
    "embeddings that read padding": ("esm", {"pad_token_id": 1}, {}, {}),
    "norms without biases": ("modernbert", NARROW, {"seq_len": 1024}, {"attention": "sdpa"}),
    "truths that are counted": (
        "layoutlmv3", {"coordinate_size": 12, "shape_size": 8, "num_attention_heads": 16},
        {"precision": "bf16", "seq_len": 512}, {"activation_checkpointing": "full"},
    ),
}  # fmt: skip


def job_of(model_type, sizes, **changes):
    model = read_config(f"tiny-{model_type}", {**SIZES, **sizes, "model_type": model_type})
    changes = {"precision": "bf16-mixed", "seq_len": 256, "global_batch": 4, **changes}
    return make_other_job("bert", model=model, **changes)


def traced(job, strategy):
    needs = needed(job, strategy)
    trace_needs(job, strategy.attention, "cuda", needs, watch=lambda _: None)
    assert missing_formula(job, strategy, make_cluster("cuda").device) == ""


@pytest.mark.parametrize("case", CASES)
def test_what_is_predicted_is_what_is_simulated(case):
    model_type, sizes, changes, how = CASES[case]
    job, cluster = job_of(model_type, sizes, **changes), make_cluster("cuda")
    strategy = make_strategy(micro_batch=2, **{"attention": "eager", **how})
    traced(job, strategy)
    simulated = simulate(job, cluster, strategy)
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    assert predicted == pytest.approx(simulated.simulated_peak_allocated_bytes, abs=FEW_BYTES)


def test_what_gets_no_gradient_has_a_state_all_the_same():
    job = job_of("luke", LUKE, precision="bf16")
    traced(job, make_strategy(micro_batch=2, attention="eager"))
    idle = {p.name for p in all_parameters(layout_of(job.model)) if not p.learns}
    assert "luke.entity_embeddings.entity_embeddings.weight" in idle
    assert "luke.encoder.layer.2.attention.self.w2e_query.bias" in idle
    assert "luke.encoder.layer.2.attention.self.query.bias" not in idle
    assert len(trained_shapes(job)) - len(learning_shapes(job)) == len(idle)
    held = states(job, update_of(job, CUDA))
    assert held.gradients == 2 * num_learning(job)
    assert (held.trained, held.optimizer_state) == (2 * num_trained(job), 4 * num_trained(job))
