"""Muon: torch's own steps, and what it takes: predicted, simulated and measured."""

from functools import cache, partial

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.program import own_optimizer
from brimful.build.step import train_step
from brimful.cost.estimate import estimate
from brimful.cost.family import family_of
from brimful.cost.states import device_update_flops
from brimful.cost.update import CUDA, update_of
from brimful.errors import UnsupportedError
from brimful.export import TARGETS
from brimful.export.given import Given
from brimful.hardware.gpus import load_cluster
from brimful.measure.meter import CpuMeter
from brimful.models.config import load_model
from brimful.simulate.run import simulate
from brimful.techniques.runnable import check_strategy
from brimful.units import KIB
from brimful.values.job import check_job
from brimful.values.plan import PLAN_SCHEMA, Plan
from brimful.values.results import OPTIMIZER_STATE
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
NAME = "muon"
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 4000}
RECIPES = ("fp32", "bf16", "bf16-mixed", "bf16-master")
NUM_STEPS = 3


def job_of(precision="fp32", *, sizes=SIZES, **changes):
    fields = {"model": make_model("llama", **sizes), "precision": precision, "optimizer": NAME,
              "seq_len": 32, "global_batch": 2, "learning_rate": 1e-2}  # fmt: skip
    return check_job(make_job("llama", **{**fields, **changes}))


def batches_of(job, step=0):
    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(0, job.model.vocab_size, (2, job.seq_len), generator=generator)
    return [Batch(rows, rows)]


def steps_of(program, num_steps=NUM_STEPS):
    for step in range(num_steps):
        batches = batches_of(program.job, step)
        train_step(program, batches, num_targets=count_targets(batches), learning_rate=1e-2)


def start(job, **switches):
    return build_program(job, make_strategy(micro_batch=2, **switches), CPU)


def is_hidden(name, parameter):
    return ".layers." in name and parameter.ndim == 2


def plain_weights(job, weights):
    """Train as users of Muon do: two optimizers side by side, nothing of the package."""
    fields = {**job.model.hf_config, "use_cache": False}
    config = AutoConfig.for_model("llama", **fields)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    model.load_state_dict(weights)
    named, rate = list(model.named_parameters()), {"lr": job.learning_rate}
    others = [p for name, p in named if not is_hidden(name, p)]
    muon = torch.optim.Muon(
        [p for name, p in named if is_hidden(name, p)], **rate, weight_decay=job.weight_decay,
        adjust_lr_fn="match_rms_adamw",
    )  # fmt: skip
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in others if p.ndim > 1], "weight_decay": job.weight_decay},
            {"params": [p for p in others if p.ndim == 1], "weight_decay": 0.0},
        ],
        **rate, betas=(job.beta1, job.beta2), eps=job.epsilon, fused=True,
    )  # fmt: skip
    for step in range(NUM_STEPS):
        [batch] = batches_of(job, step)
        logits = model(input_ids=batch.inputs).logits.flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, batch.labels.flatten()).backward()
        for optimizer in (muon, adamw):
            optimizer.step()
            optimizer.zero_grad()
    return model.state_dict()


def test_its_steps_are_those_of_torch_s_two_optimizers_side_by_side():
    job = job_of(clip=0.0)
    program = start(job)
    weights = {key: value.clone() for key, value in program.model.state_dict().items()}
    expected = plain_weights(job, weights)
    steps_of(program)
    for name, value in program.model.state_dict().items():
        moved = (expected[name] - weights[name]).norm()
        assert (value - expected[name]).norm() <= 2e-3 * moved, name
    assert not torch.equal(weights["model.norm.weight"], expected["model.norm.weight"])


def test_matrices_of_blocks_have_a_momentum_and_all_else_two_moments():
    program = start(job_of("bf16-mixed"))
    steps_of(program, 1)
    state, seen = program.optimizer.state, set()
    for name, parameter in program.model.named_parameters():
        hidden = is_hidden(name, parameter)
        expected = {"momentum_buffer"} if hidden else {"step", "exp_avg", "exp_avg_sq"}
        assert state[parameter].keys() == expected, name
        seen.add(hidden)
    assert seen == {True, False}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "switches",
    [
        {"offload": "optimizer"},
        {"optimizer_in_backward": True},
        {"optimizer_in_backward": True, "offload": "parameters,optimizer"},
    ],
)
def test_a_step_that_is_run_elsewhere_is_the_same(switches):
    job = job_of(clip=0.0)
    plain, other = start(job), start(job, **switches)
    other.model.load_state_dict(plain.model.state_dict())
    if hasattr(other.optimizer, "refresh"):  # whose copies are on the host
        other.optimizer.refresh()
    for program in (plain, other):
        steps_of(program)
    for mine, theirs in zip(plain.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "spread",
    [
        {"zero": 1, "dp_shard": 2},
        {"pp": 2},
        {"zero": 1, "dp_shard": 2, "pp": 2, "accumulate": "hold"},
    ],
    ids=str,
)
def test_the_prediction_of_a_share_or_a_stage_is_its_simulation(spread):
    """What of it is a hidden matrix is told of each, and not by its place among all."""
    sizes = {**SIZES, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3}
    job = job_of("bf16-master", sizes=sizes, global_batch=4)
    asked = job, make_cluster("cuda"), make_strategy(micro_batch=1, **spread)
    predicted, found = estimate(*asked), simulate(*asked)
    for mine, theirs in zip(predicted.phases, found.phases, strict=False):
        if mine.phase == theirs.phase != "step 1":
            assert mine.num_bytes == pytest.approx(theirs.num_bytes, rel=1e-3)


@cache
def simulated(precision, kernels):
    return simulate(job_of(precision), make_cluster(kernels), make_strategy(micro_batch=2))


@pytest.mark.few(4)
@pytest.mark.parametrize("kernels", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", RECIPES)
def test_the_prediction_is_the_simulation(precision, kernels):
    predicted = estimate(job_of(precision), make_cluster(kernels), make_strategy(micro_batch=2))
    found = simulated(precision, kernels)
    assert found.phases[-1].where.endswith("optimizer")  # whose moments are what is compared
    for mine, theirs in zip(predicted.phases[:3], found.phases, strict=True):
        if mine.phase != "step 1":
            assert mine.num_bytes == pytest.approx(theirs.num_bytes, rel=1e-3)


@pytest.mark.few(2)
@pytest.mark.parametrize("precision", RECIPES)
def test_the_simulated_peak_is_the_measured_one(precision):
    meter = CpuMeter()
    meter.start()
    program = start(job_of(precision))
    steps_of(program, 2)
    meter.stop(program)
    seen = meter.reading
    found = simulated(precision, "cpu")
    difference = found.simulated_peak_allocated_bytes - seen.measured_peak_allocated_bytes
    assert abs(difference) <= max(0.0025 * seen.measured_peak_allocated_bytes, 512 * KIB)
    kept = {item.name: item.num_bytes for item in seen.items}[OPTIMIZER_STATE]
    assert kept == {item.name: item.num_bytes for item in found.items}[OPTIMIZER_STATE]


def test_the_widest_matrix_decides_what_an_update_takes():
    job = job_of("fp32")
    numbers, side = 512 * 256, 256
    expected = 4 * numbers + 2 * 2 * numbers + 2 * 2 * side**2
    assert update_of(job, CUDA).transient == expected
    assert update_of(job, CUDA).why == f"Muon: {_words()}"


def _words():
    return "a momentum per matrix of a block, two moments of all else"


def test_its_products_are_part_of_a_step_s_time():
    job, wide = job_of("bf16-mixed"), {**SIZES, "intermediate_size": 1024}
    flops = partial(device_update_flops, family=family_of(job, make_strategy()), num_shards=1)
    assert flops(job_of("bf16-mixed", optimizer="adamw")) == 0
    more = flops(job_of("bf16-mixed", sizes=wide)) - flops(job)
    assert more == 5 * 2 * 3 * 4 * 256**2 * 512  # of three matrices in each of two blocks
    asked = make_cluster("cuda"), make_strategy(micro_batch=2)
    faster = estimate(job_of("bf16-mixed", optimizer="adamw"), *asked)
    assert estimate(job, *asked).predicted_step_s > faster.predicted_step_s


def test_a_share_of_zero_1_multiplies_less_and_stages_multiply_their_own():
    job, four = (
        job_of("bf16-mixed", global_batch=8),
        load_cluster("4xh100-80gb", memory_limit_bytes=None),
    )
    one = family_of(job, make_strategy(dp_replicate=4))
    parted = family_of(job, make_strategy(zero=1, dp_shard=4))
    gathered = family_of(job, make_strategy(zero=3, dp_shard=4))
    whole = device_update_flops(job, one, 1)
    assert 0 < device_update_flops(job, parted, 4) <= whole / 2
    assert device_update_flops(job, gathered, 4) == whole
    adamw = job_of("bf16-mixed", global_batch=8, optimizer="adamw")
    row = make_strategy(pp=2, dp_replicate=2, accumulate="hold")
    took = [estimate(each, four, row).predicted_step_s for each in (job, adamw)]
    assert took[0] > took[1]


@pytest.mark.parametrize(
    ("switches", "why"),
    [
        ({"tp": 2}, "tp=2 with optimizer=muon"),
        ({"engine": "deepspeed", "zero": 2, "dp_shard": 2}, "optimizer=muon, whose blocks"),
    ],
)
def test_what_it_is_not_run_with_is_one_sentence(switches, why):
    job = job_of(global_batch=4)
    with pytest.raises(UnsupportedError, match=why):
        check_strategy(job, make_strategy(micro_batch=1, **switches))


def test_models_without_known_blocks_are_refused():
    with pytest.raises(UnsupportedError, match="blocks nobody knows"):
        check_job(make_job(optimizer=NAME, task="module", packing="none"))


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("torchrun", ""),
        ("accelerate", "optimizer=muon"),
        ("hf-trainer", None),
        ("torchtitan", None),
    ],
)
def test_an_export_that_cannot_say_it_says_so(target, said):
    job = job_of(model=load_model("llama-3.2-1b"))  # which each of them knows
    plan = Plan(schema=PLAN_SCHEMA, job=job, cluster=make_cluster("cuda"),
                strategy=make_strategy(micro_batch=2), estimate=None)  # fmt: skip
    given = Given("plan.yaml", "DATA", "runs/first")
    if said is None:
        with pytest.raises(UnsupportedError, match="optimizer=muon cannot be said"):
            TARGETS[target](plan, given)
    else:
        assert said in TARGETS[target](plan, given).text


def test_its_optimizer_is_one_object_over_every_parameter():
    program = start(job_of())
    grouped = [p for group in own_optimizer(program).param_groups for p in group["params"]]
    assert sorted(map(id, grouped)) == sorted(map(id, program.model.parameters()))
