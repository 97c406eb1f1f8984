"""What a simulated device tells the others in a step."""

import msgspec
import pytest

from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

NUM_LAYERS, NUM_MICRO = 3, 5
UNITS = NUM_LAYERS + 1
"""Every block, and what is around them."""


def told(**ways):
    from brimful.simulate.run import simulate

    job = make_job(
        model=make_model(num_layers=NUM_LAYERS, vocab_size=98), global_batch=2 * NUM_MICRO
    )
    cluster = msgspec.structs.replace(make_cluster(), num_devices=2, devices_per_node=2)
    strategy = make_strategy(**{"micro_batch": 1, **ways})
    return {of.kind: of for of in simulate(job, cluster, strategy).collectives}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("ways", "num_gathers", "num_reduces"),
    [
        # Blocks are gathered again for each backward, the root is not.
        ({"zero": 3}, NUM_MICRO * (2 * NUM_LAYERS + 1), NUM_MICRO * UNITS),
        ({"zero": 2}, NUM_MICRO * UNITS, NUM_MICRO * UNITS),
        ({"zero": 3, "accumulate": "hold"}, NUM_MICRO * (2 * NUM_LAYERS + 1), UNITS),
    ],
)
def test_every_micro_batch_counts(ways, num_gathers, num_reduces):
    found = told(dp_shard=2, **ways)
    assert found["all-gather"].num_calls == num_gathers
    assert found["reduce-scatter"].num_calls == num_reduces


def test_bytes_are_those_of_the_whole_model():
    found = told(dp_shard=2, zero=3, accumulate="hold")
    replicas = told(dp_replicate=2, accumulate="hold")
    scalar = 4  # the loss, summed over the devices
    assert found["reduce-scatter"].num_bytes == replicas["all-reduce"].num_bytes - scalar


def test_one_device_tells_nobody():
    assert told(micro_batch=2) == {}
