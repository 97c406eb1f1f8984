"""Which blocks a shallow model keeps."""

import pytest
from tests.pretend.deep_models import SMALL, make_config, make_model
from torch import nn
from transformers import AutoConfig

from brimful.pretend.blocks import NotPeriodicError, Pattern
from brimful.pretend.depth import block_kinds, check_reduced, find_depth, reduced

pytestmark = pytest.mark.torch


def depth_of(config):
    return find_depth(make_model(config), config)


@pytest.mark.parametrize(
    ("family", "num_blocks", "prefix", "period", "traced", "few"),
    [
        ("llama", 126, 0, 1, 4, 1),
        ("bert", 24, 0, 1, 4, 1),
        ("gemma2", 26, 0, 2, 8, 2),
        ("gpt_oss", 37, 0, 2, 9, 3),
        ("deepseek_v3", 61, 2, 1, 6, 3),
    ],
)
def test_the_shortest_pattern_is_found(family, num_blocks, prefix, period, traced, few):  # noqa: PLR0913, PLR0917
    config = make_config(family, num_blocks)
    model = make_model(config)
    depth = find_depth(model, config)
    stack = "bert.encoder.layer" if family == "bert" else "model.layers"
    assert depth.pattern == Pattern(stack=stack, num_prefix=prefix, period=period)
    assert (depth.num_blocks, depth.num_traced, depth.num_few) == (num_blocks, traced, few)
    for num_kept in (traced, few):
        shallow = reduced(config, num_kept)
        check_reduced(make_model(shallow), shallow, deep=model, deep_config=config)
    assert config.num_hidden_layers == num_blocks


def test_six_kinds_of_blocks_make_a_pattern():
    config = AutoConfig.for_model("gemma3_text", num_hidden_layers=62, **SMALL)
    depth = depth_of(config)
    assert (depth.pattern.period, depth.num_traced) == (6, 26)
    assert len(reduced(config, 26).layer_types) == 26


def test_numbers_of_blocks_are_kept_if_their_blocks_are():
    config = AutoConfig.for_model(
        "qwen3_moe", num_hidden_layers=20, mlp_only_layers=[0, 1, 19], num_experts=4, **SMALL
    )
    assert reduced(config, 6).mlp_only_layers == [0, 1]


def test_too_few_rounds_and_a_special_last_block_are_refused():
    with pytest.raises(NotPeriodicError, match="no pattern"):
        depth_of(AutoConfig.for_model("gemma3_text", num_hidden_layers=20, **SMALL))
    config = AutoConfig.for_model(
        "qwen3_moe", num_hidden_layers=20, mlp_only_layers=[19], num_experts=4, **SMALL
    )
    with pytest.raises(NotPeriodicError, match="no pattern"):
        depth_of(config)


def test_a_shallow_model_of_other_blocks_is_refused():
    config = make_config("deepseek_v3", 12)
    shallow = reduced(config, 6)
    shallow.first_k_dense_replace = 1
    with pytest.raises(NotPeriodicError, match="not the first"):
        check_reduced(make_model(shallow), shallow, deep=make_model(config), deep_config=config)


def test_blocks_differ_in_shapes_settings_and_what_is_trained():
    config = make_config("llama", 4)
    blocks = make_model(config).model.layers
    assert len(set(block_kinds(blocks, config))) == 1
    blocks[0].mlp.up_proj = nn.Linear(32, 80, bias=True, device="meta")
    blocks[1].self_attn.scaling = 0.5
    blocks[2].mlp.gate_proj.requires_grad_(requires_grad=False)
    assert len(set(block_kinds(blocks, config))) == 4
