"""Blocks that transformers has no switch to checkpoint are found in their list, and run again."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from brimful.build.assemble import build_program, build_skeleton
from brimful.build.batch import IGNORE_INDEX
from brimful.build.blocks import decoder_blocks
from brimful.build.step import evaluate, micro_step
from brimful.errors import UnsupportedError
from brimful.models.config import read_config
from other_models import make_other_job, ragged
from samples import make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
SIZES = {
    "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "vocab_size": 97, "max_position_embeddings": 128, "pad_token_id": 0,
    "id2label": {"0": "a", "1": "b", "2": "c"},
}  # fmt: skip
UNSWITCHED = {
    "mpnet": {},
    "ibert": {},
    "ctrl": {"n_embd": 32, "dff": 80, "n_layer": 3, "n_head": 4, "n_positions": 128},
    "openai-gpt": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128},
    "gpt_neox_japanese": {},
}


def job_of(model_type):
    fields = {**SIZES, **UNSWITCHED[model_type], "model_type": model_type}
    return make_other_job("bert", model=read_config(f"tiny-{model_type}", fields))


def gradients(job, checkpointing):
    strategy = make_strategy(attention="eager", activation_checkpointing=checkpointing)
    program = build_program(job, strategy, CPU)
    runs = []
    decoder_blocks(program.model)[0].register_forward_hook(lambda *_: runs.append(1))
    calls = count_calls(decoder_blocks(program.model)[0])
    batch = ragged(job, step=0)
    if job.task != "sequence-classification":
        batch = batch._replace(labels=batch.inputs.masked_fill(batch.segments == 0, IGNORE_INDEX))
    micro_step(program, batch, num_targets=3)
    return [p.grad for p in program.model.parameters()], len(runs), len(calls)


def count_calls(block):
    """Take note of every run of what a block has inside, hooks of the block aside."""
    calls = []
    inner = next(m for m in block.modules() if not list(m.children()))
    inner.register_forward_hook(lambda *_: calls.append(1))
    return calls


@pytest.mark.few(3)
@pytest.mark.parametrize("model_type", UNSWITCHED)
def test_they_run_again_and_change_no_gradient(model_type):
    job = job_of(model_type)
    kept, num_once, calls_once = gradients(job, "none")
    again, num_hooks, calls_twice = gradients(job, "full:2")
    assert (num_once, num_hooks) == (1, 1)
    assert calls_twice == 2 * calls_once
    for one, other in zip(kept, again, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@pytest.mark.parametrize("model_type", ["mpnet", "ibert"])
def test_they_classify_as_their_own_forward_does(model_type):
    job = job_of(model_type)
    program = build_program(job, make_strategy(attention="eager"), CPU)
    assert len(decoder_blocks(program.model)) == job.model.num_layers
    assert not program.model.supports_gradient_checkpointing
    plain = AutoModelForSequenceClassification.from_config(program.model.config)
    plain.load_state_dict(program.model.state_dict())
    batch = ragged(job, step=0)
    with torch.no_grad():
        seen = (batch.segments != 0).long()
        logits = plain.eval()(input_ids=batch.inputs, attention_mask=seen).logits
    kept = batch.labels != IGNORE_INDEX
    loss = torch.nn.functional.cross_entropy(logits[kept], batch.labels[kept])
    assert evaluate(program, [batch]) == pytest.approx(float(loss), rel=1e-5)


OTHERS = {
    "xlm": {"emb_dim": 32, "n_layers": 3, "n_heads": 4},
    "squeezebert": {"embedding_size": 32},
}
"""One has its blocks' parts in lists, the other runs past the hooks of its blocks."""


@pytest.mark.parametrize("model_type", OTHERS)
def test_what_is_not_surely_the_blocks_is_not_taken_for_them(model_type):
    fields = {**SIZES, **OTHERS[model_type], "model_type": model_type}
    job = make_other_job("bert", model=read_config(f"tiny-{model_type}", fields))
    skeleton = build_skeleton(job, make_strategy(attention="eager"))
    assert decoder_blocks(skeleton) == []


def test_one_that_does_not_say_whether_later_tokens_are_hidden_is_refused():
    fields = {"model_type": "xlnet", "d_model": 32, "n_layer": 3, "n_head": 4, "vocab_size": 97}
    job = make_other_job("bert", model=read_config("tiny-xlnet", fields), task="causal-lm")
    with pytest.raises(UnsupportedError, match="hides later tokens only where it is told to"):
        build_skeleton(job, make_strategy(attention="eager"))
