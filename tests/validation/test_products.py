"""Drawn products: what a model's own build refuses is no product."""

import cells
import pytest
from cases import Case

from brimful.models.config import read_config
from float8 import WHY
from samples import make_strategy

pytestmark = pytest.mark.torch
pytest.importorskip("torchao", reason=WHY)

KINDS = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64},
    "llama": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64,
    },
}  # fmt: skip


def product(kind):
    model = read_config("drawn", {"model_type": kind, **KINDS[kind]})
    job = cells.job_of(model, precision="fp8", seq_len=64, global_batch=2)
    return Case(job=job, strategy=make_strategy(micro_batch=2), kernels="cuda")
