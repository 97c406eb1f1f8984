"""Classes with ways of their own: tables of all blocks, work done once, a look at values."""

import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.needed import needed
from brimful.models.config import default_task, for_task, read_config
from samples import make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2,
    "vocab_size": 304, "max_position_embeddings": 2048, "pad_token_id": 1, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
PER_LAYER = {
    **SIZES, "num_hidden_layers": 6, "num_key_value_heads": 1, "head_dim": 16,
    "global_head_dim": 32, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 304,
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
}  # fmt: skip
CTRL = {
    "n_embd": 32, "dff": 64, "n_layer": 3, "n_head": 2, "vocab_size": 304, "n_positions": 512,
    "pad_token_id": None,
}  # fmt: skip
WAYS = {
    "gemma4_text": (PER_LAYER, {}, {"activation_checkpointing": "full:3"}),
    "ctrl": (CTRL, {"seq_len": 256, "precision": "bf16"}, {}),
    "ibert": (SIZES, {"precision": "bf16"}, {"attention": "eager"}),
    "xmod": ({**SIZES, "default_language": "en_XX"}, {}, {}),
    "big_bird": (
        {**SIZES, "block_size": 16, "num_random_blocks": 1},
        {"seq_len": 256},
        {"attention": "eager"},
    ),
}
"""By type: its sizes, and what of a job and a strategy shows its way.

A table with an entry for each block, which no more blocks read; another type that its own table is
brought to as it first runs; a sum of numbers that are none; rows taken by a mask that is all of
them; other attention from a first short text on.
"""


def case_of(model_type):
    own, of_job, of_strategy = WAYS[model_type]
    model = read_config(f"tiny-{model_type}", {"model_type": model_type, **own})
    task = default_task(model)
    packing = "wrapped" if task == "causal-lm" else "none"
    job = make_job(
        model=for_task(model, task), task=task, packing=packing, **{"seq_len": 512, **of_job}
    )
    return job, make_strategy(**{"micro_batch": 2, "attention": "sdpa", **of_strategy})


@pytest.mark.few(only=["ctrl", "xmod"])
@pytest.mark.parametrize("model_type", WAYS)
def test_a_class_with_a_way_of_its_own_is_predicted_as_it_is_simulated(model_type):
    from brimful.simulate.on_demand import trace_needs
    from brimful.simulate.run import simulate

    (job, strategy), cluster = case_of(model_type), make_cluster("cuda")
    needs = needed(job, strategy)
    trace_needs(job, strategy.attention, "cuda", needs, watch=lambda _state: None)
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    expected = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
    assert predicted == pytest.approx(expected, rel=5e-3)


def test_a_mixed_body_has_no_more_blocks_than_its_model():
    from brimful.build.layout import read_built
    from brimful.cost.own_programs import chosen_program
    from brimful.simulate.own_shapes import OwnProgram
    from brimful.simulate.own_stack import stack_of

    job, strategy = case_of("gemma4_text")
    built = read_built(job, strategy.attention)
    program = chosen_program(job, strategy.attention, "cuda", "full", gathers=False, is_exact=True)
    stack = stack_of(OwnProgram(program, job, built, gathers=False), "mixed")
    assert len(stack.places) <= job.model.num_layers
    kinds = [built.kinds[place] for place in stack.places]
    assert set(kinds[: stack.num_again]) == set(kinds[stack.num_again :]) == set(built.kinds)


def test_what_ends_at_no_value_is_told_as_it_ended():
    job, strategy = case_of("xmod")
    from brimful.simulate.run import simulate

    unset = {**job.model.hf_config, "default_language": None}
    model = msgspec.structs.replace(job.model, hf_config=unset)
    with pytest.raises(ValueError, match="set_default_language"):
        simulate(msgspec.structs.replace(job, model=model), make_cluster("cuda"), strategy)
