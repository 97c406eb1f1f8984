"""AMD's GPUs: as CUDA's to PyTorch, with AOTriton's attention and BLAS libraries of their own."""

import pytest

from brimful.cost.estimate import estimate
from brimful.errors import UnsupportedError
from brimful.hardware.cuda_chips import version_of
from brimful.hardware.cuda_libraries import libraries
from brimful.hardware.gpus import load_cluster
from brimful.hardware.names import find_gpu, split_counts
from brimful.models.config import load_model
from brimful.techniques.kernel_support import Place, check_precision, runnable, why_not
from brimful.units import MIB
from brimful.values.job import plain_job
from samples import make_job, make_strategy

MI300X = 94.2


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("7900xtx", "rx-7900-xtx", 1),
        ("2x7900xtx", "rx-7900-xtx", 2),
        ("2 x rx 7900 xtx", "rx-7900-xtx", 2),
        ("Radeon RX 7900 XT", "rx-7900-xt", 1),
        ("9070xt", "rx-9070-xt", 1),
        ("Radeon PRO W7900", "w7900", 1),
        ("4xRadeon AI PRO R9700", "r9700", 4),
        ("strix halo", "strix-halo", 1),
        ("Ryzen AI Max+ 395", "strix-halo", 1),
        ("framework desktop", "strix-halo", 1),
        ("8xMI300X", "mi300x", 8),
    ],
)
def test_as_people_write_them(text, name, count):
    counted = split_counts(text)
    assert (find_gpu(counted.gpu), counted.per_node) == (name, count)


def test_attention_is_fused_and_there_is_no_cudnn():
    job = plain_job(load_model("llama-3.1-8b"), precision="bf16-mixed")
    place = Place("cuda", MI300X)
    assert runnable(job, place) == ("eager", "sdpa", "flash", "efficient", "flex", "varlen")
    assert "no cuDNN" in why_not(job, "cudnn", place)


@pytest.mark.parametrize(("capability", "has"), [(90.0, False), (94.2, True), (110.0, False)])
def test_fp8_runs_where_matrix_cores_multiply_it(capability, has):
    job = plain_job(load_model("llama-3.1-8b"), precision="fp8")
    if has:
        assert check_precision(job, Place("cuda", capability)) == job
        return
    with pytest.raises(UnsupportedError, match="from CDNA 3 and RDNA 4 on"):
        check_precision(job, Place("cuda", capability))


def test_libraries_keep_more_than_cublas():
    assert libraries().cublas_bytes(version_of(MI300X)) == (128 + 76) * MIB
    assert libraries().cublas_bytes(version_of(110.0)) == (32 + 76) * MIB


@pytest.mark.torch
@pytest.mark.parametrize("gpu", ["mi300x", "rx-7900-xtx"])
def test_predicted_is_simulated(gpu):
    from brimful.simulate.run import simulate

    job = make_job(precision="bf16-mixed")
    cluster, strategy = load_cluster(gpu, memory_limit_bytes=None), make_strategy()
    said = estimate(job, cluster, strategy)
    seen = simulate(job, cluster, strategy)
    assert said.predicted_peak_allocated_bytes == pytest.approx(
        seen.simulated_peak_allocated_bytes, rel=1e-4
    )
    assert not seen.unknown_ops
