import pytest

from brimful.errors import UnsupportedError
from brimful.techniques.kernel_support import (
    Place,
    check_attention,
    first_that_runs,
    runnable,
    why_emulated,
    why_not,
)
from samples import make_job, make_model

CPU, H100, A100, A40, V100 = (
    Place("cpu", 0.0), Place("cuda", 9.0), Place("cuda", 8.0), Place("cuda", 8.6),
    Place("cuda", 7.0),
)  # fmt: skip


def job_of(precision="bf16", head_dim=64):
    return make_job(model=make_model(head_dim=head_dim), precision=precision)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16-mixed"])
def test_a_cpu_has_one_fused_kernel(precision):
    assert runnable(job_of(precision), CPU) == ("eager", "sdpa", "flash")


@pytest.mark.parametrize(
    ("place", "precision", "head_dim", "refused"),
    [
        (H100, "bf16", 64, set()),
        (H100, "fp32", 64, {"flash", "cudnn", "varlen"}),
        (H100, "tf32", 64, {"flash", "cudnn", "varlen"}),
        (H100, "bf16-mixed", 256, set()),
        (A100, "bf16-mixed", 256, {"cudnn"}),
        (A100, "bf16", 264, {"flash", "cudnn", "varlen"}),
        (A100, "fp16", 36, {"efficient", "cudnn", "varlen"}),
        (A40, "bf16", 200, {"flash", "cudnn", "varlen"}),
        (V100, "fp16", 64, {"flash", "cudnn", "varlen"}),
        (V100, "bf16", 64, {"flash", "efficient", "cudnn", "varlen"}),
    ],
)
def test_a_card_refuses_what_it_has_no_kernel_for(place, precision, head_dim, refused):
    job = job_of(precision, head_dim)
    everything = {"eager", "sdpa", "flash", "efficient", "cudnn", "flex", "varlen"}
    assert set(runnable(job, place)) == everything - refused


def test_a_refusal_gives_the_reason_and_what_to_use():
    message = r"attention=varlen cannot run here: .* CUDA only; use eager or sdpa or flash"
    with pytest.raises(UnsupportedError, match=message):
        check_attention(job_of(), "varlen", CPU)
    reason = why_not(job_of("fp32"), "flash", H100)
    assert reason == "it takes bf16 and fp16, and precision=fp32 computes in fp32"
    assert check_attention(job_of(), "flash", H100) == "flash"


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        ({}, ("a", "")),
        ({"a": "no a"}, ("b", "no a")),
        ({"a": "no a", "b": "no b"}, ("c", "no a")),
        ({"a": "no a", "b": "no b", "c": "no c"}, ("a", "")),
    ],
)
def test_the_first_default_that_runs_is_taken_with_what_speaks_against_the_first(refused, expected):
    assert first_that_runs(("a", "b", "c"), refused.get) == expected


@pytest.mark.parametrize(
    ("precision", "place", "is_emulated"),
    [
        ("bf16-mixed", V100, True),
        ("bf16", A100, False),
        ("bf16-master", CPU, False),
        ("fp16-mixed", V100, False),
        ("fp16-mixed", Place("cuda", 6.1), True),
        ("fp32", Place("cuda", 6.1), False),
        ("tf32", V100, False),
        ("fp8", A100, True),
    ],
)
def test_recipes_without_units_of_their_own_are_no_default(precision, place, is_emulated):
    assert (why_emulated(precision, place) is not None) is is_emulated
