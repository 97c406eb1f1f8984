import msgspec
import pytest

from brimful.cost.estimate import estimate
from brimful.train.utilization import Utilization, utilization_of
from brimful.values.plan import PLAN_SCHEMA, Plan
from samples import make_cluster, make_job, make_model, make_strategy


def plan_of(strategy, **device):
    job, cluster = make_job(), make_cluster(**device)
    return Plan(
        schema=PLAN_SCHEMA,
        job=job,
        cluster=cluster,
        strategy=strategy,
        estimate=estimate(job, cluster, strategy),
    )


def test_the_two_agree_where_nothing_is_recomputed():
    used = utilization_of(plan_of(make_strategy()))
    assert used.model_flops == used.hardware_flops > 0
    assert used.mfu(0.5) == used.hfu(0.5) == used.model_flops / 0.5 / 1e12


@pytest.mark.parametrize("changes", [{"activation_checkpointing": "full"}, {"loss_chunks": 4}])
def test_what_is_recomputed_counts_for_the_hardware_only(changes):
    plain = utilization_of(plan_of(make_strategy()))
    used = utilization_of(plan_of(make_strategy(**changes)))
    assert used.model_flops == plain.model_flops
    assert used.hardware_flops > plain.hardware_flops


def test_full_checkpointing_recomputes_the_blocks_up_to_what_backward_needs():
    used = utilization_of(plan_of(make_strategy(activation_checkpointing="full")))
    job, model = make_job(), make_model()
    width, kv_width = model.hidden_size, model.hidden_size // 2
    # torch stops recomputing before a block's last product: nothing of the backward needs it.
    weights = 2 * width * width + 2 * width * kv_width + 2 * width * model.intermediate_size
    products = 2 * job.tokens_per_step * weights * model.num_layers
    attention = 4 * job.tokens_per_step * job.seq_len * width * model.num_layers
    assert used.hardware_flops - used.model_flops == products + attention


def test_what_is_unknown_stays_unknown():
    assert Utilization(0.0, 1e9, 1e12).mfu(1.0) is None
    assert Utilization(1e9, 0.0, 1e12).hfu(1.0) is None
    assert Utilization(1e9, 1e9, 0.0).mfu(1.0) is None
    unplanned = msgspec.structs.replace(plan_of(make_strategy()), estimate=None)
    assert utilization_of(unplanned).hfu(1.0) is None
    assert utilization_of(unplanned).mfu(1.0) is not None
