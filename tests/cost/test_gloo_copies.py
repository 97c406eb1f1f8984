"""On a CPU gloo takes copies while it gathers and reduces: predicted as they are simulated."""

import msgspec
import pytest

from brimful.cost.estimate import estimate
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

LEAST = 4096
"""Bytes of small tensors that no formula counts."""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "ways", [{"zero": 3, "dp_shard": 4}, {"zero": 3, "dp_shard": 2, "dp_replicate": 2}]
)
def test_prediction_is_that_of_the_simulation(ways):
    from brimful.simulate.run import simulate

    model = make_model(hidden_size=128, intermediate_size=352, vocab_size=512, num_layers=3)
    job = make_job(model=model, seq_len=64, global_batch=4)
    cluster = msgspec.structs.replace(make_cluster(), num_devices=4, devices_per_node=4)
    strategy = make_strategy(micro_batch=1, **ways)
    predicted, simulated = estimate(job, cluster, strategy), simulate(job, cluster, strategy)
    workspaces = {item.name: item.num_bytes for item in simulated.items}["kernel workspaces"]
    assert workspaces > LEAST
    assert predicted.predicted_peak_allocated_bytes == pytest.approx(
        simulated.simulated_peak_allocated_bytes, abs=LEAST
    )
