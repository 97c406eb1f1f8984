import pytest

from brimful.errors import UnsupportedError
from brimful.kernel_support import Place, check_attention, runnable, why_not
from samples import make_job, make_model, make_strategy

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
        check_attention(job_of(), make_strategy(attention="varlen"), CPU)
    reason = why_not(job_of("fp32"), "flash", H100)
    assert reason == "it takes bf16 and fp16, and precision=fp32 computes in fp32"
    strategy = make_strategy(attention="flash")
    assert check_attention(job_of(), strategy, H100) is strategy
