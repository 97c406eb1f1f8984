"""Layouts are what ``transformers`` builds: names, shapes and order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.cost.recipes import FP32_BYTES
from brimful.errors import UnsupportedError
from brimful.models.config import default_task, layout_of, parameter_count, read_config
from brimful.models.layout import all_parameters, num_elements
from brimful.values.job import plain_job
from brimful.values.strategy import Strategy
from models.meta import SMALL, named_shapes, types_of

CASES = {
    "llama": {},
    "llama-all-biases": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama-wide-heads": {"head_dim": 24},
    "mistral": {},
    "mistral-null": {"tie_word_embeddings": True, "head_dim": None},
    "qwen2": {},
    "qwen2-tied": {"tie_word_embeddings": True, "num_key_value_heads": None},
    "qwen3": {},
    "qwen3-biased": {"attention_bias": True, "head_dim": 24},
    "phi3": {},
    "phi3-one-head": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "olmo2": {},
    "olmo2-biased": {"attention_bias": True},
    "gemma2": {},
    "gemma2-biased": {"attention_bias": True, "tie_word_embeddings": False},
    "gpt2": {},
    "gpt2-untied": {"tie_word_embeddings": False, "n_inner": 80},
    "mixtral": {},
    "mixtral-other-name": {"num_experts": 6, "num_local_experts": 5},
    "mixtral-other-name-last": {"num_local_experts": 5, "num_experts": 6},
    "qwen3_moe": {},
    "qwen3_moe-dense": {"mlp_only_layers": [0, 2], "attention_bias": True},
    "qwen3_moe-other-name": {"num_local_experts": 9, "num_experts": 10},
    "qwen3_moe-every-second": {"decoder_sparse_step": 2},
    "deepseek_v2": {},
    "deepseek_v2-biased": {"attention_bias": True, "mlp_bias": True, "n_shared_experts": 1},
    "deepseek_v2-straight": {"q_lora_rank": None, "first_k_dense_replace": 0, "num_experts": 6},
    "deepseek_v3": {},
    "deepseek_v3-biased": {"attention_bias": True, "q_lora_rank": None, "n_shared_experts": 2},
    "deepseek_v3-dense": {"first_k_dense_replace": 2, "num_local_experts": 6},
    "gpt_oss": {},
    "gpt_oss-plain": {"attention_bias": False, "tie_word_embeddings": True, "head_dim": 24},
    "gpt_oss-other-name": {"num_local_experts": 5, "num_experts": 6},
    "bert": {"type_vocab_size": 3},
    "t5": {"num_decoder_layers": 3},
    "t5-gated": {"feed_forward_proj": "gated-gelu", "num_layers": 1},
    "switch_transformers": {},
    "switch_transformers-untied": {"tie_word_embeddings": False, "router_bias": True},
}


def spec_of(case):
    model_type = case.split("-")[0]
    return read_config(case, {"model_type": model_type, **SMALL[model_type], **CASES[case]})


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES)
def test_a_layout_is_what_transformers_builds_in_its_order(case):
    spec = spec_of(case)
    layout = layout_of(spec)
    assert [(p.name, p.shape) for p in all_parameters(layout)] == named_shapes(spec)
    assert parameter_count(spec).total == num_elements(all_parameters(layout))


switches = st.booleans()
DECODER = {
    "hidden_size": st.sampled_from([16, 32, 48]),
    "intermediate_size": st.integers(1, 64),
    "num_hidden_layers": st.integers(1, 5),
    "num_attention_heads": st.just(4),
    "num_key_value_heads": st.sampled_from([1, 2, 4]),
    "vocab_size": st.integers(33, 65),
    "tie_word_embeddings": switches,
}
WIDTH = {"head_dim": st.sampled_from([2, 8, 14])}
BIAS = {"attention_bias": switches}
LATENT = {
    **{field: drawn for field, drawn in DECODER.items() if field != "num_key_value_heads"},
    **BIAS,
    "q_lora_rank": st.one_of(st.none(), st.integers(1, 24)),
    "kv_lora_rank": st.integers(1, 24),
    "qk_nope_head_dim": st.integers(1, 9),
    "qk_rope_head_dim": st.sampled_from([2, 6]),
    "v_head_dim": st.integers(1, 9),
    "first_k_dense_replace": st.integers(0, 6),
    "n_routed_experts": st.integers(2, 6),
    "n_shared_experts": st.integers(1, 3),
    "moe_intermediate_size": st.integers(1, 24),
}
DRAWN = {
    "llama": {**DECODER, **WIDTH, **BIAS, "mlp_bias": switches},
    "mistral": {**DECODER, **WIDTH},
    "mixtral": {**DECODER, **WIDTH, "num_local_experts": st.integers(2, 6)},
    "qwen2": {**DECODER, **WIDTH},
    "qwen3": {**DECODER, **WIDTH, **BIAS},
    "qwen3_moe": {
        **DECODER,
        **WIDTH,
        **BIAS,
        "num_experts": st.integers(8, 12),
        "moe_intermediate_size": st.integers(1, 24),
        "decoder_sparse_step": st.integers(1, 3),
        "mlp_only_layers": st.one_of(st.none(), st.lists(st.integers(0, 5), max_size=3)),
    },
    "gemma2": {**DECODER, **WIDTH, **BIAS},
    "phi3": DECODER,
    "olmo2": {**DECODER, **BIAS},
    "deepseek_v2": {**LATENT, "mlp_bias": switches},
    "deepseek_v3": LATENT,
    "gpt_oss": {**DECODER, **WIDTH, **BIAS, "num_local_experts": st.integers(4, 6)},
    "gpt2": {
        "n_embd": st.sampled_from([16, 32]),
        "n_layer": st.integers(1, 4),
        "n_inner": st.one_of(st.none(), st.integers(1, 64)),
        "tie_word_embeddings": switches,
    },
    "bert": {
        "hidden_size": st.sampled_from([16, 32]),
        "num_hidden_layers": st.integers(1, 4),
        "type_vocab_size": st.integers(1, 4),
        "max_position_embeddings": st.integers(1, 64),
    },
    "t5": {
        "num_layers": st.integers(1, 3),
        "num_decoder_layers": st.integers(1, 3),
        "d_kv": st.integers(1, 9),
        "feed_forward_proj": st.sampled_from(["relu", "gated-gelu"]),
        "tie_word_embeddings": switches,
    },
    "switch_transformers": {
        "num_layers": st.integers(1, 5),
        "num_decoder_layers": st.integers(1, 5),
        "num_sparse_encoder_layers": st.integers(0, 3),
        "num_sparse_decoder_layers": st.integers(0, 3),
        "num_experts": st.integers(1, 4),
        "router_bias": switches,
        "tie_word_embeddings": switches,
    },
}


@pytest.mark.torch
@pytest.mark.few(8)
@pytest.mark.parametrize("model_type", DRAWN)
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_any_layout_is_what_transformers_builds(model_type, data):
    drawn = data.draw(st.fixed_dictionaries({}, optional=DRAWN[model_type]))
    spec = read_config("drawn", {"model_type": model_type, **SMALL[model_type], **drawn})
    assert [(p.name, p.shape) for p in all_parameters(layout_of(spec))] == named_shapes(spec)


KINDS = {
    "Embedding": {"embedding"},
    "Linear": {"linear", "bias", "router", "experts"},
    "Conv1D": {"conv1d", "bias"},
    "LayerNorm": {"norm"},
}
"""What parameters of a module's class may be; a class that is not here has none of these."""


@pytest.mark.torch
@pytest.mark.parametrize("case", CASES)
def test_kinds_are_those_of_the_modules(case):
    spec = spec_of(case)
    types = types_of(spec)
    for parameter in all_parameters(layout_of(spec)):
        module = types[parameter.name]
        if module in KINDS:
            assert parameter.kind in KINDS[module]
        else:
            assert parameter.kind in {"norm", "router", "experts", "other"}
            assert (parameter.kind == "norm") == module.endswith("Norm")
        is_matrix = len(parameter.shape) == 2 and module == "Linear"
        assert (parameter.kind == "linear") == (
            is_matrix and "router" not in parameter.name and "expert_" not in parameter.name
        )
        assert len(parameter.shape) == 1 or parameter.kind not in {"bias", "norm"}


def test_blocks_are_counted_by_where_they_are():
    spec = spec_of("qwen3_moe-dense")
    count = parameter_count(spec)
    dense, sparse, _ = (num_elements(run.parameters) for run in layout_of(spec).blocks)
    assert [run.num_blocks for run in layout_of(spec).blocks] == [1, 1, 1]
    assert (count.block, count.num_blocks, count.other_blocks) == (dense, 1, dense + sparse)


def test_an_unknown_architecture_has_no_layout():
    with pytest.raises(UnsupportedError, match="no formula"):
        layout_of(read_config("x", {"model_type": "gemma", "num_hidden_layers": 1}))


@pytest.mark.torch
@pytest.mark.parametrize("model_type", SMALL)
def test_a_layout_says_what_its_class_keeps_in_fp32(model_type):
    from brimful.build.tasks import task_of

    spec = spec_of(model_type)
    job = plain_job(spec, task=default_task(spec), precision="bf16", seq_len=64, global_batch=1)
    strategy = Strategy(
        micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention="eager"
    )
    kept = {p.name for p in all_parameters(layout_of(spec)) if p.wide}
    built = task_of(job).skeleton(job, strategy)
    assert kept == {name for name, p in built.named_parameters() if p.dtype.itemsize == FP32_BYTES}
