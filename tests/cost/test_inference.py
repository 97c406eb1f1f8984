import msgspec
import pytest

from brimful.cost.formats import DYNAMIC, FORMATS, SERVED
from brimful.cost.inference import (
    KV_CACHE,
    InferenceJob,
    check_inference,
    compute_of,
    estimate_inference,
)
from brimful.cost.inference_limits import limits, other_formats, shorter_prompt
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.units import GIB
from samples import make_cluster


def job_of(name="llama-3.1-8b", **changes):
    fields = {
        "model": load_model(name),
        "weights_format": "bf16",
        "compute": "bf16",
        "num_sequences": 1,
        "seq_len": 8192,
        "prompt_len": 8192,
    }
    return InferenceJob(**{**fields, **changes})


def cuda(usable_bytes):
    return make_cluster("cuda", usable_bytes=usable_bytes)


@pytest.mark.parametrize(
    "weights_format", [name for name in FORMATS if name not in DYNAMIC | SERVED]
)
def test_items_sum_to_the_peak_in_every_format(weights_format):
    job = job_of(weights_format=weights_format, compute=compute_of(weights_format))
    estimate = estimate_inference(job, load_cluster("h100-80gb", memory_limit_bytes=None))
    peak = estimate.predicted_peak_allocated_bytes
    assert sum(item.num_bytes for item in estimate.items) == peak
    assert max(phase.num_bytes for phase in estimate.phases) == peak
    assert peak > estimate.predicted_floor_bytes
    assert estimate.fits is (peak <= estimate.usable_bytes)
    assert next(i.num_bytes for i in estimate.items if i.name == KV_CACHE) >= GIB


def test_fewer_bits_take_fewer_bytes():
    order = ("fp32", "bf16", "int8", "nf4", "int4", "nf4-double")
    cluster = load_cluster("h100-80gb", memory_limit_bytes=None)
    floors = [
        estimate_inference(
            job_of(weights_format=f, compute=compute_of(f)), cluster
        ).predicted_floor_bytes
        for f in order
    ]
    assert floors == sorted(floors, reverse=True)


def test_more_text_never_takes_less():
    cluster = load_cluster("h100-80gb", memory_limit_bytes=None)
    for field in ("num_sequences", "seq_len"):
        peaks = []
        for size in (1, 7, 128, 1024):
            changes = (
                {field: size, "prompt_len": min(size, 64)} if field == "seq_len" else {field: size}
            )
            estimate = estimate_inference(job_of(**changes), cluster)
            peaks.append(estimate.predicted_peak_allocated_bytes)
        assert peaks == sorted(peaks)


@pytest.mark.parametrize("prompt_len", [8192, 512])
def test_limits_are_the_last_that_fit(prompt_len):
    job, cluster = job_of(num_sequences=4, prompt_len=prompt_len), cuda(24 * GIB)
    most = limits(job, cluster)

    def fits(**changes):
        return estimate_inference(msgspec.structs.replace(job, **changes), cluster).fits

    def of_length(length):
        whole = prompt_len == job.seq_len
        return {"seq_len": length, "prompt_len": length if whole else min(length, prompt_len)}

    assert 0 < most.num_sequences < 10**6
    assert fits(num_sequences=most.num_sequences) is True
    assert fits(num_sequences=most.num_sequences + 1) is False
    assert 0 < most.seq_len < job.model.max_seq_len
    assert fits(**of_length(most.seq_len)) is True
    assert fits(**of_length(most.seq_len + 1)) is False


def test_a_prompt_that_does_not_fit_at_once_may_fit_in_chunks():
    job, cluster = job_of(seq_len=40_000, prompt_len=40_000), cuda(24 * GIB)

    def fits(other):
        return estimate_inference(other, cluster).fits

    assert fits(job) is False
    num_tokens = shorter_prompt(job, fits)
    assert num_tokens in {20_000, 10_000, 5_000}
    assert fits(msgspec.structs.replace(job, prompt_len=num_tokens)) is True
    assert fits(msgspec.structs.replace(job, prompt_len=2 * num_tokens)) is False
    assert shorter_prompt(job, lambda _: False) == 0


def test_limits_where_no_text_fits_and_where_any_does():
    assert limits(job_of(), cuda(4 * GIB)) == (0, 0, 0)
    small = job_of("smollm2-135m", seq_len=128, prompt_len=128)
    assert limits(small, cuda(80 * GIB)).seq_len == small.model.max_seq_len


def test_limits_are_unknown_without_a_formula():
    assert limits(job_of("gemma-2-2b"), cuda(80 * GIB)) is None


def test_other_formats_say_which_would_fit():
    found = other_formats(job_of(), cuda(12 * GIB))
    sizes = [row.num_bytes for row in found]
    assert sizes == sorted(sizes, reverse=True)
    fitting = {row.weights_format for row in found if row.fits}
    assert "nf4" in fitting
    assert not fitting & {"fp32", "bf16", "fp16"}
    assert {row.weights_format for row in found} == set(FORMATS) - DYNAMIC - SERVED - {"tf32"}


def test_a_floor_that_does_not_fit_is_an_answer_without_a_formula():
    estimate = estimate_inference(job_of("gpt-oss-20b"), cuda(24 * GIB))
    assert (estimate.fits, estimate.predicted_peak_allocated_bytes) == (False, None)
    assert estimate.predicted_floor_bytes > estimate.usable_bytes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_sequences": 0}, "num_sequences=0 is out of range"),
        (
            {"seq_len": 200_000, "prompt_len": 1},
            "seq_len=200000 is longer than llama-3.1-8b's 131072",
        ),
        ({"prompt_len": 8193}, "prompt_len=8193 is more than seq_len=8192"),
        ({"weights_format": "fp16"}, "weights_format=fp16 computes in fp16, not in bf16"),
    ],
)
def test_bad_jobs_are_refused_in_a_sentence(changes, said):
    with pytest.raises(InputError, match=said):
        check_inference(job_of(**changes))


def test_models_that_write_nothing_are_refused():
    with pytest.raises(UnsupportedError, match="type bert, whose cache"):
        check_inference(job_of("bert-base-uncased", seq_len=512, prompt_len=512))


def test_a_mixture_says_that_its_experts_stay_whole():
    estimate = estimate_inference(job_of("mixtral-8x7b", weights_format="nf4"), cuda(80 * GIB))
    assert "experts stay bf16" in estimate.items[0].why
    assert estimate.fits is False
