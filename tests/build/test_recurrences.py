"""Decoders that hide later tokens without a mask: recurrences, and a triangle that is kept."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from brimful.build.assemble import build_program
from brimful.build.batch import Batch
from brimful.build.blocks import body_of
from brimful.build.step import evaluate
from brimful.models.config import read_config
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 97,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.3,
}  # fmt: skip
DECODERS = {
    "mamba": {"state_size": 8, "time_step_rank": 4},
    "falcon_mamba": {"state_size": 8, "time_step_rank": 4},
    "mamba2": {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    "rwkv": {"attention_hidden_size": 32, "context_length": 64},
    "openai-gpt": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "bloom": {"n_head": 4, "n_layer": 2},
    "minimax": {
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "block_size": 8,
        "num_local_experts": 4, "num_experts_per_tok": 2,
    },
}  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("model_type", DECODERS)
def test_no_token_sees_those_behind_it_and_the_loss_is_that_of_its_own_forward(model_type):
    fields = {**SIZES, **DECODERS[model_type], "model_type": model_type}
    job = make_job(model=read_config(f"tiny-{model_type}", fields))
    program = build_program(job, make_strategy(attention="eager"), CPU)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 97, (2, job.seq_len), generator=generator)
    other = torch.cat([ids[:, :-4], ids[:, -4:].flip(1)], dim=1)
    with torch.no_grad():
        body = body_of(program.model)
        seen, changed = (body(input_ids=each, use_cache=False)[0] for each in (ids, other))
    torch.testing.assert_close(seen[:, :-4], changed[:, :-4], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(seen[:, -4:], changed[:, -4:], rtol=1e-2, atol=1e-3)
    plain = AutoModelForCausalLM.from_config(program.model.config, attn_implementation="eager")
    plain.load_state_dict(program.model.state_dict())
    labels = ids.roll(-1, 1)
    with torch.no_grad():
        logits = plain.eval()(input_ids=ids, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert evaluate(program, [Batch(ids, labels)]) == pytest.approx(float(loss), rel=1e-5)
