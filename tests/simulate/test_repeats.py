"""Blocks that repeat on the tape what they did, against all of them running."""

from functools import partial

import pytest

from brimful.models.config import read_config
from brimful.pretend.blocks import UnlikeBlocksError
from brimful.simulate.own_cases import run_cases
from brimful.simulate.own_fit import TokenShape
from brimful.simulate.run import trace
from hybrids import MAMBA
from samples import make_adapter, make_job, make_strategy

pytestmark = pytest.mark.torch

CASES = [TokenShape(3, 128), TokenShape(2, 256), TokenShape(3, 128, 3), TokenShape(2, 256, 4)]
MODELS = {
    "windows": ("gemma3_text", {"head_dim": 16, "sliding_window": 64}),
    "experts": (
        "glm4_moe",
        {
            "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
            "first_k_dense_replace": 1, "head_dim": 16, "num_key_value_heads": 2,
        },
    ),
    "tuples": ("bamba", {**MAMBA, "mamba_d_head": 16, "num_key_value_heads": 2}),
}  # fmt: skip
SHARING = {
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 16, "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 3, "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 304,
}  # fmt: skip
"""Blocks that are given keys and values of another, and inputs that are made before the first."""
METHODS = {
    "full": {},
    "lora": {"method": "lora", "adapter": make_adapter(rank=4)},
}


def job_of(model_type, own, **changes):
    sizes = {
        "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6,
        "num_attention_heads": 4, "vocab_size": 304, "max_position_embeddings": 512,
    }  # fmt: skip
    model = read_config("tiny", {**sizes, **own, "model_type": model_type})
    return make_job(model=model, seq_len=256, precision="bf16-mixed", global_batch=6, **changes)


def events_of(recording):
    """List all that a profile is made of, by name."""
    rows = [
        (recording.owners[owner], recording.ops[op], recording.shapes[shape], int(num_bytes))
        for owner, op, shape, num_bytes in zip(
            recording.owner, recording.op, recording.shape_dtype, recording.num_bytes, strict=True
        )
    ]
    events = [(int(e >= 0), rows[e if e >= 0 else ~e], int(e)) for e in recording.events]
    return events, recording.costs, recording.phases, recording.phase_starts.tolist()


def traced_cases(job, strategy, before=(), **options):
    """Trace the three shapes that a traced file holds, as one does."""
    then = (*before, partial(run_cases, cases=CASES))
    return trace(job, strategy, imitate="cuda", count_costs=True, num_steps=0, then=then, **options)


@pytest.mark.long  # test_traced_files.py traces repeated blocks and compares every event
@pytest.mark.parametrize(
    ("model", "method", "checkpointing"),
    [
        ("windows", "lora", "full:3"),
        ("windows", "full", "none"),
        ("experts", "full", "selective"),
        ("tuples", "full", "full:3"),
    ],
)
def test_what_is_repeated_is_what_blocks_do(model, method, checkpointing):
    job = job_of(*MODELS[model], **METHODS[method])
    strategy = make_strategy(
        attention="sdpa", micro_batch=3, activation_checkpointing=checkpointing
    )
    traced = partial(traced_cases, job, strategy)
    expected, ran = traced().recording, []
    found = traced(repeats=True, on_op=lambda: ran.append(1)).recording
    assert events_of(found) == events_of(expected)
    assert len(ran) < len(expected.costs)


def test_blocks_that_were_alike_have_to_be_alike_with_another_shape(monkeypatch):
    """Later blocks that do more with many tokens, and only then, are no repetition."""
    from transformers.models.gemma3.modeling_gemma3 import Gemma3MLP

    own = Gemma3MLP.forward

    def forward(self, x):
        more = x.shape[1] > 128 and self.place >= 2
        return own(self, x * 1 if more else x)

    monkeypatch.setattr(Gemma3MLP, "forward", forward)
    monkeypatch.setattr(Gemma3MLP, "place", 0, raising=False)

    def number(_tape, program, _sample):
        mlps = [m for m in program.model.modules() if isinstance(m, Gemma3MLP)]
        for place, mlp in enumerate(mlps):
            mlp.place = place

    job = job_of("gemma3_text", {"head_dim": 16, "sliding_window": 512})
    strategy = make_strategy(attention="sdpa", micro_batch=3, activation_checkpointing="none")
    with pytest.raises(UnlikeBlocksError):
        traced_cases(job, strategy, before=(number,), repeats=True)


@pytest.mark.parametrize("checkpointing", ["none", pytest.param("full", marks=pytest.mark.long)])
def test_where_blocks_give_each_other_more_all_of_them_repeat_what_they_did(checkpointing):
    """In the other chunks of the loss too: nothing but the head runs there."""
    job = job_of("gemma4_text", SHARING, **METHODS["lora"])
    strategy = make_strategy(
        attention="sdpa", micro_batch=3, activation_checkpointing=checkpointing
    )
    traced = partial(traced_cases, job, strategy)
    every, few = [], []
    expected = traced(on_op=lambda: every.append(1)).recording
    found = traced(repeats=True, on_op=lambda: few.append(1)).recording
    assert events_of(found) == events_of(expected)
    assert len(few) < 0.5 * len(every)  # three micro-batches of eight run


def test_a_body_whose_head_gives_it_tokens_by_place_repeats_what_it_did():
    """BERT's head calls it so; every trace of its selective checkpoints ended in a TypeError."""
    own = {"type_vocab_size": 2, "hidden_act": "gelu"}
    job = job_of("bert", own, task="sequence-classification", packing="none")
    strategy = make_strategy(attention="sdpa", micro_batch=3, activation_checkpointing="selective")
    traced = partial(traced_cases, job, strategy)
    assert events_of(traced(repeats=True).recording) == events_of(traced().recording)
