"""What several GPUs would hold without the optimizer's state."""

import msgspec

from brimful.cost.estimate import estimate
from brimful.rungs import OPTIMIZER_STATE
from brimful.show.predicted import meter_of, several_offloaded_facts
from samples import make_cluster, make_job, make_strategy


def test_what_is_left_without_the_optimizers_state_is_a_difference():
    cluster = msgspec.structs.replace(make_cluster("cuda"), num_devices=2, devices_per_node=2)
    job, strategy = make_job(global_batch=4), make_strategy(micro_batch=2, dp_shard=2, zero=3)
    made = estimate(job, cluster, strategy)
    state = sum(item.num_bytes for item in made.items if item.name == OPTIMIZER_STATE)
    left = meter_of(made).used_bytes - state
    (fact,) = several_offloaded_facts(job, cluster, strategy, made)
    assert f"{left / 2**20:.2f} MiB are left" in fact.text
    assert not several_offloaded_facts(
        job, msgspec.structs.replace(cluster, num_devices=1), strategy, made
    )
    too_small = msgspec.structs.replace(made, usable_bytes=left - 1)
    assert not several_offloaded_facts(job, cluster, strategy, too_small)
