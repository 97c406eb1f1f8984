"""Models that write text, for real: each format's bytes and peaks beside what was simulated."""

import json

import pytest
import torch
from tests.models.meta import SMALL
from transformers import AutoModelForCausalLM

from brimful.build.exported import read_exported
from brimful.build.inference import inference_skeleton
from brimful.build.model import materialize
from brimful.build.writing import new_cache, next_token, prompts
from brimful.cost.exported import exported_format
from brimful.cost.held import held_bytes
from brimful.cost.inference import (
    CONSTANTS,
    DECODE,
    KV_CACHE,
    LOAD,
    PREFILL,
    InferenceJob,
    estimate_inference,
)
from brimful.errors import FileFormatError, UnsupportedError
from brimful.measure.inference import measure_inference
from brimful.models.config import load_model, read_config
from brimful.simulate.inference import simulate_inference
from brimful.units import MIB
from brimful.values.job import plain_job
from brimful.values.results import BUFFERS, PARAMETERS
from samples import make_cluster

pytestmark = pytest.mark.torch
torchao = pytest.importorskip("torchao", reason="torchao is not installed (brimful[qat])")

WIDTHS = {"hidden_size": 256, "intermediate_size": 768, "vocab_size": 1000, "head_dim": 32}
CASES = [
    # weights, what is computed in, tokens that are read at once
    ("fp32", "fp32", 64),
    ("bf16", "bf16", 96),
    ("fp16", "fp16", 64),
    ("int8", "bf16", 64),
    ("int8", "fp32", 96),
    ("int4", "bf16", 64),
    ("int4", "fp16", 96),
    ("int8-dynamic", "bf16", 64),
    ("int4-dynamic", "fp32", 64),
    ("nf4", "bf16", 64),
]


SHORT = [
    # model, how its widths are, format: a text so short that loading takes most
    ("llama", {**WIDTHS, "tie_word_embeddings": True}, "int4"),
    ("qwen2", {"hidden_size": 256, "intermediate_size": 896, "vocab_size": 3000}, "nf4-double"),
    ("gpt2", {"n_embd": 256, "vocab_size": 1000}, "nf4"),
    ("mixtral", {**WIDTHS, "intermediate_size": 256}, "int8"),
]


def job_of(case, *, model_type="llama", widths=WIDTHS, **changes):
    weights_format, compute, prompt_len = case
    config = {"model_type": model_type, **SMALL[model_type], **widths}
    fields = {
        "model": read_config("tiny", config),
        "weights_format": weights_format,
        "compute": compute,
        "num_sequences": 9,
        "seq_len": 96,
        "prompt_len": prompt_len,
    }
    return InferenceJob(**{**fields, **changes})


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_phase_takes_what_was_simulated(case):
    if case[0] == "nf4":
        pytest.importorskip("bitsandbytes")
    job = job_of(case)
    simulated = simulate_inference(job, make_cluster("cpu"))
    measured = measure_inference(job, weights=None)
    expected = {phase.phase: phase.num_bytes for phase in simulated.phases}
    found = {phase.phase: phase.num_bytes for phase in measured.phases}
    assert set(found) == set(expected) == {LOAD, PREFILL} | ({DECODE} if case[2] < 96 else set())
    for name, size in found.items():
        assert abs(expected[name] - size) <= min(MIB, 0.05 * size), name
    for phase in estimate_inference(job, make_cluster("cpu")).phases:
        assert phase.num_bytes == pytest.approx(expected[phase.phase], rel=0.001), phase.phase
    peak = measured.measured_peak_allocated_bytes
    off = abs(simulated.simulated_peak_allocated_bytes - peak)
    assert off <= 0.005 * peak
    assert sum(item.num_bytes for item in measured.items) == peak
    held = held_bytes(job.model, job.weights_format, job.compute)
    seen = {item.name: item.num_bytes for item in measured.items}
    assert seen[PARAMETERS] == held.quantized + held.whole
    shared = 64 if case[0] == "nf4" else 0  # a table that the library keeps for all models
    assert held.constants - seen.get(CONSTANTS, 0) in {0, shared}
    assert seen[BUFFERS] == held.buffers
    assert {item.phase for item in measured.items} == {PREFILL}
    cached = {item.name: item.num_bytes for item in simulated.items}[KV_CACHE]
    assert seen[KV_CACHE] == cached == _cache_bytes(job)


@pytest.mark.few(2)
@pytest.mark.parametrize(("model_type", "widths", "weights_format"), SHORT)
def test_a_short_text_takes_most_while_it_is_loaded(model_type, widths, weights_format):
    if weights_format.startswith("nf4"):
        pytest.importorskip("bitsandbytes")
    sizes = {"num_sequences": 1, "seq_len": 16}
    job = job_of((weights_format, "bf16", 8), model_type=model_type, widths=widths, **sizes)
    predicted = estimate_inference(job, make_cluster("cpu"))
    simulated = simulate_inference(job, make_cluster("cpu"))
    measured = measure_inference(job, weights=None)
    peaks = (
        predicted.predicted_peak_allocated_bytes,
        simulated.simulated_peak_allocated_bytes,
        measured.measured_peak_allocated_bytes,
    )
    assert max(peaks) - min(peaks) <= 0.001 * peaks[2]
    for found in (predicted, simulated, measured):
        assert {item.phase for item in found.items} == {LOAD}
        phases = {phase.phase: phase.num_bytes for phase in found.phases}
        assert max(phases, key=phases.get) == LOAD
    floor = held_bytes(job.model, weights_format, "bf16").total
    assert peaks[2] > 1.03 * floor


def test_reading_weights_of_a_folder_takes_next_to_nothing_beside(tmp_path):
    """An embedding that was read at once would be there twice."""
    widths = {**WIDTHS, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 40_000}
    job = job_of(("fp32", "fp32", 8), widths=widths, num_sequences=1, seq_len=8)
    build(job).save_pretrained(tmp_path)
    simulated = simulate_inference(job, make_cluster("cpu"))
    measured = measure_inference(job, weights=str(tmp_path))
    peaks = [{p.phase: p.num_bytes for p in found.phases} for found in (simulated, measured)]
    assert peaks[1][LOAD] > 40_000 * 64 * 4
    for name, size in peaks[0].items():
        assert abs(peaks[1][name] - size) <= 1.1 * MIB, name


def _cache_bytes(job):
    """Count keys and values of all tokens, in every block and each of its heads."""
    model, element = job.model, 4 if job.compute == "fp32" else 2
    each = 2 * model.num_kv_heads * model.head_dim * element
    return job.num_sequences * job.prompt_len * model.num_layers * each


def test_another_format_would_be_noticed():
    measured = measure_inference(job_of(CASES[3]), weights=None).measured_peak_allocated_bytes
    other = simulate_inference(job_of(CASES[5]), make_cluster("cpu"))
    assert abs(other.simulated_peak_allocated_bytes - measured) > 4 * 0.005 * measured


def build(job):
    plain = plain_job(job.model, precision=job.compute)
    return materialize(inference_skeleton(job), device=torch.device("cpu"), job=plain).eval()


@pytest.mark.parametrize("compute", ["bf16", "fp32"])
@pytest.mark.parametrize("bias", [False, True])
def test_int4_is_that_of_torchao(compute, bias):
    """The same numbers to the bit, by its own class for CPUs."""
    from torchao.prototype.quantization.int4.inference_workflow import (
        PrototypeInt4WeightOnlyConfig,
    )

    from brimful.build.quantize import FORMATS, dequantize, fill, swap

    dtype = torch.bfloat16 if compute == "bf16" else torch.float32
    theirs = torch.nn.Sequential(torch.nn.Linear(256, 96, bias=bias, dtype=dtype))
    with torch.device("meta"):
        ours = torch.nn.Sequential(torch.nn.Linear(256, 96, bias=bias, dtype=dtype))
    swap(ours, "torchao-int4", dtype=dtype, keeps=lambda _: False)
    weight = theirs[0].weight.detach().clone()
    fill(ours[0], weight)
    if bias:
        ours[0].bias = theirs[0].bias
    torchao.quantization.quantize_(theirs, PrototypeInt4WeightOnlyConfig(set_inductor_config=False))
    x = torch.randn(2, 5, 256, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours[0].weight, theirs[0].weight.qdata)
    assert torch.equal(ours[0].scale_and_zero, theirs[0].weight.scale_and_zero)
    torch.testing.assert_close(dequantize(ours[0]), weight, atol=0.02, rtol=0.1)
    assert "torchao-int4" in FORMATS


def test_int8_is_that_of_torchao():
    job = job_of(("int8", "bf16", 64))
    model = build(job)
    kinds = {type(p.data).__name__ for n, p in model.named_parameters() if "proj" in n}
    assert kinds == {"Int8Tensor"}
    assert type(model.lm_head.weight.data) is torch.Tensor


@pytest.fixture
def exported(tmp_path):
    """Write a folder as ``brimful convert`` does."""
    from brimful.build.rounding import convert, left_whole, prepare
    from brimful.techniques.quantization import Quantization
    from brimful.train.rounded_export import write_rounded

    def write(scheme, group_size):
        quantization = Quantization(scheme=scheme, group_size=group_size)
        model = build(job_of(("fp32", "fp32", 64)))
        left = left_whole(model)
        convert(prepare(model, quantization, keeps=left.__contains__), quantization)
        folder = tmp_path / scheme
        folder.mkdir()
        write_rounded(model, quantization, left=left, source=tmp_path, folder=folder)
        return folder

    return write


@pytest.mark.few(1)
@pytest.mark.parametrize(("scheme", "group_size"), [("int8", 0), ("int4", 32)])
def test_a_converted_folder_is_read_as_transformers_reads_it(exported, scheme, group_size):
    folder = exported(scheme, group_size)
    spec = load_model(str(folder))
    weights_format = exported_format(spec)
    assert weights_format == f"{scheme}-dynamic"
    job = job_of((weights_format, "fp32", 64), model=spec)
    model = build(job)
    read_exported(model, folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    ids = torch.randint(0, 1000, (2, 9))
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, theirs(input_ids=ids).logits)
        token = next_token(model, prompts(1, 4, torch.device("cpu")), new_cache(model))
    assert token.shape == (1, 1)
    measured = measure_inference(job, weights=None, exported=folder)
    simulated = simulate_inference(job, make_cluster("cpu"))
    peak = measured.measured_peak_allocated_bytes
    assert abs(simulated.simulated_peak_allocated_bytes - peak) <= 0.005 * peak


def test_a_folder_that_lacks_a_tensor_is_refused(exported):
    from safetensors.torch import load_file, save_file

    folder = exported("int8", 0)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    whole = dict(tensors)
    del whole["model.norm.weight"]
    save_file(whole, file)
    job = job_of(("int8-dynamic", "fp32", 64))
    with pytest.raises(FileFormatError, match=r"lacks model\.norm\.weight"):
        read_exported(build(job), folder)
    save_file({**tensors, "other.weight": torch.zeros(3)}, file)
    with pytest.raises(FileFormatError, match=r"holds other\.weight"):
        read_exported(build(job), folder)


def test_groups_of_another_size_are_refused(exported):
    spec = load_model(str(exported("int4", 64)))
    with pytest.raises(UnsupportedError, match="int4, group_size=64, which this version does not"):
        exported_format(spec)
    plain = json.loads(json.dumps(spec.hf_config))
    del plain["quantization_config"]
    assert exported_format(read_config("tiny", {"model_type": "llama", **plain})) is None


def test_the_longest_text_of_a_model_is_written_to_its_end():
    """Speeds are timed without the profiler, within the positions that there are."""
    widths = {"n_embd": 256, "vocab_size": 1000, "n_positions": 64}
    short = {"num_sequences": 1, "seq_len": 64}
    job = job_of(("bf16", "bf16", 8), model_type="gpt2", widths=widths, **short)
    measured = measure_inference(job, weights=None)
    assert job.model.max_seq_len == job.seq_len
    assert measured.measured_token_s > 0
    assert measured.measured_prefill_s > 0
