"""The formulas of a forward against the simulation: what lies above the weights, by phase."""

import pytest

from brimful.cost.held import held_bytes
from brimful.cost.inference import DECODE, PREFILL, InferenceJob, estimate_inference
from brimful.cost.reading import KNOWN
from brimful.models.config import read_config
from brimful.simulate.inference import simulate_inference
from samples import make_cluster

pytestmark = pytest.mark.torch

DECODER = {
    "hidden_size": 512,
    "intermediate_size": 1280,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 3000,
    "max_position_embeddings": 2048,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
CHANGES = {
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 192},
}
GPT2 = {
    "n_embd": 512,
    "n_layer": 3,
    "n_head": 8,
    "vocab_size": 3000,
    "n_positions": 2048,
    "bos_token_id": None,
    "eos_token_id": None,
}
THIN = {"intermediate_size": 128, "head_dim": 128}
"""An MLP so narrow that attention holds most."""
UNSEEN_BYTES = 2**20
"""cuBLASLt's workspace: the tape does not see that products of 4 bits with a bias take it."""


def spec_of(model_type, **changes):
    config = GPT2 if model_type == "gpt2" else {**DECODER, **CHANGES.get(model_type, {})}
    return read_config(f"small-{model_type}", {"model_type": model_type, **config, **changes})


def job_of(spec, weights_format, **changes):
    fields = {
        "model": spec,
        "weights_format": weights_format,
        "compute": weights_format if weights_format in {"fp32", "tf32", "fp16"} else "bf16",
        "num_sequences": 2,
        "seq_len": 1024,
        "prompt_len": 1024,
    }
    return InferenceJob(**{**fields, **changes})


def above_weights(job, cluster):
    """Return what each phase takes beyond the loaded model, predicted and simulated."""
    held = held_bytes(job.model, job.weights_format, job.compute).total
    predicted, simulated = estimate_inference(job, cluster), simulate_inference(job, cluster)
    return tuple(
        {p.phase: p.num_bytes - held for p in rung.phases if p.phase in {PREFILL, DECODE}}
        for rung in (predicted, simulated)
    )


def test_items_agree_one_by_one():
    job = job_of(spec_of("llama"), "nf4-double", prompt_len=600)
    cluster = make_cluster("cuda")
    predicted, simulated = estimate_inference(job, cluster), simulate_inference(job, cluster)
    mine = {item.name: item.num_bytes for item in predicted.items}
    theirs = {item.name: item.num_bytes for item in simulated.items}
    assert mine.keys() == theirs.keys()
    for name, num_bytes in theirs.items():
        assert mine[name] == pytest.approx(num_bytes, rel=5e-3), name


def check(job, cluster, *, rel=5e-3, above=0):
    predicted, simulated = above_weights(job, cluster)
    assert predicted.keys() == simulated.keys()
    for phase, num_bytes in simulated.items():
        assert num_bytes * (1 - rel) <= predicted[phase] <= num_bytes * (1 + rel) + above, phase


FORMATS = ["bf16", "fp32", "nf4", "nf4-double", "llm-int8"]
CASES = [
    *((model_type, FORMATS[i % 5]) for i, model_type in enumerate(KNOWN)),
    *((model_type, FORMATS[(i + 2) % 5]) for i, model_type in enumerate(KNOWN)),
]


@pytest.mark.few(5)
@pytest.mark.parametrize(("model_type", "weights_format"), CASES)
def test_the_formula_is_the_simulation(model_type, weights_format):
    job = job_of(spec_of(model_type), weights_format, prompt_len=600)
    has_bias = model_type in {"gpt2", "qwen2"}
    check(job, make_cluster("cuda"), above=UNSEEN_BYTES if has_bias else 0)


@pytest.mark.few(3)
@pytest.mark.parametrize("weights_format", ["bf16", "fp32", "nf4", "llm-int8"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "olmo2", "phi3"])
def test_the_formula_is_the_simulation_where_attention_holds_most(model_type, weights_format):
    changes = dict(THIN)
    if model_type in {"olmo2", "phi3"}:
        del changes["head_dim"]
    check(job_of(spec_of(model_type, **changes), weights_format), make_cluster("cuda"))


@pytest.mark.few
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "mixtral", "qwen2"])
@pytest.mark.parametrize("weights_format", ["bf16", "fp32", "nf4"])
def test_the_formula_is_the_simulation_on_cpu_kernels(model_type, weights_format):
    check(job_of(spec_of(model_type), weights_format, prompt_len=600), make_cluster("cpu"))


@pytest.mark.parametrize(("num_sequences", "prompt_len", "seq_len"), [(1, 1, 1), (7, 1, 900)])
def test_the_formula_is_the_simulation_for_odd_texts(num_sequences, prompt_len, seq_len):
    for weights_format in ("bf16", "fp32"):
        sizes = {"num_sequences": num_sequences, "seq_len": seq_len, "prompt_len": prompt_len}
        check(job_of(spec_of("llama"), weights_format, **sizes), make_cluster("cuda"))


def test_one_block_has_one_residual_less():
    check(job_of(spec_of("llama", num_hidden_layers=1), "bf16"), make_cluster("cuda"))


@pytest.mark.parametrize(
    ("model_type", "changes", "cluster", "said"),
    [
        ("gemma2", {}, make_cluster("cuda"), "forward of gemma2 has no formula"),
        ("mistral", {"sliding_window": 100}, make_cluster("cuda"), "window of 100 is shorter"),
        ("llama", {}, make_cluster("cuda", capability=7.5), "compute capability 7.5"),
        ("gpt2", {"activation_function": "gelu"}, make_cluster("cuda"), "activation_function=gelu"),
        ("llama", {"hidden_act": "gelu_new"}, make_cluster("cuda"), "hidden_act=gelu_new"),
        ("olmo2", {}, make_cluster("cpu"), "olmo2 on CPU kernels"),
    ],
)
def test_what_has_no_formula_is_said_and_not_guessed(model_type, changes, cluster, said):
    estimate = estimate_inference(job_of(spec_of(model_type, **changes), "bf16"), cluster)
    assert said in estimate.unknown
    assert estimate.predicted_peak_allocated_bytes is None
    assert estimate.fits is None
    assert sum(item.num_bytes for item in estimate.items) == estimate.predicted_floor_bytes
