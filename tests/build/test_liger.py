"""Liger's fused kernels: they learn what the plain loop does, and take what they take elsewhere.

Triton's interpreter runs the kernels where the wheel is; it has no bf16, so that 16 bits are shown
in fp16. Simulations need liger-kernel alone.
"""

import json
import os
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from brimful.cost.formula import missing_formula
from brimful.errors import UnsupportedError
from brimful.techniques.exact import exactness
from brimful.techniques.fused_kernels import (
    LIGER_FUNCTIONS,
    LIGER_MODELS,
    SCALED_LOGITS,
    Head,
    budget_for,
    chunk_tokens,
)
from brimful.techniques.kernel_support import Place, check_fused
from brimful.techniques.runnable import check_examined, check_strategy
from other_decoders import make_decoder
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch
needs_liger = pytest.mark.skipif(
    find_spec("liger_kernel") is None, reason="liger-kernel is not installed"
)
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
LIGER = {"fused_kernels": "liger"}
HERE = Path(__file__).parent
INTERPRETED = (
    "llama", "llama full", "gemma2", "llama lora", "llama fp16", "qwen3 full:1", "phi3", "granite",
    "llama offloaded", "gemma", "gemma3_text", "glm4", "mistral", "ministral", "olmo2", "olmo3",
    "qwen2", "smollm3", "llama trained",
)  # fmt: skip
ROUNDING = {"llama fp16": 2e-4}


@cache
def interpreted(name, script="liger_interpreted.py"):
    """Train a case twice in a process of its own, as Triton reads its setting once."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment |= {
        "DS_ACCELERATOR": "cpu",
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, str(HERE / script), name],
        capture_output=True,
        check=True,
        env=environment,
    )
    return json.loads(done.stdout.splitlines()[-1])[name]


@needs_liger
@needs_triton
@pytest.mark.few(3)
@pytest.mark.parametrize("name", INTERPRETED)
def test_fused_kernels_learn_what_the_plain_loop_does(name):
    plain, fused = interpreted(name)
    for ours, theirs in zip(fused, plain, strict=True):
        assert ours == pytest.approx(theirs, rel=ROUNDING.get(name, 1e-5))


@needs_liger
@needs_triton
@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["flat 3", "flat 2", "flat lora", "each 3"])
def test_fused_kernels_of_shards_learn_what_the_plain_loop_does(name):
    plain, fused = interpreted(name, "liger_sharded.py")
    for ours, theirs in zip(fused, plain, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


@needs_liger
@needs_triton
@pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize("stage", ["1", "2", "3", "offloaded"])
def test_fused_kernels_in_deepspeed_learn_what_the_plain_loop_does(stage):
    plain, fused = interpreted(f"deepspeed {stage}", "liger_sharded.py")
    for ours, theirs in zip(fused, plain, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_the_table_of_exactness_has_them():
    assert exactness(make_job(precision="fp32"), "fused_kernels", "liger").is_exact
    assert exactness(make_job(precision="bf16"), "fused_kernels", "liger").how == "rounding"
    assert exactness(make_job(precision="bf16"), "fused_kernels", "none").is_exact


@needs_liger
def test_the_list_of_models_is_of_what_liger_patches():
    if find_spec("triton") is None:
        simulated()  # what stands for Triton lets Liger be imported
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    assert MODEL_TYPE_TO_APPLY_LIGER_FN.keys() >= LIGER_MODELS
    trained = {name.split()[0] for name in INTERPRETED}
    assert trained == LIGER_MODELS


@needs_liger
@pytest.mark.few(3)
@pytest.mark.parametrize("name", LIGER_FUNCTIONS)
def test_each_module_that_is_followed_launches_kernels(name):
    if find_spec("triton") is None:
        simulated()
    functions = [x for x in vars(import_module(name)).values() if isinstance(x, type)]
    assert any(issubclass(x, torch.autograd.Function) for x in functions)


@pytest.mark.parametrize("architecture", ["granite", "gemma2", "qwen3"])
def test_scaled_logits_are_left_to_pytorch(architecture):
    from brimful.build.assemble import build_skeleton
    from brimful.build.liger import fuses_loss

    attention = "eager" if architecture == "gemma2" else "sdpa"
    job = make_job(model=make_decoder(architecture))
    skeleton = build_skeleton(job, make_strategy(attention=attention))
    is_fused = fuses_loss(skeleton.get_output_embeddings())
    assert is_fused == (architecture not in SCALED_LOGITS)


def simulated(**strategy):
    from brimful.simulate.run import simulate

    job = make_job(precision="bf16")
    return simulate(job, make_cluster("cuda"), make_strategy(**LIGER, **strategy))


@needs_liger
@pytest.mark.few(1)
@pytest.mark.parametrize("program", ["liger_llama", "liger_qwen3"])
def test_simulated_it_takes_what_somebody_elses_program_takes(program):
    """But for labels, which transformers pads and shifts, and are a tensor of their own here."""
    from brimful.simulate.run import simulate

    file = HERE.parents[1] / "validation" / "programs.json"
    rows = {row["program"]: row for row in json.loads(file.read_text())["rows"]}
    kind, batch, length, *sizes = rows[program]["arguments"]
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size",
    )  # fmt: skip
    own = dict(zip(names, map(int, sizes), strict=True))
    make = make_model if kind == "llama" else make_decoder
    model = make(kind, **own, max_position_embeddings=int(length))
    job = make_job(model=model, seq_len=int(length), global_batch=int(batch), precision="bf16")
    found = simulate(job, make_cluster("cuda"), make_strategy(micro_batch=int(batch), **LIGER))
    padded = {item["name"]: item["num_bytes"] for item in rows[program]["derived"]}
    labels = 8 * int(batch) * int(length) - padded["labels, padded and shifted"]
    theirs = rows[program]["simulated_peak_allocated_bytes"]
    assert found.simulated_peak_allocated_bytes == theirs + labels


@needs_liger
def test_other_programs_of_the_process_stay_as_they_are():
    from brimful.simulate.run import simulate

    job, cluster = make_job(precision="bf16"), make_cluster("cuda")
    before = simulate(job, cluster, make_strategy()).simulated_peak_allocated_bytes
    fused = simulated().simulated_peak_allocated_bytes
    after = simulate(job, cluster, make_strategy()).simulated_peak_allocated_bytes
    assert fused < before == after


@needs_liger
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("of_job", "of_strategy"),
    [
        ({"precision": "bf16"}, {}),
        ({"precision": "bf16-mixed"}, {"activation_checkpointing": "full:2"}),
        (
            {"precision": "bf16-mixed", "global_batch": 16},
            {"dp_shard": 4, "zero": 3, "activation_checkpointing": "full"},
        ),
        ({"method": "lora", "adapter": make_adapter(), "precision": "bf16"}, {}),
    ],
    ids=str,
)
def test_it_is_predicted_as_it_is_simulated_at_a_length_that_no_fit_saw(of_job, of_strategy):
    from brimful.cost.estimate import estimate
    from brimful.cost.own_programs import needs_of
    from brimful.cost.programs import kernels_of
    from brimful.simulate.on_demand import trace_needs
    from brimful.simulate.run import simulate

    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 5}
    longest = {"vocab_size": 1000, "max_position_embeddings": 4096}
    job = make_job(model=make_model(**sizes, **longest), seq_len=1536, **of_job)
    cluster, strategy = make_cluster("cuda"), make_strategy(**LIGER, **of_strategy)
    kernels = kernels_of(cluster.device, "liger")
    trace_needs(job, "sdpa", kernels, needs_of(job, strategy), watch=lambda _state: None)
    assert not missing_formula(job, strategy, cluster.device)
    said = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    found = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
    assert said == pytest.approx(found, rel=2e-3)


def test_its_loss_cuts_tokens_by_its_own_rule():
    """As its docstring says: 16,384 tokens of Llama 2 in eight chunks."""
    assert chunk_tokens(4 * 4096, Head(32000, 4096)) == 2048
    assert budget_for(5 * 2048, Head(128256, 4096), num_chunks=5) is not None
    assert budget_for(5 * 2048, Head(4096, 4096), num_chunks=5) is None


@pytest.mark.parametrize(
    ("job", "strategy", "says"),
    [
        ({}, {"activation_checkpointing": "selective"}, "keep results of products"),
        ({}, {"loss_chunks": 2}, "chunks of its own"),
        ({}, {"tp": 2}, "tp=2"),
        ({}, {"compile": "blocks"}, "compile=blocks"),
        ({}, {"offload": "parameters"}, "offload=parameters"),
        ({"precision": "fp8"}, {}, "precision=fp8"),
        ({"model": make_model("gpt2")}, {}, "of type gpt2"),
        ({"method": "lora", "adapter": make_adapter(base="int8")}, {}, "base=int8"),
    ],
    ids=str,
)
def test_what_it_does_not_go_with_is_refused(job, strategy, says):
    with pytest.raises(UnsupportedError, match=says) as why:
        check_strategy(make_job(**job), make_strategy(**LIGER, **strategy))
    assert why.value.nearest == {"fused_kernels": "none"}


def test_a_cpu_and_an_old_card_are_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    strategy = make_strategy(**LIGER)
    with pytest.raises(UnsupportedError, match="this device is a CPU"):
        check_fused(strategy, Place("cpu", 0.0))
    with pytest.raises(UnsupportedError, match="from compute capability 7"):
        check_fused(strategy, Place("cuda", 6.1))
    assert check_fused(strategy, Place("cuda", 9.0)) is strategy


def test_a_machine_without_it_says_what_to_install(monkeypatch):
    from brimful.build import liger

    monkeypatch.setattr(liger.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UnsupportedError, match=r"needs liger-kernel and triton.*brimful\[liger\]"):
        liger.check_installed()


def test_the_precision_doctor_refuses_it():
    with pytest.raises(UnsupportedError, match="fused_kernels=liger is not examined"):
        check_examined(make_strategy(**LIGER))
