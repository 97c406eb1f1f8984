"""Models of other architectures in Megatron-LM's words, and what has none."""

import json

import pytest

from brimful.cli.main import main
from brimful.errors import InputError, UnsupportedError
from brimful.megatron.arguments import model_arguments
from brimful.megatron.by_layer import every_nth, listed, unrotated
from brimful.megatron.command_line import read_layout
from brimful.megatron.states import parameters
from brimful.models.config import exact_count, load_model, read_config
from brimful.programs.base import flags_of
from brimful.programs.formulas import Machines, predict_program

AIR = ["plan", "zai-org/GLM-4.5-Air", "--for", "megatron", "--gpus", "16x8xb200"]
JOB = ["--precision", "fp8", "--seq-len", "8192", "--global-batch", "1024", "--tokens", "500B"]
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
}  # fmt: skip
ODD = {
    "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 160, "head_dim": 16,
    "moe_intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "num_experts": 8, "num_experts_per_tok": 2,
    "decoder_sparse_step": 2, "mlp_only_layers": [3], "tie_word_embeddings": False,
}  # fmt: skip
LATENT = {
    "model_type": "deepseek_v3", "hidden_size": 128, "intermediate_size": 256,
    "moe_intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "n_routed_experts": 16, "num_experts_per_tok": 4,
    "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "vocab_size": 512,
}  # fmt: skip

RUN = (
    "--normalization RMSNorm --untie-embeddings-and-output-weights --hidden-dropout 0 "
    "--attention-dropout 0 --bf16 --seq-length 4096 --max-position-embeddings 4096 "
    "--use-distributed-optimizer --lr 1e-4 --cross-entropy-loss-fusion "
    "--cross-entropy-fusion-impl native --num-layers 4 --hidden-size 2048 --disable-bias-linear "
    "--position-embedding-type rope "
)
GROUPED = "--group-query-attention --num-query-groups 4 --kv-channels 128 "
DENSE = (
    f"pretrain_gpt.py {RUN} {GROUPED} --num-attention-heads 16 --ffn-hidden-size 5504 --swiglu "
    "--add-qkv-bias --micro-batch-size 1 --global-batch-size 8 --vocab-size 32000 "
)
EXPERTS = (
    f"pretrain_gpt.py {RUN} --swiglu --micro-batch-size 1 --global-batch-size 16 --num-experts 16 "
    "--moe-router-topk 4 --moe-ffn-hidden-size 1408 --moe-grouped-gemm --vocab-size 32000 "
    "--moe-token-dispatcher-type alltoall --moe-layer-freq ([0]*1+[1]*3) --qk-layernorm "
    "--expert-model-parallel-size 4 --expert-tensor-parallel-size 1 "
)
GLM = (
    f"{EXPERTS} {GROUPED} --num-attention-heads 32 --ffn-hidden-size 5504 --add-qkv-bias "
    "--rotary-percent 0.5 --moe-shared-expert-intermediate-size 1408 "
    "--moe-router-score-function sigmoid --moe-router-enable-expert-bias "
    "--moe-router-topk-scaling-factor 2.5 --moe-router-dtype fp32 "
)
V2 = (
    f"{EXPERTS} --num-attention-heads 16 --ffn-hidden-size 10944 --kv-channels 64 "
    "--moe-shared-expert-intermediate-size 2816 --moe-router-pre-softmax --moe-router-num-groups 4 "
    "--moe-router-group-topk 2 --moe-router-topk-scaling-factor 16 --multi-latent-attention "
    "--kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 "
    "--rotary-scaling-factor 40 --mscale 0.707 --mscale-all-dim 0.707 "
)
NEMOTRON = (
    f"pretrain_gpt.py {RUN.replace('--normalization RMSNorm ', '')} {GROUPED} "
    "--num-attention-heads 16 --ffn-hidden-size 8192 --squared-relu --apply-layernorm-1p "
    "--rotary-percent 0.5 --micro-batch-size 2 --global-batch-size 8 "
)
SHARED = "--tensor-model-parallel-size 2 --sequence-parallel "
TENSORWISE = "--fp8-format hybrid --fp8-recipe tensorwise "
SIMULATED = [
    (DENSE + "--rotary-percent 0.5", 4, 5441169408),
    (DENSE + "--no-rope-freq 4", 4, 5443244032),
    (DENSE + "--qk-layernorm", 4, 5528449024),
    (DENSE + "--no-rope-freq 4 --qk-layernorm", 4, 5528449024),
    (GLM, 8, 6701847040),
    (GLM.replace("--moe-shared-expert-intermediate-size 1408 ", ""), 8, 6399568384),
    (GLM + SHARED, 8, 4357869056),
    (GLM + SHARED + TENSORWISE, 8, 4581858816),
    (V2, 8, 7303638016),
    (NEMOTRON + "--vocab-size 32000", 4, 7757712384),
    (NEMOTRON + "--vocab-size 2048", 4, 4068858880),
]
"""Peaks of Megatron-LM d98e8a6 with Transformer Engine 2.20.2 on a pretend H100 (brimful simulate
--from), 2026-11-30."""


def said(config, **more):
    return model_arguments(read_config("x", {**config, **more}))


def value(words, flag):
    """Return what stands behind a flag; None: it does not stand there."""
    return words[words.index(flag) + 1] if flag in words else None


def num_made(model):
    """Return the parameters of what a model's arguments make, but for those known to differ."""
    told = model_arguments(model)
    words = (
        *told.words, "--max-position-embeddings", str(model.max_seq_len), "--seq-length", "64",
        "--micro-batch-size", "1", "--bf16", "--padded-vocab-size", str(model.vocab_size),
    )  # fmt: skip
    made = read_layout(
        flags_of(words, ""), vocab=model.vocab_size, world_size=1, stage=0, capability=(9, 0),
        kind="gpt",
    )  # fmt: skip
    return sum(map(sum, parameters(made))) - told.num_more


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b", "llama-3.2-1b", "mistral-7b", "mixtral-8x7b", "qwen2.5-7b", "qwen3-8b",
        "qwen3-30b-a3b", "deepseek-v3", "kimi-k2", "gpt2", "gpt-oss-20b", "gpt-oss-120b",
        "glm-4.5-air", "glm-4.6", "glm-4.7", "deepseek-v2", "deepseek-v2-lite",
        "moonlight-16b-a3b", "seed-oss-36b", "smollm3-3b", "phi-4", "phi-4-mini",
        "granite-8b-code", "gpt3-175b",
    ],
)  # fmt: skip
def test_the_arguments_of_a_model_make_as_many_parameters_as_it_has(name):
    assert num_made(model := load_model(name)) == exact_count(model)


@pytest.mark.torch
@pytest.mark.parametrize(
    "name",
    [
        "glm-4.5", "glm-4.7-flash", "nemotron-4-340b", "afm-4.5b", "ernie-4.5-21b-a3b",
        "ernie-4.5-300b-a47b", "ernie-4.5-0.3b", "dots.llm1", "stablelm-2-1.6b", "starcoder2-15b",
        "starcoder-15.5b", "ling-mini-2.0",
    ],
)  # fmt: skip
def test_so_do_those_that_transformers_reads(name):
    assert num_made(model := load_model(name)) == exact_count(model)


def test_layers_without_experts_may_lie_between_others():
    """Only dense layers at the beginning were said, so that Megatron's model was another."""
    model = read_config("odd", ODD)
    assert "([0]*1+[1]*1+[0]*3+[1]*1)" in model_arguments(model).words
    assert num_made(model) == exact_count(model)


def test_glm_is_said_by_its_configuration():
    words = model_arguments(load_model("glm-4.5-air")).words
    assert value(words, "--rotary-percent") == "0.5"
    assert value(words, "--rotary-base") == "1000000"
    assert value(words, "--moe-layer-freq") == "([0]*1+[1]*45)"
    assert value(words, "--moe-shared-expert-intermediate-size") == "1408"
    assert value(words, "--moe-router-score-function") == "sigmoid"
    assert {"--add-qkv-bias", "--disable-bias-linear", "--moe-router-enable-expert-bias"} < {*words}
    assert "--qk-layernorm" not in words  # use_qk_norm: of GLM-4.5 and its kin alone
    words = model_arguments(load_model("glm-4.7")).words
    assert "--qk-layernorm" in words
    assert value(words, "--moe-router-topk-scaling-factor") == "2.5"


def test_glm_is_planned_and_its_arguments_are_read_back(tmp_path, capsys):
    path = tmp_path / "air.yaml"
    assert main([*AIR, *JOB, "--pp", "4", "-o", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert value(found["layout"], "--pipeline-model-parallel-size") == "4"
    assert found["left_out"] == []
    assert main(["estimate", "--from", str(path), "--gpus", "16x8xb200", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    peaks = [rank["predicted_peak_allocated_bytes"] for rank in told["ranks"]]
    assert max(peaks) == found["predicted_peak_allocated_bytes"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, ("--disable-bias-linear",)),
        ({"attention_bias": True, "mlp_bias": True}, ()),
    ],
)
def test_biases_of_all_products_or_of_none_are_said(fields, words):
    told = said(LLAMA, **fields).words
    assert tuple(w for w in told if w in {"--disable-bias-linear", "--add-qkv-bias"}) == words


def test_biases_of_queries_keys_and_values_alone_are_said():
    told = said({**LLAMA, "model_type": "qwen2"}).words
    assert {"--disable-bias-linear", "--add-qkv-bias"} < {*told}


@pytest.mark.parametrize(
    ("fields", "flag", "given"),
    [
        ({"rope_theta": 500000.0}, "--rotary-base", "500000"),
        ({"rope_parameters": {"rope_theta": 20000.0}}, "--rotary-base", "20000"),
        ({"rms_norm_eps": 1e-6}, "--norm-epsilon", "1e-06"),
        ({"initializer_range": 0.01}, "--init-method-std", "0.01"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 32.0}},
            "--rope-scaling-factor",
            "32.0",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 4.0}},
            "--rotary-seq-len-interpolation-factor",
            "4",
        ),
    ],
)
def test_a_field_stands_in_its_argument(fields, flag, given):
    assert value(said(LLAMA, **fields).words, flag) == given


def test_a_rotation_that_no_argument_says_is_told():
    told = said(LLAMA, rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    assert told.left_out == ("rope_scaling (dynamic), which no argument says",)
    yarn = {"rope_type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.5}
    told = said(LATENT, rope_scaling=yarn)
    assert told.left_out == ()
    assert value(told.words, "--rotary-scaling-factor") == "40"
    assert value(told.words, "--mscale-all-dim") == "0.5"
    assert said(LATENT, rope_scaling={**yarn, "beta_fast": 1.0}).left_out


def test_what_a_configuration_leaves_out_is_asked_for():
    told = said(LATENT).not_known
    assert [each.partition(",")[0] for each in told] == [
        "--rotary-base",
        "--moe-router-topk-scaling-factor",
    ]
    assert said(LATENT, rope_theta=1e4, routed_scaling_factor=1.0).not_known == ()
    assert len(said(LLAMA).not_known) == 1


def test_a_type_of_another_name_is_read_by_its_class():
    """Kimi-K2's own config.json is of type kimi_k2, and was refused."""
    config = {**LATENT, "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
    assert read_config("x", config).model_type == "deepseek_v3"
    assert said(config).words == said(LATENT).words


def test_windows_are_said_by_layer():
    mistral = {**LLAMA, "model_type": "mistral", "max_position_embeddings": 32768}
    told = said(mistral, sliding_window=4096).words
    assert value(told, "--window-size") == "4095,0"
    assert "--window-attn-skip-freq" not in told
    assert "--window-size" not in said(mistral, sliding_window=None).words
    assert "--window-size" not in said(mistral, sliding_window=32768).words
    kinds = ["sliding_attention"] * 2 + ["full_attention"]
    told = said(mistral, sliding_window=4096, layer_types=kinds * 2).words
    assert value(told, "--window-attn-skip-freq") == "3"
    told = said(mistral, sliding_window=4096, layer_types=sorted(kinds * 2)).words
    assert value(told, "--window-attn-skip-freq") == "([0]*2+[1]*4)"


def test_windows_are_not_sent_around_a_ring(capsys):
    """Transformer Engine refuses it, and it was planned."""
    asked = ["plan", "mistral-7b-v0.1", "--for", "megatron", "--gpus", "8xh100", "--seq-len"]
    asked += ["16384", "--global-batch", "64", "--json"]
    assert main(asked) == 0
    assert "--context-parallel-size" not in json.loads(capsys.readouterr().out)["layout"]
    assert main([*asked, "--cp", "2"]) == 2
    assert "needs --cp-comm-type a2a or all_gather" in capsys.readouterr().err


@pytest.mark.torch
def test_what_nobody_counted_is_told(tmp_path, capsys):
    path = tmp_path / "config.json"
    config = {**load_model("glm-4.5-air").hf_config, "num_hidden_layers": 4, "vocab_size": 4096}
    path.write_text(json.dumps({**config, "model_type": "glm4_moe"}))
    argv = ["plan", str(path), "--for", "megatron", "--gpus", "8xh100", "--global-batch", "64"]
    assert main([*argv, "--json"]) == 0
    assert "a count of the model itself" in json.loads(capsys.readouterr().out)["left_out"][0]


def test_groups_of_experts_are_said():
    told = said(LATENT)
    assert value(told.words, "--moe-router-num-groups") == "4"
    assert value(told.words, "--moe-router-group-topk") == "2"
    assert told.left_out == ()
    of_v2 = said({**LATENT, "model_type": "deepseek_v2"}, routed_scaling_factor=16.0)
    assert "--moe-router-pre-softmax" in of_v2.words
    assert value(of_v2.words, "--moe-router-topk-scaling-factor") == "16.0"
    assert "by their best score alone" in of_v2.left_out[0]


def test_queries_without_a_latent_are_told_to_be_normed_twice():
    told = said(LATENT, q_lora_rank=None)
    assert told.num_more == 4 * 128
    assert "normed once more" in told.left_out[0]
    assert "--mtp-num-layers 1" in said(LATENT, num_nextn_predict_layers=1).left_out[0]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"attention_bias": True}, "biases of attention_bias alone have no argument"),
        ({"hidden_act": "gelu"}, r"says a gate of gelu \(hidden_act\)"),
        ({"residual_multiplier": 0.22}, "says residual_multiplier=0.22"),
        ({"model_type": "granite"}, "says attention_multiplier=1.0"),
        ({"final_logit_softcapping": 30.0}, "says final_logit_softcapping=30.0"),
        ({"model_type": "olmo2"}, "norms behind attention and MLP"),
    ],
)
def test_what_has_no_argument_is_refused_by_its_name(config, why):
    with pytest.raises(UnsupportedError, match=why):
        said(LLAMA, **config)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gemma-3-27b", "model_type=gemma3_text.*norms behind attention and MLP"),
        ("minimax-m2", "norms of queries and keys across all heads"),
        ("hunyuan-7b", "norms of queries and keys behind their rotation"),
        ("apertus-8b", "xIELU"),
        ("qwen3-next-80b-a3b", "gated_delta_net, which has no formula here"),
    ],
)
def test_so_is_what_a_class_does(name, why):
    with pytest.raises(UnsupportedError, match=why):
        model_arguments(load_model(name))


def test_layers_without_a_rotation_are_said_and_read():
    words = model_arguments(load_model("smollm3-3b")).words
    assert value(words, "--no-rope-freq") == "4"
    for text in ("3", "([0]*2+[1]*1+[0]*2+[1]*1)"):
        flags = flags_of(("--no-rope-freq", text), "x")
        assert unrotated(flags, 6) == (False, False, True) * 2
    with pytest.raises(InputError, match="--no-rope-freq 4 does not divide --num-layers 6"):
        unrotated(flags_of(("--no-rope-freq", "4"), "x"), 6)


@pytest.mark.parametrize("each", [(True,) * 4, (False, True) * 3, (True, False, False), (False,)])
def test_layers_are_written_as_they_are_read(each):
    n = every_nth(each)
    assert not n or each == tuple((i + 1) % n == 0 for i in range(len(each)))
    assert unrotated(flags_of(("--no-rope-freq", listed(each)), "x"), len(each)) == each


@pytest.mark.parametrize(("line", "world_size", "simulated"), SIMULATED)
def test_what_these_take_is_what_its_own_code_takes(line, world_size, simulated):
    found = predict_program(line, world_size, Machines("h100-80gb"))
    assert found.ranks[0].predicted_peak_allocated_bytes == pytest.approx(simulated, rel=4e-3)


def test_norms_of_heads_keep_no_copy_of_values():
    """It was 0.31 % too much: values lie in the product that the norms keep."""
    line, world_size, simulated = SIMULATED[2]
    found = predict_program(line, world_size, Machines("h100-80gb"))
    assert found.ranks[0].predicted_peak_allocated_bytes == pytest.approx(simulated, rel=2e-4)
