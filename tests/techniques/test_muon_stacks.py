"""Muon of experts, which are stacks of matrices: torch's own steps, matrix by matrix."""

import pytest
import torch

from brimful.build.optimizers.base import HIDDEN, parameter_groups
from brimful.build.optimizers.muon import MuonBesideAdamW
from brimful.cost.estimate import estimate
from brimful.cost.family import family_of
from brimful.cost.states import device_update, device_update_flops
from brimful.cost.traffic import traffic_of
from brimful.cost.update import Updater
from brimful.errors import UnsupportedError
from brimful.hardware.gpus import load_cluster
from brimful.models.config import read_config
from brimful.simulate.run import simulate, simulate_recorded
from brimful.techniques.runnable import check_strategy
from brimful.units import KIB
from brimful.values.job import check_job
from brimful.values.strategy import data_parallel
from samples import make_job, make_strategy
from tapes import taken_by_update

pytestmark = pytest.mark.torch

NAME = "muon"
NUM_STEPS = 3
FIELDS = {
    "hidden_size": 256, "intermediate_size": 320, "moe_intermediate_size": 192, "num_experts": 8,
    "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 512,
    "norm_topk_prob": True, "tie_word_embeddings": False, "sliding_window": None,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip


def job_of(strategy, *, optimizer=NAME, **fields):
    changes = {key: fields.pop(key) for key in {*FIELDS} & {*fields}}
    model = read_config("tiny-qwen3_moe", {"model_type": "qwen3_moe", **FIELDS, **changes})
    batch = 2 * strategy.micro_batch * data_parallel(strategy)
    return check_job(
        make_job(model=model, optimizer=optimizer, seq_len=64, global_batch=batch, **fields)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4, 96, 64), (3, 64, 160), (2, 48, 48)])
def test_a_stack_steps_to_the_bit_as_torch_s_own_of_each_of_its_matrices(shape, dtype):
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randn(shape, generator=generator).to(dtype) for _ in range(1 + NUM_STEPS)]
    stack = torch.nn.Parameter(drawn[0].clone())
    apart = [torch.nn.Parameter(each.clone()) for each in drawn[0]]
    job = job_of(make_strategy(micro_batch=1))
    rates = {"lr": job.learning_rate, "weight_decay": job.weight_decay}
    ours = MuonBesideAdamW([{"params": [stack], HIDDEN: True, **rates}], job)
    theirs = torch.optim.Muon(apart, **rates, adjust_lr_fn="match_rms_adamw")
    for gradient in drawn[1:]:
        gradient[0] = 0  # of an expert that no token was sent to
        stack.grad = gradient.clone()
        for parameter, each in zip(apart, gradient, strict=True):
            parameter.grad = each.clone()
        ours.step()
        theirs.step()
    assert torch.equal(stack, torch.stack([*apart]))
    kept = torch.stack([theirs.state[each]["momentum_buffer"] for each in apart])
    assert torch.equal(ours.state[stack]["momentum_buffer"], kept)


def test_biases_of_experts_are_no_matrices_and_convolutions_are_refused(monkeypatch):
    block = torch.nn.Module()
    block.down = torch.nn.Parameter(torch.zeros(4, 8, 6))
    block.down_bias = torch.nn.Parameter(torch.zeros(4, 8))
    model = torch.nn.ModuleList([block])
    monkeypatch.setattr("brimful.build.optimizers.base.decoder_blocks", list)
    job = job_of(make_strategy(micro_batch=1))
    hidden, others, _ = parameter_groups(job, model)
    assert [each.shape for each in hidden["params"]] == [(4, 8, 6)]
    assert [each.shape for each in others["params"]] == [(4, 8)]
    model.append(torch.nn.Conv1d(2, 2, 3))
    with pytest.raises(UnsupportedError, match="Conv1d is a kernel of 3 dimensions"):
        parameter_groups(job, model)


ONE = {}
SPREADS = (
    ONE,
    {"zero": 1, "dp_shard": 2},
    {"zero": 2, "dp_shard": 4},
    {"zero": 3, "dp_shard": 3},  # of 8 experts, so that the last has fewer
    {"zero": 3, "dp_shard": 4, "ep": 2},
    {"zero": 3, "dp_shard": 8, "ep": 2, "num_experts": 6},  # whose rows are cut
)


def strategy_of(spread):
    degrees = {key: value for key, value in spread.items() if key not in FIELDS}
    return make_strategy(micro_batch=1, **degrees)


def asked(spread, **fields):
    strategy = strategy_of(spread)
    sizes = {key: value for key, value in spread.items() if key in FIELDS}
    job = job_of(strategy, **sizes, **fields)
    num = max(1, strategy.dp_shard)
    cluster = load_cluster(f"{num}xh100-80gb", memory_limit_bytes=None)
    return job, cluster, check_strategy(job, strategy)


@pytest.mark.few(3)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed", "bf16-master"])
@pytest.mark.parametrize("spread", SPREADS, ids=str)
def test_the_prediction_is_the_simulation(spread, precision):
    job, cluster, strategy = asked(spread, precision=precision)
    predicted = estimate(job, cluster, strategy)
    simulated, recording, _ = simulate_recorded(job, cluster, strategy)
    update = device_update(
        job, family_of(job, strategy), Updater("cuda", num_shards=strategy.dp_shard)
    )
    if precision != "bf16-master":
        assert update.transient == pytest.approx(taken_by_update(recording), abs=8 * KIB)
    peak = simulated.simulated_peak_allocated_bytes
    assert predicted.predicted_peak_allocated_bytes == pytest.approx(peak, rel=1e-3)


def test_whole_matrices_of_shards_are_multiplied_by_one_device_and_not_gathered():
    job, cluster, three = asked({"zero": 3, "dp_shard": 4})
    family = family_of(job, three)
    flops = device_update_flops(job, family, 4)
    plain, _, one = asked(ONE)
    whole = device_update_flops(plain, family_of(plain, one), 1)

    def of(rows, columns):
        short, long = sorted((rows, columns))
        return 5 * (4 * short**2 * long + 2 * short**3)

    stacks = 2 * 8 * (of(2 * 192, 256) + of(256, 192))
    assert whole - flops == stacks * 3 / 4
    more = [
        traffic_of(each, family_of(each, three), cluster).per_step
        for each in (job, asked({"zero": 3, "dp_shard": 4}, optimizer="adamw")[0])
    ]
    wide, _, _ = asked({"zero": 3, "dp_shard": 4, "num_experts": 32})
    wider = traffic_of(wide, family_of(wide, three), cluster).per_step
    same = traffic_of(
        asked({"zero": 3, "dp_shard": 4, "num_experts": 32}, optimizer="adamw")[0],
        family_of(wide, three), cluster,
    ).per_step  # fmt: skip
    # Four times the experts add what their router's matrix does, and nothing for their own.
    assert 0 < (wider - same) < 2 * (more[0] - more[1])


@pytest.mark.parametrize("kernels", ["cpu"])
def test_a_real_step_is_simulated(kernels):
    from brimful.build.assemble import build_program
    from brimful.build.batch import Batch, count_targets
    from brimful.build.step import train_step
    from brimful.measure.meter import CpuMeter
    from samples import make_cluster

    strategy = make_strategy(micro_batch=2)
    job = job_of(strategy, precision="fp32")
    meter = CpuMeter()
    meter.start()
    program = build_program(job, strategy, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        rows = torch.randint(0, 512, (2, job.seq_len), generator=generator)
        batches = [Batch(rows, rows)] * 2
        train_step(program, batches, num_targets=count_targets(batches), learning_rate=1e-2)
    meter.stop(program)
    seen = meter.reading.measured_peak_allocated_bytes
    found = simulate(job, make_cluster(kernels), strategy).simulated_peak_allocated_bytes
    assert abs(found - seen) <= max(0.0025 * seen, 512 * KIB)
