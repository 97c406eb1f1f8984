"""Layers that packages have kernels for: what stands for these, in classes and by hand."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from brimful import pretend
from brimful.build.layer_kernels import (
    check_packages,
    choose_code,
    functions_asked,
    own_function,
)
from brimful.errors import UnsupportedError
from brimful.models.config import read_config
from brimful.pretend.known_values import KnownValues
from brimful.pretend.layer_kernels import causal_conv1d, fla, mamba_ssm
from brimful.pretend.layer_kernels.base import Launch
from brimful.pretend.other_kernels import OtherKernels
from brimful.pretend.replacing import replaced
from brimful.simulate.layer_kernels import in_classes
from hybrids import HYBRID
from samples import make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

BATCH, TOKENS, HEADS, VALUES, WIDTH = 2, 256, 2, 4, 64
SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 256, "pad_token_id": 0,
}  # fmt: skip
PURE = {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 64, "pad_token_id": 0}
OTHERS = {
    "mamba": {**PURE, "state_size": 8},
    "falcon_mamba": {**PURE, "state_size": 8},
    "mamba2": {**PURE, "state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1,
               "chunk_size": 64},
    "jamba": {"num_key_value_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
              "expert_layer_offset": 1, "num_experts": 2, "mamba_dt_rank": 8},
}  # fmt: skip
ASKING = {**HYBRID, **OTHERS}


def learnt(model_type, on_launch):
    """Run a class forward and backward on the pretend GPU: its output, gradients and peak."""
    config = AutoConfig.for_model(model_type, **{**SMALL, **ASKING[model_type]})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    inside = replaced(list(in_classes(model, on_launch)))
    with pretend.gpu("h100-80gb", says_cuda=False) as run, inside:
        model = model.to_empty(device="gpu:0").train()
        tokens = torch.zeros(2, 64, dtype=torch.long, device="gpu:0")
        out = model(input_ids=tokens, use_cache=False).logits
        out.float().sum().backward()
        shapes = {name: p.grad.shape for name, p in model.named_parameters() if p.grad is not None}
        assert all(p.grad is None or p.grad.dtype == p.dtype for p in model.parameters())
    return (out.shape, out.dtype), shapes, run.peak_allocated_bytes


@pytest.mark.parametrize("model_type", ASKING)
def test_a_class_returns_and_learns_what_it_does_by_its_own_code(model_type):
    launched = []
    out, shapes, _ = learnt(model_type, lambda name, _given, flops: launched.append((name, flops)))
    own, own_shapes, _ = learnt(model_type, None)
    assert (out, shapes) == (own, own_shapes)
    assert launched


@pytest.fixture
def functions():
    launched = {}
    launch = Launch(
        OtherKernels(lambda name, _, flops: launched.update({name: flops})), KnownValues()
    )
    with pretend.gpu("h100-80gb", says_cuda=False) as run:
        every = [m for p in (causal_conv1d, fla, mamba_ssm) for m in p.modules(launch).values()]
        found = {name: each for module in every for name, each in module.items()}
        yield found, launched, run


def made(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="gpu:0", requires_grad=True)


def grown(run, call):
    """Return what a call leaves in memory, and what it returns."""
    before = run.tape.memory_stats(0)["allocated_bytes.all.current"]
    out = call()
    return run.tape.memory_stats(0)["allocated_bytes.all.current"] - before, out


def test_a_gated_delta_rule_keeps_what_its_source_saves(functions):
    found, launched, run = functions
    q, k = (made(BATCH, TOKENS, HEADS, WIDTH) for _ in "qk")
    v, beta = made(BATCH, TOKENS, VALUES, WIDTH), made(BATCH, TOKENS, VALUES)
    g = made(BATCH, TOKENS, VALUES, dtype=torch.float32)
    kept, (out, last) = grown(
        run, lambda: found["chunk_gated_delta_rule"](q, k, v, g, beta, use_qk_l2norm_in_kernel=True)
    )
    rows, one = BATCH * TOKENS, 4
    normed = 2 * rows * HEADS * (WIDTH * 2 + one)  # q and k in bf16, with a norm of each row
    sums, triangles = rows * VALUES * one, rows * VALUES * 64 * 2  # fp32; [64, 64] of each chunk
    assert kept == normed + sums + triangles + out.nbytes
    assert (out.shape, out.dtype, last) == (v.shape, v.dtype, None)
    of_chunks, of_states = 64 * 2 * WIDTH, WIDTH * WIDTH
    assert launched["recompute_w_u_fwd_kernel"] == 2 * rows * VALUES * of_chunks
    assert launched["chunk_gated_delta_rule_fwd_kernel_h"] == 2 * rows * VALUES * 2 * of_states
    out.sum().backward()
    assert [x.grad.shape for x in (q, k, v, g, beta)] == [x.shape for x in (q, k, v, g, beta)]


def test_kimi_s_rule_keeps_two_squares_of_every_chunk(functions):
    found, _, run = functions
    q, k, v = (made(BATCH, TOKENS, HEADS, WIDTH) for _ in "qkv")
    g = made(BATCH, TOKENS, HEADS, WIDTH, dtype=torch.float32)
    beta = made(BATCH, TOKENS, HEADS)
    kept, (out, _) = grown(run, lambda: found["chunk_kda"](q, k, v, g, beta))
    rows = BATCH * TOKENS * HEADS
    assert kept == rows * WIDTH * 4 + 2 * rows * 64 * 2 + out.nbytes  # sums of gates in fp32
    out.sum().backward()
    assert [x.grad.shape for x in (q, k, v, g, beta)] == [x.shape for x in (q, k, v, g, beta)]


def test_a_convolution_keeps_its_input_alone(functions):
    found, _, run = functions
    x, weight = made(BATCH, 16, TOKENS), made(16, 4)
    kept, out = grown(run, lambda: found["causal_conv1d_fn"](x, weight, activation="silu"))
    assert kept == out.nbytes
    out.sum().backward()
    assert (x.grad.shape, weight.grad.shape) == (x.shape, weight.shape)


def test_a_scan_in_chunks_keeps_what_decays_and_no_states(functions):
    found, _, run = functions
    x, dt = made(BATCH, TOKENS, HEADS, WIDTH), made(BATCH, TOKENS, HEADS)
    a, d, bias = (made(HEADS, dtype=torch.float32) for _ in "adb")
    b, c = (made(BATCH, TOKENS, 1, 16) for _ in "bc")
    scan = found["mamba_chunk_scan_combined"]
    kept, out = grown(run, lambda: scan(x, dt, a, b, c, 64, D=d, dt_bias=bias, dt_softplus=True))
    assert kept == out.nbytes + BATCH * TOKENS * HEADS * 4
    out.sum().backward()
    given = (x, dt, a, b, c, d, bias)
    assert [each.grad.shape for each in given] == [each.shape for each in given]


def test_a_selective_scan_keeps_its_output_and_states_of_every_2048_tokens(functions):
    found, _, run = functions
    u, delta, z = (made(BATCH, 16, 2048) for _ in "udz")
    a, d = made(16, 8, dtype=torch.float32), made(16, dtype=torch.float32)
    b, c = (made(BATCH, 8, 2048) for _ in "bc")
    scan = found["selective_scan_fn"]
    kept, out = grown(run, lambda: scan(u, delta, a, b, c, d, z, d))
    assert kept == 2 * out.nbytes + BATCH * 16 * 2 * 8 * 4


def test_packed_documents_are_refused_in_words(functions):
    found, _, _ = functions
    one = made(1, 64, 1, 16)
    with pytest.raises(UnsupportedError, match="cu_seqlens"):
        found["chunk_gated_delta_rule"](one, one, one, one, one, cu_seqlens=one)


def test_a_norm_with_a_gate_saves_both_and_a_number_of_each_row(functions):
    found, _, run = functions
    x, gate = made(BATCH, TOKENS, WIDTH), made(BATCH, TOKENS, WIDTH)
    norm = found["FusedRMSNormGated"](WIDTH, device="gpu:0", dtype=torch.bfloat16)
    kept, out = grown(run, lambda: norm(x, gate))
    assert kept == out.nbytes + BATCH * TOKENS * 4
    out.sum().backward()
    assert norm.weight.grad.shape == norm.weight.shape


def asking_for(fused):
    own = {"model_type": "qwen3_5_text", **SMALL, **HYBRID["qwen3_5_text"]}
    return make_job(model=read_config("tiny", own)), make_strategy(fused_kernels=fused)


def test_a_gpu_without_the_packages_is_refused_with_what_to_type():
    with pytest.raises(UnsupportedError, match="fused_kernels=torch"):
        check_packages(*asking_for("none"))
    check_packages(*asking_for("torch"))


def test_a_model_runs_its_own_code_where_that_is_asked_for_and_no_longer():
    config = AutoConfig.for_model("lfm2", **{**SMALL, **HYBRID["lfm2"]})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    module, _, name = next(functions_asked(model))
    asking = vars(module)[name]
    choose_code(model, asking_for("torch")[1])
    assert vars(module)[name] is own_function(module, name) is not asking
    choose_code(model, asking_for("none")[1])
    assert vars(module)[name] is asking


def test_what_is_predicted_of_layers_is_what_is_simulated():
    """Before, each length was a program of its own, whose loops were traced."""
    from brimful.cost.estimate import estimate
    from brimful.cost.own_programs import needs_of
    from brimful.models.traced import find_built
    from brimful.simulate.on_demand import trace_needs
    from brimful.simulate.run import simulate

    own = {**SMALL, "max_position_embeddings": 4096, **HYBRID["qwen3_5_text"]}
    model = read_config("predicted", {"model_type": "qwen3_5_text", **own})
    job = make_job(model=model, seq_len=1024, precision="bf16", global_batch=6)
    strategy, cluster = make_strategy(micro_batch=3), make_cluster("cuda")
    trace_needs(job, "sdpa", "cuda", needs_of(job, strategy), watch=lambda _state: None)
    built = find_built(job.model)
    assert built.packaged == (False, False)
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    simulated = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
    assert abs(predicted - simulated) < 512  # numbers outside the blocks
