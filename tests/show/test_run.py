"""How a speed that is not known is told."""

import pytest

from brimful.hardware.gpus import load_cluster
from brimful.show.run import speed_facts
from samples import make_job


@pytest.mark.parametrize(
    ("precision", "whose"),
    [("fp8", "this GPU in this precision"), ("bf16-mixed", "what links these GPUs")],
)
def test_what_is_not_known_is_named(precision, whose):
    """An fp8 rate stands in the data sheet of a B200, and no share of it was fitted to a run."""
    job = make_job(precision=precision)
    cluster = load_cluster("8xb200", memory_limit_bytes=None)
    (fact,) = speed_facts(job, None, None, cluster=cluster)
    assert fact.text == f"unknown: no rates are known of {whose}"
