"""Work that is counted on a tape is what the formulas of a profile say, where there is one."""

import pytest

from brimful.cost.family import family_dimensions, family_of
from brimful.cost.memory import profile_for
from brimful.cost.step import family_work
from brimful.models.config import read_config
from samples import make_cluster, make_job, make_strategy

MIXTURE = {
    "model_type": "qwen3_moe", "hidden_size": 256, "head_dim": 32, "intermediate_size": 192,
    "moe_intermediate_size": 192, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 1001,
    "max_position_embeddings": 2048, "tie_word_embeddings": False, "norm_topk_prob": True,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "sliding_window": None,
}  # fmt: skip


@pytest.mark.torch
def test_a_tape_of_parted_experts_is_counted_as_its_profile_says():
    from brimful.simulate.taped_work import micro_batch_work

    job = make_job(
        model=read_config("tiny", MIXTURE), precision="bf16", seq_len=256, global_batch=1
    )
    strategy = make_strategy(micro_batch=1, activation_checkpointing="full")
    taped = micro_batch_work(job, strategy, imitate="cuda", parted=4)
    family = family_of(job, strategy)._replace(ep=4)
    assert family_dimensions(job, family).e == 2
    profile = profile_for(job, "sdpa", make_cluster("cuda").device, family)
    said = family_work(job, profile, family, moved_by_update=0.0)
    flops = [float(part[0]) for part in (said.matrix_flops, said.attention_flops)]
    assert flops == [float(part[0]) for part in (taped.matrix_flops, taped.attention_flops)]
    assert float(taped.moved_bytes[0]) == pytest.approx(float(said.moved_bytes[0]), rel=0.01)
    assert float(taped.num_ops[0]) == pytest.approx(float(said.num_ops[0]), rel=0.02)
