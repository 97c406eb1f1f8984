"""What few traced blocks do not show by themselves: which block lets go of what many share.

And what a class rounds its texts up to, and how wide it holds its tables.
"""

import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.needed import needed
from brimful.cost.trained import constants_of
from brimful.models.config import read_config
from brimful.simulate.on_demand import trace_needs
from brimful.simulate.run import simulate
from brimful.values.results import BUFFERS
from other_models import make_other_job
from samples import make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

NO_WORDS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
WINDOWS = {
    "model_type": "modernbert", "hidden_size": 64, "intermediate_size": 160, "vocab_size": 304,
    "num_hidden_layers": 12, "num_attention_heads": 2, "max_position_embeddings": 2048,
    "local_attention": 128, "cls_token_id": 1, "sep_token_id": 2, **NO_WORDS,
}  # fmt: skip
TABLES = {
    "model_type": "openai-gpt", "n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 304,
    "n_positions": 512, **NO_WORDS,
}  # fmt: skip
IN_BLOCKS = {
    "model_type": "pegasus_x", "d_model": 64, "encoder_layers": 3, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 160,
    "decoder_ffn_dim": 160, "vocab_size": 304, "max_position_embeddings": 4096,
    "num_global_tokens": 4, "block_size": 512,
}  # fmt: skip


def errors(job, strategy):
    cluster = make_cluster("cuda")
    trace_needs(job, strategy.attention, "cuda", needed(job, strategy), watch=lambda _: None)
    found = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    return found / simulate(job, cluster, strategy).simulated_peak_allocated_bytes - 1


@pytest.mark.parametrize("again", ["full:1", "full:10"])
def test_a_mask_goes_with_the_first_block_of_its_kind_in_a_model_too(again):
    """Blocks A B B C B B C B B show twelve of them: the third B behind an A or C is no second."""
    model = read_config("tiny", WINDOWS)
    job = make_other_job("bert", model=model, precision="bf16-mixed", seq_len=1792, global_batch=4)
    strategy = make_strategy(activation_checkpointing=again)
    assert errors(job, strategy) == pytest.approx(0, abs=1e-3)


def test_buffers_are_as_wide_as_the_recipe_that_asks_has_them():
    model = read_config("tiny", TABLES)
    job = make_job(model=model, precision="fp16-mixed", seq_len=256, global_batch=2)
    strategy = make_strategy(attention="eager")
    for precision in ("fp16-mixed", "bf16"):
        asked = msgspec.structs.replace(job, precision=precision)
        assert errors(asked, strategy) == pytest.approx(0, abs=1e-3)
        simulated = simulate(asked, make_cluster("cuda"), strategy)
        items = {item.name: item.num_bytes for item in simulated.items}
        assert items[BUFFERS] == sum(constants_of(asked))


def test_what_is_rounded_up_to_blocks_of_512_tokens_is_told_at_its_own_length():
    job = make_other_job("bart", model=read_config("tiny", IN_BLOCKS), precision="bf16")
    job = msgspec.structs.replace(job, seq_len=512)
    assert errors(job, make_strategy(attention="eager")) == pytest.approx(0, abs=1e-3)
