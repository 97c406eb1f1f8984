"""The peak of loading against the simulation, to the byte: in every format, on both kernels."""

import pytest
from tests.models.meta import SMALL

from brimful.cost.formats import COMPUTE_BYTES
from brimful.cost.held import held_bytes
from brimful.cost.inference import LOAD, TRANSIENTS, InferenceJob, estimate_inference
from brimful.cost.loading import has_load_formula
from brimful.models.config import read_config
from brimful.simulate.inference import simulate_inference
from brimful.values.results import WORKSPACES
from samples import make_cluster

pytestmark = pytest.mark.torch
pytest.importorskip("torchao", reason="torchao is not installed (brimful[qat])")

WIDTHS = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 32, "num_hidden_layers": 2}
GPT2 = {"n_embd": 128, "n_layer": 2}
OWN_TABLES_BYTES = 64
"""Of the CPU's nf4: bitsandbytes keeps its table for the process, the tape sees one each."""
CASES = [
    # model, format, computed in, kernels
    ("llama", "int8", "bf16", "cpu"),
    ("llama", "int8", "fp32", "cuda"),
    ("llama", "int4", "bf16", "cpu"),
    ("llama", "nf4", "fp32", "cpu"),
    ("llama", "nf4-double", "fp32", "cuda"),
    ("llama", "llm-int8", "bf16", "cuda"),
    ("llama", "int8-dynamic", "bf16", "cpu"),
    ("llama", "int4-dynamic", "bf16", "cuda"),
    ("qwen2", "nf4", "bf16", "cuda"),
    ("gpt2", "nf4", "bf16", "cpu"),
    ("gpt2", "nf4-double", "bf16", "cuda"),
    ("gpt2", "llm-int8", "fp32", "cuda"),
    ("mixtral", "int8", "bf16", "cpu"),
    ("deepseek_v2", "nf4-double", "fp16", "cpu"),
]


def job_of(model_type, weights_format, compute, **changes):
    more = {"gpt2": GPT2, "deepseek_v2": {"num_hidden_layers": 2}}.get(model_type, WIDTHS)
    config = {"model_type": model_type, **SMALL[model_type], **more}
    return InferenceJob(
        model=read_config("tiny", {**config, **changes}),
        weights_format=weights_format,
        compute=compute,
        num_sequences=1,
        seq_len=4,
        prompt_len=4,
    )


@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_loading_takes_what_the_formula_says(case):
    job, cluster = job_of(*case[:3]), make_cluster(case[3])
    predicted, simulated = estimate_inference(job, cluster), simulate_inference(job, cluster)
    peaks = [{p.phase: p.num_bytes for p in found.phases} for found in (predicted, simulated)]
    assert abs(peaks[0][LOAD] - peaks[1][LOAD]) <= OWN_TABLES_BYTES
    if simulated.items[0].phase != LOAD or predicted.unknown:
        return
    items = [by_item(found.items) for found in (predicted, simulated)]
    assert items[0] == pytest.approx(items[1], abs=OWN_TABLES_BYTES)
    assert predicted.predicted_peak_allocated_bytes == peaks[0][LOAD]
    assert sum(items[0].values()) == peaks[0][LOAD]


def by_item(items):
    """Return bytes by class; what a CPU's kernels take inside is a transient to the formula."""
    found = {item.name: item.num_bytes for item in items}
    found[TRANSIENTS] += found.pop(WORKSPACES, 0)
    return found


def test_weights_as_they_are_take_nothing_beside():
    for weights_format in COMPUTE_BYTES:
        job = job_of("llama", weights_format, weights_format)
        load = estimate_inference(job, make_cluster("cuda")).phases[0]
        assert load.num_bytes == held_bytes(job.model, weights_format, weights_format).total


def test_a_model_that_cannot_be_loaded_does_not_fit():
    """Neither where the forward fits, nor where it is not known what the forward takes."""
    for model_type in ("llama", "gemma2"):
        job = job_of(model_type, "nf4", "bf16")
        free = estimate_inference(job, make_cluster("cpu"))
        loaded = free.phases[0].num_bytes
        assert loaded > free.predicted_floor_bytes
        short = estimate_inference(job, make_cluster("cpu", usable_bytes=loaded - 1))
        assert short.fits is False
        enough = estimate_inference(job, make_cluster("cpu", usable_bytes=loaded))
        assert enough.fits is (None if enough.unknown else True)


def test_what_is_not_counted_is_said():
    job = job_of("llama", "int4", "bf16")
    assert not has_load_formula("int4", kernels="cuda")
    estimate = estimate_inference(job, make_cluster("cuda"))
    assert any("int4 takes while loading is not counted" in a for a in estimate.assumptions)
    names = {item.name for item in estimate.items if item.phase == LOAD}
    assert TRANSIENTS not in names
