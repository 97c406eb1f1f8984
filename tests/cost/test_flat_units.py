"""FSDP1 on the first rung: formulas give what one device of the pretend world takes."""

import pytest

from brimful.cost.estimate import estimate
from brimful.cost.family import family_of
from brimful.cost.memory import follow_family, profile_for
from brimful.cost.resident import num_shards_of, optimizer_state, updated
from brimful.cost.states import device_update
from brimful.cost.update import updater_of
from brimful.simulate.run import simulate
from brimful.techniques.runnable import check_strategy
from brimful.values.results import GATHERED, PARAMETERS
from cost.test_spread import HYBRID, UNEVEN, ZERO_2, ZERO_3, build, items

FLAT = {"fsdp": 1}
SHORT = {"seq_len": 16}
"""So that the peak is where gradients are reduced."""
CASES = {
    "held": (ZERO_2, {"micro_batches": 3, "accumulate": "hold", "checkpointing": "full", **SHORT}),
    "several": (ZERO_3, {"micro_batches": 2, "checkpointing": "full:1", **SHORT}),
    "uneven masters": (UNEVEN, {"precision": "bf16-master"}),
    "replicas, biases": (HYBRID, {"architecture": "gpt2", "precision": "fp32", **SHORT}),
}
STEP_BYTES = 4
"""Of the number of steps, which each tensor has and no total counts."""
PEAK_SHARE = 1e-3
"""Of the peak; 1 % is the bar."""


@pytest.mark.torch
@pytest.mark.parametrize("name", CASES)
def test_the_prediction_is_the_simulation(name):
    spread, changes = CASES[name]
    job, cluster, strategy = build(spread | FLAT, **changes)
    check_strategy(job, strategy)
    predicted, simulated = estimate(job, cluster, strategy), simulate(job, cluster, strategy)
    peak = simulated.simulated_peak_allocated_bytes
    assert predicted.predicted_peak_allocated_bytes == pytest.approx(peak, rel=PEAK_SHARE)
    said, truth = items(predicted.items), items(simulated.items)
    for item in (PARAMETERS, GATHERED):
        assert said.get(item, 0) == pytest.approx(truth.get(item, 0), abs=64), item


def test_many_numbers_of_shards_are_one_after_another():
    job, cluster, strategy = build(ZERO_3 | FLAT, precision="bf16-mixed")
    family, device = family_of(job, strategy), cluster.device
    profile = profile_for(job, "sdpa", device, family)
    peaks = {
        num: follow_family(job, profile, device, family._replace(num_shards=num), by_item=False)
        for num in (2, 4)
    }
    both, _ = follow_family(
        job, profile, device, family._replace(num_blocks=[0, 0], num_shards=[2, 4]), by_item=False
    )
    alone = [float(peak.level[0, 0]) for peak, _ in peaks.values()]
    assert both.level[0].tolist() == alone


def test_an_update_is_of_the_tensors_that_are_asked_for():
    job, cluster, strategy = build(UNEVEN | FLAT, precision="bf16-master")
    family = family_of(job, strategy)
    update = device_update(job, family, updater_of(cluster.device, num_shards_of(family)))
    made = [num for each in optimizer_state(job, family) for num in each.num_bytes]
    assert update.kept == sum(made) - STEP_BYTES * len(updated(job, family))
