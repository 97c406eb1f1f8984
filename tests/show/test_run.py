"""How a speed that is not known is told."""

import pytest

from brimful.hardware.devices import gpus
from brimful.show.run import speed_facts
from samples import make_job


@pytest.mark.parametrize(
    ("precision", "whose"),
    [("fp8", "this GPU in this precision"), ("bf16-mixed", "what links these GPUs")],
)
def test_what_is_not_known_is_named(precision, whose):
    """An fp8 rate stands in the data sheet of a B200, and no share of it was fitted to a run."""
    job, device = make_job(precision=precision), gpus()["b200"]
    (fact,) = speed_facts(job, None, None, device=device, num_devices=8)
    assert fact.text == f"unknown: no rates are known of {whose}"
