"""Drawn products: what a model's own build refuses is no product."""

import cells
import products_draws
import pytest
from cases import Case

from brimful.errors import UnsupportedError
from brimful.models.config import read_config
from float8 import WHY
from samples import make_strategy

pytestmark = pytest.mark.torch
pytest.importorskip("torchao", reason=WHY)

KINDS = {
    "gpt2 of odd widths": {
        "n_embd": 72, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64,
    },
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128, "n_positions": 64},
    "llama": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64,
    },
}  # fmt: skip


def product(kind):
    model = read_config("drawn", {"model_type": kind.partition(" ")[0], **KINDS[kind]})
    job = cells.job_of(model, precision="fp8", seq_len=64, global_batch=2)
    return Case(job=job, strategy=make_strategy(micro_batch=2), kernels="cuda")


def test_fp8_of_a_model_whose_layers_all_have_odd_widths_is_no_product():
    with pytest.raises(UnsupportedError, match="this model has none"):
        products_draws.check_run(product("gpt2 of odd widths"))
    for kind in ("gpt2", "llama"):
        products_draws.check_run(product(kind))
