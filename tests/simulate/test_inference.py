"""The simulation of inference against a real one on a CPU, which shares no instrument with it."""

import msgspec
import pytest
import torch
from tests.models.meta import SMALL
from torch.profiler import ProfilerActivity, profile
from transformers import DynamicCache

from brimful.build.inference import inference_skeleton
from brimful.build.model import materialize
from brimful.build.writing import cache_tensors, grow, new_cache, next_token, prompts
from brimful.cost.held import held_bytes
from brimful.cost.inference import (
    CONSTANTS,
    DECODE,
    KV_CACHE,
    PREFILL,
    InferenceJob,
    estimate_inference,
)
from brimful.cost.kv_cache import CACHED
from brimful.errors import UnsupportedError
from brimful.measure.allocations import collect, lifetimes, live_bytes
from brimful.models.config import read_config
from brimful.simulate.inference import simulate_inference, trace_inference
from brimful.values.job import plain_job
from brimful.values.results import BUFFERS, PARAMETERS
from hybrids import HYBRID, SPARSE
from other_decoders import PLAIN
from samples import make_cluster

pytestmark = pytest.mark.torch

SIZES = {"hidden_size": 128, "intermediate_size": 344, "vocab_size": 2000, "head_dim": 32}
CASES = [
    ("llama", "fp32", {}),
    ("llama", "fp32", {"num_key_value_heads": 4, "num_hidden_layers": 1}),
    ("gpt2", "fp32", {"n_embd": 128, "vocab_size": 2000}),
    ("qwen3", "fp32", {}),
    ("mixtral", "fp32", {"intermediate_size": 128}),
    ("gemma2", "fp32", {}),
    ("mistral", "fp32", {"sliding_window": 100}),
]
HALF = ("llama", "bf16", {})
"""In 16 bits a CPU's kernels take memory of their own, which the tape does not see in full."""


def job_of(case, **changes):
    model_type, compute, more = case
    base = {} if model_type == "gpt2" else SIZES
    config = {"model_type": model_type, **SMALL[model_type], **base, **more}
    fields = {
        "model": read_config("tiny", config),
        "weights_format": compute,
        "compute": compute,
        "num_sequences": 3,
        "seq_len": 256,
        "prompt_len": 256,
    }
    return InferenceJob(**{**fields, **changes})


def measured_prefill(job):
    """Return the peak of a real prefill above the weights, by the profiler's allocation events."""
    skeleton = inference_skeleton(job)
    plain = plain_job(job.model, precision=job.compute)
    model = materialize(skeleton, device=torch.device("cpu"), job=plain).eval()
    tokens = torch.zeros((job.num_sequences, job.prompt_len), dtype=torch.int64)

    def forward(tokens):
        cache = DynamicCache(config=model.config)
        out = model(input_ids=tokens, past_key_values=cache, logits_to_keep=1)
        return out.logits[:, -1, :].to(copy=True, dtype=torch.float32).argmax(-1)

    with torch.no_grad():
        forward(tokens[:1, :1])
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
            forward(tokens)
    events = collect(run.profiler.kineto_results.experimental_event_tree()).events
    return int(live_bytes(lifetimes(events), len(events.num_bytes)).max())


@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_simulated_prefill_is_the_measured_one(case):
    job = job_of(case)
    simulation = simulate_inference(job, make_cluster("cpu"))
    peaks = {phase.phase: phase.num_bytes for phase in simulation.phases}
    held = sum(i.num_bytes for i in simulation.items if i.name in {PARAMETERS, "buffers"})
    tokens = 8 * job.num_sequences * job.prompt_len  # made before the profiler listened
    assert peaks[PREFILL] - held - tokens == pytest.approx(measured_prefill(job), rel=5e-3)


@pytest.mark.few(2)
@pytest.mark.parametrize("model_type", ["deepseek_v32", "granitemoehybrid", "lfm2", "qwen3_next"])
def test_of_recurrences_and_what_is_chosen_it_is_the_measured_one_too(model_type):
    """Their caches hold states, and what finds the tokens that are attended to."""
    own = HYBRID.get(model_type, SPARSE.get(model_type))
    config = {**PLAIN, "num_hidden_layers": 3, **own, "model_type": model_type}
    tokens = {"num_sequences": 3, "seq_len": 64, "prompt_len": 64}
    job = InferenceJob(
        model=read_config("tiny", config), weights_format="fp32", compute="fp32", **tokens
    )
    simulation = simulate_inference(job, make_cluster("cpu"))
    peaks = {phase.phase: phase.num_bytes for phase in simulation.phases}
    held = sum(i.num_bytes for i in simulation.items if i.name in {PARAMETERS, "buffers"})
    assert peaks[PREFILL] - held - 8 * 3 * 64 == pytest.approx(measured_prefill(job), rel=5e-3)
    longer = simulate_inference(msgspec.structs.replace(job, seq_len=96), make_cluster("cpu"))
    assert [phase.phase for phase in longer.phases] == ["load", PREFILL, DECODE]


def test_keys_grow_and_states_stay():
    config = {**PLAIN, "num_hidden_layers": 3, **HYBRID["lfm2"], "model_type": "lfm2"}
    job = InferenceJob(
        model=read_config("tiny", config), weights_format="fp32", compute="fp32",
        num_sequences=2, seq_len=8, prompt_len=8,
    )  # fmt: skip
    plain = plain_job(job.model, precision="fp32")
    model = materialize(inference_skeleton(job), device=torch.device("cpu"), job=plain).eval()
    cache = new_cache(model)
    with torch.no_grad():
        next_token(model, prompts(2, 8, torch.device("cpu")), cache)
    before = cache_tensors(cache)
    grow(cache, num_tokens=12)
    after = cache_tensors(cache)
    grown = [new for old, new in zip(before, after, strict=True) if new is not old]
    assert [each.shape[-2] for each in grown] == [12, 12]  # keys and values of the one that attends
    assert len(after) - len(grown) == 2  # a state of each convolution


def test_the_cache_grows_to_the_length_that_was_asked_for():
    job = job_of(CASES[0], prompt_len=16)
    simulation = simulate_inference(job, make_cluster("cpu"))
    assert [phase.phase for phase in simulation.phases] == ["load", PREFILL, DECODE]
    cache = next(item.num_bytes for item in simulation.items if item.name == KV_CACHE)
    assert cache == pytest.approx(3 * 2 * 3 * 2 * 32 * 256 * 4, rel=0.01)
    items = sum(item.num_bytes for item in simulation.items)
    assert items == simulation.simulated_peak_allocated_bytes


LOADS = [
    *((model_type, "bf16", "nf4-double") for model_type in CACHED),
    *((model_type, "fp16", "fp16") for model_type in CACHED),
    ("llama", "bf16", "llm-int8"),
    ("gpt2", "fp16", "nf4"),
]


@pytest.mark.few(4)
@pytest.mark.parametrize(("model_type", "compute", "weights_format"), LOADS)
def test_what_is_loaded_is_what_the_formula_says(model_type, compute, weights_format):
    spec = read_config("tiny", {"model_type": model_type, **SMALL[model_type]})
    sizes = {"num_sequences": 1, "seq_len": 8, "prompt_len": 8}
    job = InferenceJob(model=spec, weights_format=weights_format, compute=compute, **sizes)
    kernels = "cuda" if weights_format == "llm-int8" else "cpu"
    recording = trace_inference(job, make_cluster(kernels).device)
    held = held_bytes(spec, weights_format, compute)
    simulated = dict.fromkeys(recording.items, 0)
    for index, num_bytes in zip(recording.item, recording.num_bytes.tolist(), strict=True):
        simulated[recording.items[index]] += num_bytes
    assert simulated[PARAMETERS] == held.quantized + held.whole
    assert simulated.get(CONSTANTS, 0) == held.constants
    assert simulated.get(BUFFERS, 0) == held.buffers


def test_on_a_card_the_allocator_decides():
    simulation = simulate_inference(job_of(HALF), make_cluster("cuda"))
    assert simulation.reserved.outcome == "fits"
    small = simulate_inference(job_of(HALF), make_cluster("cuda", usable_bytes=800_000_000))
    assert small.reserved.capacity_bytes < 2**27
    assert small.reserved.outcome in {"fits", "out of memory"}


def test_what_hangs_on_values_is_refused():
    job = job_of(HALF, weights_format="llm-int8")
    with pytest.raises(UnsupportedError, match="how many inputs are outliers"):
        simulate_inference(job, make_cluster("cpu"))
    assert "hangs on outliers" in estimate_inference(job, make_cluster("cpu")).unknown


def test_kernels_that_are_not_here_are_not_simulated():
    pytest.importorskip("torchao")
    job = job_of(HALF, weights_format="int4")
    with pytest.raises(UnsupportedError, match="its kernels are mslk's"):
        simulate_inference(job, make_cluster("cuda"))
    int8 = job_of(HALF, weights_format="int8")
    assert simulate_inference(int8, make_cluster("cuda")).reserved.outcome == "fits"
