"""What is told beside an answer: how the same run is usually done."""

import json
import re

import msgspec
import pytest

from brimful.cli import resolved
from brimful.cli.main import main, parse
from brimful.cost.estimate import estimate
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.rules.subject import plain_strategy
from brimful.show.beside import Known, against_facts, on_host
from brimful.units import GIB
from samples import make_job


def test_a_recipe_of_unknown_speed_has_a_bound_of_its_step():
    cluster, strategy = load_cluster("h100-80gb", memory_limit_bytes=None), plain_strategy(1)
    usual, job = (
        make_job(model=load_model("llama-3.2-1b"), seq_len=2048, global_batch=1, precision=name)
        for name in ("bf16-mixed", "fp8")
    )
    (told,) = against_facts(job, cluster, strategy, Known(10**10, None, fits=True))
    time = estimate(usual, cluster, strategy).predicted_step_time
    most = int(re.search(r"at most ([\d,]+) tokens/s", told.text)[1].replace(",", ""))
    assert most == pytest.approx(2048 / (time.total_s - time.matrix_s / 2), rel=0.01)
    assert "2 x as fast" in told.text


def test_a_recipe_is_laid_beside_another_as_that_is_typed(capsys):
    """Of a frozen base too, which is in 16 bits in both: the difference is that of two answers."""
    ask = ["llama-3.2-3b", "--gpus", "rtx-2080-ti", "--method", "lora", "--seq-len", "2048"]
    told, peaks = "", []
    for precision in ("bf16", "fp16-mixed"):
        so = ["estimate", *ask, "--ac", "full", "--loss-chunks", "16", "--precision", precision]
        main([*so, "--json"])
        peaks.append(json.loads(capsys.readouterr().out)["predicted_reserved"])
        main(so)
        told = told or " ".join(capsys.readouterr().out.split())
    more = float(re.search(r"against fp16-mixed: ([\d.]+) GiB more", told)[1])
    bf16, fp16 = (each["predicted_peak_reserved_bytes"] for each in peaks)
    assert more == pytest.approx((fp16 - bf16) / 2**30, abs=0.01)


def test_another_recipe_that_does_not_fit_with_the_same_settings_is_said_to_be_too_much():
    cluster, strategy = load_cluster("rtx-3060", memory_limit_bytes=None), plain_strategy(1)
    job = make_job(model=load_model("llama-3.2-1b"), seq_len=512, global_batch=1, precision="bf16")
    made = estimate(job, cluster, strategy)
    known = Known(made.predicted_peak_allocated_bytes, made.predicted_step_s, made.fits)
    (told,) = against_facts(job, cluster, strategy, known)
    assert known.fits
    assert re.match(r"bf16-mixed: [\d.]+ GiB more, too much with these settings", told.text)


def test_a_host_is_told_as_training_needs_it_beside_what_it_has():
    """What saving takes more was counted, and a change would fit whose host was too small."""
    ask = ["llama-3.2-3b", "--gpus", "4xrtx-a6000", "--host-memory", "72GiB", "--seq-len", "512"]
    args = parse("estimate", [*ask, "--precision", "bf16-master", "--zero", "3"])
    cluster = resolved.cluster_from(args)
    strategy = msgspec.structs.replace(plain_strategy(1), zero=3, dp_shard=4, offload="optimizer")
    made = estimate(resolved.job_from(args), cluster, strategy)
    assert on_host(made, strategy) == ", 57.98 GiB of 72.00 GiB on the host"
    assert made.host.predicted_host_bytes.high > 72 * GIB
