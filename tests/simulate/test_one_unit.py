"""Bodies that are no row of blocks: they learn as their classes do, and are predicted whole."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from brimful.build.assemble import build_program, build_skeleton
from brimful.build.batch import IGNORE_INDEX
from brimful.build.blocks import decoder_blocks, runs_as_one
from brimful.build.layout import read_built
from brimful.build.step import evaluate, micro_step
from brimful.cost.estimate import estimate
from brimful.cost.family import bodies_of
from brimful.cost.formula import missing_formula
from brimful.cost.needed import needed
from brimful.cost.reserved import predicted_reserved
from brimful.errors import UnsupportedError
from brimful.models.config import parameter_count, read_config
from brimful.simulate.on_demand import trace_needs
from brimful.simulate.run import simulate
from other_models import make_other_job, ragged
from samples import make_adapter, make_cluster, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
SIZES = {
    "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "vocab_size": 97, "max_position_embeddings": 512, "embedding_size": 32, "pad_token_id": 0,
    "id2label": {"0": "a", "1": "b", "2": "c"},
}  # fmt: skip
FUNNEL = {"d_model": 32, "block_sizes": [1, 2], "n_head": 4, "d_head": 8, "d_inner": 80}
UNITS = {
    "albert": {},
    "xlm": {"emb_dim": 32, "n_layers": 3, "n_heads": 4},
    "squeezebert": {},
    "funnel": FUNNEL,
}
HRM = {
    "model_type": "hrm_text", "hidden_size": 32, "intermediate_size": 80, "num_attention_heads": 4,
    "num_hidden_layers": 4, "num_layers_per_stack": 2, "vocab_size": 97, "head_dim": 8,
}  # fmt: skip


def job_of(model_type, **changes):
    lacks = {"num_hidden_layers"} if model_type == "funnel" else set()
    sizes = {field: size for field, size in SIZES.items() if field not in lacks}
    fields = {**sizes, **UNITS[model_type], "model_type": model_type}
    return make_other_job("bert", model=read_config(f"tiny-{model_type}", fields), **changes)


@pytest.mark.parametrize("model_type", UNITS)
def test_they_classify_as_their_own_forward_does_and_learn(model_type):
    job = job_of(model_type)
    program = build_program(job, make_strategy(attention="eager"), CPU)
    assert runs_as_one(program.model)
    assert decoder_blocks(program.model) == []
    plain = AutoModelForSequenceClassification.from_config(program.model.config)
    plain.load_state_dict(program.model.state_dict())
    batch = ragged(job, step=0)
    with torch.no_grad():
        seen = (batch.segments != 0).long()
        logits = plain.eval()(input_ids=batch.inputs, attention_mask=seen).logits
    kept = batch.labels != IGNORE_INDEX
    before = torch.nn.functional.cross_entropy(logits[kept], batch.labels[kept])
    assert evaluate(program, [batch]) == pytest.approx(float(before), rel=1e-5)
    for _ in range(3):
        program.optimizer.zero_grad()
        micro_step(program, batch, num_targets=int(kept.sum()))
        program.optimizer.step()
    assert evaluate(program, [batch]) < float(before)


CASES = {
    "alone": ("albert", {}, {}),
    "parts in lists": ("xlm", {"precision": "bf16"}, {}),
    "convolutions": ("squeezebert", {"precision": "bf16"}, {}),
    "sizes that are no products": ("funnel", {"seq_len": 64}, {}),
    "replicated": ("albert", {"global_batch": 16}, {"dp_replicate": 2}),
    "sharded": ("albert", {"global_batch": 16}, {"dp_shard": 8, "zero": 3}),
    "adapters": (
        "albert",
        {"global_batch": 16, "method": "lora", "adapter": make_adapter(rank=8)},
        {"dp_shard": 8, "zero": 2},
    ),
}


LONG = {"alone", "convolutions", "sizes that are no products", "adapters", "sharded"}
"""Each is a trace or two of thousands of operations; the replicated one shows what is alone and
what spreads, and every type is in ``validation/architectures.json``."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] if case in LONG else []) for case in CASES]
)
def test_what_is_traced_whole_is_what_is_simulated(case):
    model_type, changes, how = CASES[case]
    attention = "sdpa" if model_type == "albert" else "eager"
    changes = {"precision": "bf16-mixed", "seq_len": 256, "global_batch": 4, **changes}
    job = job_of(model_type, **changes)
    strategy = make_strategy(micro_batch=2, attention=attention, **how)
    cluster = make_cluster("cuda")
    needs = needed(job, strategy)
    trace_needs(job, attention, "cuda", needs, watch=lambda _: None)
    assert missing_formula(job, strategy, cluster.device) == ""
    simulated = simulate(job, cluster, strategy)
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    assert predicted == pytest.approx(simulated.simulated_peak_allocated_bytes, rel=1e-4)
    reserved = predicted_reserved(job, cluster, strategy).predicted_peak_reserved_bytes
    assert reserved == simulated.reserved.simulated_peak_reserved_bytes


def test_its_parameters_are_counted_once_each():
    job = job_of("albert")
    built = read_built(job, "eager")
    assert (built.kinds, built.layout.blocks, built.again) == ((), (), False)
    skeleton = build_skeleton(job, make_strategy(attention="eager"))
    assert parameter_count(job.model).total == sum(p.numel() for p in skeleton.parameters())
    assert bodies_of(job) == {"plain": range(1)}


@pytest.mark.parametrize(
    ("field", "value", "instead"),
    [
        ("activation_checkpointing", "full", "none"),
        ("activation_checkpointing", "full:2", "none"),
        ("offload", "activations", "none"),
        ("compile", "blocks", "none"),
    ],
)
def test_what_goes_block_by_block_is_refused(field, value, instead):
    strategy = make_strategy(attention="eager", **{field: value})
    with pytest.raises(UnsupportedError, match="body of tiny-albert is one unit") as refused:
        build_skeleton(job_of("albert"), strategy)
    assert refused.value.nearest == {field: instead}


def test_a_class_that_recomputes_its_parts_does_so_with_all_of_them():
    job = make_other_job("bert", model=read_config("tiny-hrm", HRM), task="causal-lm")
    gradients = {}
    for again in ("none", "full"):
        strategy = make_strategy(attention="sdpa", activation_checkpointing=again)
        program = build_program(job, strategy, CPU)
        assert runs_as_one(program.model)
        batch = ragged(job, step=0)
        labels = batch.inputs.masked_fill(batch.segments == 0, IGNORE_INDEX)
        micro_step(program, batch._replace(labels=labels), num_targets=3)
        gradients[again] = [p.grad for p in program.model.parameters()]
    for one, other in zip(*gradients.values(), strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)
    few = make_strategy(attention="sdpa", activation_checkpointing="full:1")
    with pytest.raises(UnsupportedError, match="use activation_checkpointing=full"):
        build_skeleton(job, few)
