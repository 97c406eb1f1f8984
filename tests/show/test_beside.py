"""What is told beside an answer: how the same run is usually done."""

import re

import pytest

from brimful.cost.estimate import estimate
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.rules.subject import plain_strategy
from brimful.show.beside import Known, against_facts
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
