"""Targets of adapters, by the names that people give them, against the layers that there are."""

import msgspec
import pytest

from brimful.cost.programs import adapted_of
from brimful.errors import UnknownNameError
from brimful.models.config import load_model
from brimful.models.targets import are_all_linear, check_targets, is_target
from samples import make_adapter, make_job

LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def refused(model, targets):
    with pytest.raises(UnknownNameError) as error:
        check_targets(load_model(model), targets)
    return str(error.value), error.value.nearest


def test_the_names_of_llama_pass_where_a_model_has_such_layers():
    check_targets(load_model("llama-3.1-8b"), LLAMA)
    check_targets(load_model("llama-3.1-8b"), ("self_attn.q_proj", "all-linear"))


@pytest.mark.parametrize(
    ("model", "targets", "instead"),
    [
        ("phi-4", ("q_proj", "v_proj"), "qkv_proj"),
        ("phi-4", LLAMA, "o_proj,down_proj,qkv_proj,gate_up_proj"),
        ("gpt2", ("q_proj", "k_proj"), "c_attn"),
        ("bert-base", ("q_proj", "v_proj"), "query,value"),
        ("deepseek-v3", ("k_proj",), "kv_a_proj_with_mqa,kv_b_proj"),
    ],
)
def test_what_a_model_has_in_their_place_is_named(model, targets, instead):
    said, nearest = refused(model, targets)
    assert set(nearest["lora_targets"].split(",")) == set(instead.split(","))
    assert f"use {nearest['lora_targets']} " in said


def test_experts_that_are_stacks_are_no_adapters():
    said, nearest = refused("qwen3-30b-a3b", LLAMA)
    assert "its experts are stacks of matrices" in said
    assert nearest == {"lora_targets": "q_proj,k_proj,v_proj,o_proj"}


def test_a_name_of_nothing_is_refused_without_another():
    said, nearest = refused("llama-3.1-8b", ("wheels",))
    assert "unknown adapter target 'wheels'" in said
    assert not nearest


def test_layers_of_one_block_alone_are_targets_that_are_simulated():
    target = "model.layers.0.self_attn.q_proj"
    check_targets(load_model("llama-3.1-8b"), (target,))
    adapter = msgspec.structs.replace(make_adapter(), targets=(target,))
    job = make_job(method="lora", adapter=adapter)
    assert adapted_of(make_job(method="lora", adapter=make_adapter())) is not None
    assert adapted_of(job) is None
    assert refused("llama-3.1-8b", ("model.layers.99.self_attn.q_proj",))[1] == {
        "lora_targets": "q_proj"
    }


def test_a_layer_is_matched_by_the_end_of_its_path():
    assert is_target("self_attn.q_proj.weight", ("self_attn.q_proj",))
    assert not is_target("self_attn.q_proj.weight", ("proj",))
    assert is_target("mlp.c_proj.weight", ("mlp.c_proj",))
    assert not is_target("attn.c_proj.weight", ("mlp.c_proj",))


@pytest.mark.parametrize(
    ("name", "targets", "expected"),
    [
        ("llama-3.1-8b", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", True),
        ("llama-3.1-8b", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj", False),
        ("llama-3.1-8b", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj,lm_head", False),
        ("gpt2", "c_attn,c_proj,c_fc", True),
        ("llama-3.1-8b", "all-linear", False),
    ],
)
def test_all_layers_one_by_one_are_all_of_them(name, targets, expected):
    """What tutorials write out had no formula, and was traced."""
    assert are_all_linear(load_model(name), tuple(targets.split(","))) == expected
