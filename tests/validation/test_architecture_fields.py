"""What a class leaves to files is said as the library's documentation and other classes say it."""

from functools import partial

import pytest

pytest.importorskip("torch")

from architecture_fields import fields_lacking, why_not

pytestmark = pytest.mark.torch

OTHERS = ("llama", "deepseek_v3", "gemma3_text", "bert", "qwen3")


def lacking(name):
    return fields_lacking(name, OTHERS, partial(why_not, name))


def test_a_class_that_builds_and_runs_lacks_nothing():
    assert lacking("qwen2") == {}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nemotron", {"num_key_value_heads": 48}),  # which is no other class's
        ("ministral", {"head_dim": 128}),
        ("deepseek_v2", {"num_experts_per_tok": 8}),  # it builds, and does not run
        ("dots1", {"n_shared_experts": 1, "n_routed_experts": 256, "num_experts_per_tok": 8}),
    ],
)
def test_what_lacks_is_what_the_documentation_or_others_say(name, told):
    assert why_not(name, {}) is not None
    assert lacking(name) == told
    assert why_not(name, told) is None


def test_defaults_that_contradict_each_other_build_nothing_and_end_nothing():
    assert lacking("gemma4_assistant") == {}
    assert "hidden_size_per_layer_input" in str(why_not("gemma4_assistant", {}))


def test_a_part_of_a_configuration_may_lack_it_and_what_nobody_has_stays_away():
    assert lacking("dbrx") == {}
    assert "rope_theta" in str(why_not("dbrx", {}))
    assert lacking("qwen4_exp_text") == {}
