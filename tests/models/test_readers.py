"""Readers of our own read what ``transformers``' classes say, and refuse what is off."""

import json
import subprocess
import sys

import pytest

from brimful.errors import ModelConfigError
from brimful.models import generic
from brimful.models.architectures import ARCHITECTURES, MIXTURES
from brimful.models.config import (
    active_parameters,
    check_model,
    experts_of,
    parameter_count,
    read_config,
)
from brimful.models.registry import registry
from each_case import each
from models.meta import SMALL, build_from

SERVED_BEFORE = sorted(set(ARCHITECTURES) - {"bert", "gpt2", "llama", "t5", "switch_transformers"})
"""Types that ``generic`` read until they had a reader."""
DEFAULTS = {"deepseek_v2": {"num_experts_per_tok": 6}}
VARIANTS = (
    {},
    {"head_dim": 24, "tie_word_embeddings": True},
    {"num_key_value_heads": 1, "max_position_embeddings": 77, "tie_word_embeddings": False},
    {"num_hidden_layers": 1, "intermediate_size": 7, "vocab_size": 5},
)


def config_of(model_type, **changes):
    return {"model_type": model_type, **SMALL[model_type], **changes}


@pytest.mark.torch
@each("variant", VARIANTS)
@each("model_type", SERVED_BEFORE)
def test_a_reader_reads_what_generic_read(model_type, variant):
    for fields in (DEFAULTS.get(model_type, {}), SMALL[model_type]):
        config = {**fields, **variant}
        ours = read_config("x", {"model_type": model_type, **config})
        assert ours == generic.read("x", model_type, config)


@pytest.mark.torch
@each("name", [name for name, entry in registry().items() if entry["model_type"] in SERVED_BEFORE])
def test_shipped_models_are_read_as_generic_read_them(name):
    entry = registry()[name]
    ours = read_config(name, {"model_type": entry["model_type"], **entry["config"]})
    assert ours == generic.read(name, entry["model_type"], entry["config"])


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_a_spec_is_what_its_configuration_describes(model_type):
    spec = read_config("x", config_of(model_type))
    assert check_model(spec) == spec
    assert json.loads(json.dumps(spec.hf_config)) == spec.hf_config


WITHOUT_TORCH = """
import json, sys
from brimful.models.config import active_parameters, parameter_count, read_config
for config in json.load(sys.stdin):
    spec = read_config("x", config)
    active_parameters(spec), parameter_count(spec)
print([m for m in ("torch", "transformers", "huggingface_hub") if m in sys.modules])
"""


def test_no_reader_imports_torch_or_transformers():
    configs = json.dumps([config_of(model_type) for model_type in ARCHITECTURES])
    command = [sys.executable, "-c", WITHOUT_TORCH]
    run = subprocess.run(command, input=configs, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("model_type", "changes", "facts"),
    [
        (
            "mixtral",
            {"num_experts_per_tok": 9},
            ("num_experts_per_tok=9", "4 experts", "at most 4"),
        ),
        ("qwen3_moe", {"num_experts_per_tok": 0}, ("num_experts_per_tok=0", "1 to")),
        ("qwen3_moe", {"decoder_sparse_step": 0}, ("decoder_sparse_step=0", "1 to")),
        ("qwen3_moe", {"mlp_only_layers": 3}, ("mlp_only_layers=3", "[0, 1]")),
        ("qwen3_moe", {"mlp_only_layers": ["0"]}, ("mlp_only_layers=['0']", "[0, 1]")),
        ("deepseek_v3", {"first_k_dense_replace": -1}, ("first_k_dense_replace=-1", "0 to")),
        ("deepseek_v3", {"first_k_dense_replace": None}, ("dense_replace=None", "0 to")),
        ("deepseek_v3", {"n_group": 3}, ("n_group=3", "n_routed_experts=4")),
        ("deepseek_v3", {"n_group": 4}, ("n_group=4", "n_routed_experts=4", "2 or more")),
        ("deepseek_v3", {"n_group": None}, ("n_group=None", "null")),
        ("deepseek_v3", {"topk_group": 2}, ("topk_group=2", "n_group=1")),
        ("deepseek_v3", {"n_shared_experts": None}, ("n_shared_experts=None", "1 to")),
        ("deepseek_v2", {"num_experts_per_tok": 5}, ("5", "4 experts")),
        ("deepseek_v2", {"qk_rope_head_dim": 3}, ("head_dim=3", "qk_rope_head_dim")),
        ("deepseek_v2", {"num_attention_heads": 5}, ("num_heads=5", "hidden_size=32")),
        ("gpt_oss", {"num_local_experts": True}, ("num_local_experts=True", "1 to")),
        ("mistral", {"num_key_value_heads": 3}, ("num_kv_heads=3", "num_heads=4")),
        ("qwen3", {"head_dim": 7}, ("head_dim=7", "even")),
        ("olmo2", {"attention_bias": 1}, ("attention_bias=1", "true or false")),
        ("gemma2", {"vocab_size": 0}, ("vocab_size=0", "1 to")),
    ],
)
def test_what_is_off_is_said_in_one_sentence(model_type, changes, facts):
    with pytest.raises(ModelConfigError) as raised:
        read_config("x", config_of(model_type, **changes))
    assert all(fact in str(raised.value) for fact in facts), str(raised.value)
    assert "\n" not in str(raised.value)


def builds(model_type, fields):
    """Whether ``transformers`` builds a model from these."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        build_from(model_type, fields)
    except (StrictDataclassError, TypeError):
        return False
    return True


@pytest.mark.torch
@pytest.mark.parametrize("field", ["num_key_value_heads", "head_dim"])
@pytest.mark.parametrize("model_type", [*SERVED_BEFORE, "llama"])
def test_null_is_taken_where_transformers_builds_from_it(model_type, field):
    fields = {**SMALL[model_type], field: None}
    config = {"model_type": model_type, **fields}
    if builds(model_type, fields):
        assert read_config("x", config) == generic.read("x", model_type, fields)
    else:
        with pytest.raises(ModelConfigError, match=f"{field}=null.*leave it out"):
            read_config("x", config)


def test_a_mixture_must_say_how_many_experts_a_token_uses_where_its_class_does_not():
    with pytest.raises(ModelConfigError, match="lacks num_experts_per_tok"):
        read_config("x", {"model_type": "deepseek_v2"})


@pytest.mark.parametrize("model_type", MIXTURES)
def test_a_mixture_of_which_all_experts_are_used_is_all_active(model_type):
    sends = {} if model_type == "switch_transformers" else {"num_experts_per_tok": 2}
    few = read_config("x", config_of(model_type, **sends))
    experts = experts_of(few)
    assert active_parameters(few) < parameter_count(few).total
    if model_type != "switch_transformers":
        every = read_config("x", config_of(model_type, num_experts_per_tok=experts.num_experts))
        assert active_parameters(every) == parameter_count(every).total
        assert parameter_count(every) == parameter_count(few)


@pytest.mark.parametrize("model_type", MIXTURES)
def test_each_expert_more_per_token_adds_one_expert_of_every_sparse_block(model_type):
    if model_type == "switch_transformers":
        pytest.skip("sends each token to one expert, always")
    one, two = (
        active_parameters(read_config("x", config_of(model_type, num_experts_per_tok=k)))
        for k in (1, 2)
    )
    experts = experts_of(read_config("x", config_of(model_type)))
    biases = 2 * experts.width + 32 if model_type == "gpt_oss" else 0
    assert two - one == len(experts.sparse_blocks) * (3 * 32 * experts.width + biases)
