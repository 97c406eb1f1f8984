"""FSDP2 on one device: nothing is sharded, units are gathered and freed, and the same is learnt."""

import pytest
import torch
import torch.distributed as dist

from brimful.build.assemble import build_program
from brimful.build.parallel.alone import join_alone, leave_alone
from brimful.cost.formula import missing_formula
from brimful.errors import InputError, UnsupportedError
from brimful.simulate.run import simulate
from brimful.techniques.runnable import check_examined, check_strategy
from brimful.values.job import LossScale
from build.plain import ragged_step
from metered import meter_steps, product_scratch_bytes
from pairs import make_lora
from samples import make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
NUM_STEPS = 3
SCRATCH_BYTES = 16 * 1024
"""What eager operations and the host's copy of a batch take, which nobody simulates."""
SCALE = LossScale(initial_scale=2.0**8, growth_factor=2.0, backoff_factor=0.5, growth_interval=9)
CASES = [
    ("fp32", {}, 3, "none"),
    ("bf16", {}, 2, "full"),
    ("bf16-mixed", {}, 3, "full:1"),
    ("bf16-master", {}, 3, "selective"),
    ("fp16-mixed", {"loss_scale": SCALE}, 2, "none"),
    ("bf16", make_lora(), 3, "full"),
]


@pytest.fixture(autouse=True)
def _left():
    yield
    leave_alone()


def run(job, strategy):
    """Train, and return each step's loss and norm, and the weights at the end."""
    check_strategy(job, strategy)
    program = build_program(job, strategy, CPU)
    numbers = [ragged_step(program, step=step) for step in range(NUM_STEPS)]
    return numbers, [_whole(p) for p in program.model.parameters()]


def _whole(parameter):
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter.detach()


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_step_is_that_of_the_device_without_it(case):
    precision, changes, zero, checkpointing = case
    job = make_job(precision=precision, **changes)
    how = {"activation_checkpointing": checkpointing, "micro_batch": 2}
    whole, weights = run(job, make_strategy(**how))
    numbers, same = run(job, make_strategy(zero=zero, **how))
    if precision.endswith("-mixed"):  # FSDP2 computes norms in 16 bits that autocast keeps in fp32
        for (loss, _), (other, _) in zip(numbers, whole, strict=True):
            assert loss == pytest.approx(other, rel=5e-3)
        return
    assert numbers == whole
    for one, other in zip(same, weights, strict=True):
        assert torch.equal(one, other)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_its_peak_is_that_of_the_simulation(case):
    precision, changes, zero, checkpointing = case
    job = make_job(precision=precision, **changes)
    strategy = make_strategy(zero=zero, activation_checkpointing=checkpointing, micro_batch=2)
    simulated = simulate(job, make_cluster(), strategy).simulated_peak_allocated_bytes
    measured = meter_steps(job, strategy).measured_peak_allocated_bytes
    beside = product_scratch_bytes(job, strategy)
    assert -SCRATCH_BYTES <= measured - simulated <= SCRATCH_BYTES + beside


def test_the_group_is_left():
    join_alone("cpu")
    join_alone("cpu")
    assert dist.get_world_size() == 1
    leave_alone()
    leave_alone()
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    "changes", [{"offload": "parameters:1"}, {"offload": "activations"},
                {"optimizer_in_backward": True}], ids=str,
)  # fmt: skip
def test_what_moves_parameters_is_refused_beside_it(changes):
    job = make_job(clip=0.0)
    with pytest.raises(UnsupportedError, match="on one device"):
        check_strategy(job, make_strategy(zero=3, **changes))


def test_zero_1_shards_nothing_on_one_device():
    with pytest.raises(InputError, match="zero=1 shards over dp_shard=1"):
        check_strategy(make_job(), make_strategy(zero=1))


def test_it_is_simulated_not_predicted_and_not_examined():
    strategy = make_strategy(zero=3)
    reason = missing_formula(make_job(), strategy, make_cluster().device)
    assert "zero=3 on one device has no formula" in reason
    with pytest.raises(UnsupportedError, match="zero=3 on one device"):
        check_examined(strategy)
