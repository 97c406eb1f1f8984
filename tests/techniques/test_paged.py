"""Paged optimizers: what is asked of the allocator, what may lie on the host, what moving takes."""

from functools import cache

import pytest
import torch
from msgspec.structs import replace

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.optimizers.base import rule_named
from brimful.build.step import train_step
from brimful.cost.copied import link_bytes_per_s
from brimful.cost.estimate import estimate
from brimful.cost.managed import away_bytes, paged_bytes
from brimful.export import TARGETS
from brimful.export.given import Given
from brimful.models.config import load_model
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.show.managed import paged_facts
from brimful.show.summary import Meter
from brimful.simulate.items import read_host
from brimful.simulate.lifetime import peak_bytes, simulate_phases
from brimful.simulate.run import simulate, simulate_recorded
from brimful.techniques.optimizers import OPTIMIZERS, Settings, Updated, bytes_kept
from brimful.train.keeping import KEEPING
from brimful.units import GIB, KIB, MIB
from brimful.values.job import check_job
from brimful.values.plan import PLAN_SCHEMA, Plan
from brimful.values.results import LOAD, OPTIMIZER_STATE, PAGED_STATE, RESUME
from samples import make_cluster, make_job, make_model, make_strategy

CPU = torch.device("cpu")
GPU = Settings(2, "cuda", 0.9, 0.1)
SIZES = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 6, "vocab_size": 4000}
PAGING = {name: rule for name, rule in OPTIMIZERS.items() if rule.pages}
MOMENT_BYTES = {"8": 1, "3": 4}
"""By the first digit of a name."""
COPIED_PER_S = 1e10
each_rule = pytest.mark.parametrize("name", PAGING)


def moment_bytes(name):
    return MOMENT_BYTES[name.removeprefix("paged-adamw-")[0]]


def job_of(name, **changes):
    fields = {"model": make_model("llama", **SIZES), "precision": "bf16", "optimizer": name,
              "seq_len": 32, "global_batch": 2}  # fmt: skip
    return check_job(make_job("llama", **{**fields, **changes}))


def cluster_of(**changes):
    return make_cluster("cuda", copy_bytes_per_s=COPIED_PER_S, **changes)


@cache
def simulated(name):
    return simulate_recorded(job_of(name), cluster_of(), make_strategy(micro_batch=2))


@each_rule
def test_moments_of_large_tensors_are_paged_and_no_others(name):
    rule, num = PAGING[name], 100_000
    one = [Updated((num,))]
    paged, rest = (bytes_kept(rule, one, GPU, is_paged=each) for each in (True, False))
    assert paged == 2 * moment_bytes(name) * num
    assert rest == (2 * 4 * -(-num // 256) if rule.rounds else 0)
    small, cpu = [Updated((num - 1,))], GPU._replace(kernels="cpu")
    assert bytes_kept(rule, small, GPU, is_paged=True) == 0
    assert bytes_kept(rule, one, cpu, is_paged=True) == 0
    assert bytes_kept(rule, one, cpu) == paged + rest


@pytest.mark.torch
@each_rule
def test_what_is_predicted_is_what_is_simulated(name):
    job, strategy = job_of(name), make_strategy(micro_batch=2)
    made, told = estimate(job, cluster_of(), strategy), simulated(name).simulation
    peaks = made.predicted_peak_allocated_bytes, told.simulated_peak_allocated_bytes
    assert peaks[0] == pytest.approx(peaks[1], rel=2e-3)
    [paged] = [item.num_bytes for item in told.host if item.name == PAGED_STATE]
    assert paged == paged_bytes(job, strategy, cluster_of().device)
    assert read_host(simulated(name).host).block_bytes == 0  # which would be pinned


@pytest.mark.torch
def test_on_the_host_nothing_of_it_is_paged():
    job, strategy = job_of("paged-adamw-32bit"), make_strategy(micro_batch=2, offload="optimizer")
    made, told = estimate(job, cluster_of(), strategy), simulate(job, cluster_of(), strategy)
    [state] = [item.num_bytes for item in told.host if item.name == OPTIMIZER_STATE]
    assert paged_bytes(job, strategy, cluster_of().device) == 0
    kept = {item.name: item.num_bytes for item in made.host.items}
    assert kept[OPTIMIZER_STATE] == pytest.approx(state, abs=KIB)
    assert PAGED_STATE not in {*kept, *(item.name for item in told.host)}


@pytest.mark.torch
def test_what_is_loaded_goes_where_it_was_and_not_over_the_gpu():
    asked = job_of("paged-adamw-32bit"), cluster_of(), make_strategy(micro_batch=2)
    [resumed] = simulate_phases(*asked, KEEPING, (RESUME,))
    load = {each.phase: each.num_bytes for each in simulated(asked[0].optimizer).simulation.phases}
    assert peak_bytes(resumed) - load[LOAD] < paged_bytes(*asked[::2], asked[1].device) / 16


@pytest.mark.torch
@each_rule
def test_on_a_cpu_it_is_the_same_optimizer_on_the_device(name):
    """As bitsandbytes does, which warns of it."""
    job, strategy = job_of(name, precision="fp32"), make_strategy(micro_batch=2)
    assert paged_bytes(job, strategy, make_cluster().device) == 0
    told = simulate(job, make_cluster(), strategy)
    state = {item.name: item.num_bytes for item in told.items}[OPTIMIZER_STATE]
    assert (state > 0, told.host) == (True, ())
    weights = []
    for rule in (name, "adamw-8bit" if PAGING[name].rounds else "adamw"):
        program = build_program(replace(job, optimizer=rule), strategy, CPU)
        rows = torch.arange(64).reshape(2, 32)
        batches = [Batch(rows, rows)]
        train_step(program, batches, num_targets=count_targets(batches), learning_rate=1e-3)
        weights.append(program.model.state_dict())
    for key, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][key], rtol=1e-4, atol=1e-5)


@pytest.mark.torch
@each_rule
def test_its_state_is_loaded_as_it_was_saved(name):
    [weight] = [torch.nn.Parameter(torch.ones(400, 400))]
    job, groups = job_of(name), [{"params": [weight], "weight_decay": 0.0}]
    first, second = (rule_named(name)(groups, job) for _ in "12")
    weight.grad = torch.ones_like(weight)
    first.step()
    second.load_state_dict(first.state_dict())
    for key, value in first.state[weight].items():
        assert torch.equal(second.state[weight][key], value), key


def test_what_has_no_room_beside_the_peak_is_away_and_no_more():
    assert away_bytes(10, held=50, limit_bytes=100) == 0
    assert away_bytes(60, held=50, limit_bytes=100) == 10
    assert away_bytes(60, held=200, limit_bytes=100) == 60


def test_moving_is_twice_over_the_link_and_the_host_has_to_have_room():
    job, strategy = job_of("paged-adamw-32bit"), make_strategy(micro_batch=2)
    roomy = estimate(job, cluster_of(), strategy)
    paged = paged_bytes(job, strategy, cluster_of().device)
    limit = roomy.predicted_peak_allocated_bytes + paged // 4
    tight = cluster_of(usable_bytes=limit + (cluster_of().device.usable_bytes - roomy.usable_bytes))
    made = estimate(job, tight, strategy)
    away = paged - paged // 4
    assert (made.usable_bytes, made.fits) == (limit, True)
    rate = link_bytes_per_s(tight.device)
    assert made.predicted_step_s - roomy.predicted_step_s == pytest.approx(2 * away / rate)
    assert away in [item.num_bytes for item in made.host.items if item.name == PAGED_STATE]
    assert not any(item.name == PAGED_STATE for item in roomy.host.items)
    assert any("assumed" in line and "paged" in line for line in made.assumptions)
    pins = Pins(micro_batch=2, activation_checkpointing="none", loss_chunks=1)
    best = {"attention": "sdpa", "objective": "time"}
    found = solve(job, tight, pins, **best).record.rows[0]
    assert found.fits
    assert found.step_s == pytest.approx(made.predicted_step_s)
    assert not solve(job, replace(tight, host_ram_bytes=MIB), pins, **best).record.rows[0].fits


def test_an_answer_says_where_it_is():
    job, strategy = job_of("paged-adamw-8bit"), make_strategy(micro_batch=2)
    asked = job, cluster_of(), strategy
    [fits] = paged_facts(*asked, Meter(GIB, 2 * GIB, ""))
    assert fits.text.endswith("all beside the peak")
    [away] = paged_facts(*asked, Meter(2 * GIB - MIB, 2 * GIB, ""))
    assert "may lie on the host (moved where the GPU is full; moving it takes up to" in away.text
    assert paged_facts(*asked, Meter(3 * GIB, 2 * GIB, "")) == ()


@each_rule
def test_exports_say_it_by_its_own_name(name):
    job = job_of(name, model=load_model("llama-3.2-1b"))
    plan = Plan(schema=PLAN_SCHEMA, job=job, cluster=cluster_of(),
                strategy=make_strategy(micro_batch=2), estimate=None)  # fmt: skip
    for target in ("hf-trainer", "axolotl", "llama-factory"):
        text = TARGETS[target](plan, Given("plan.yaml", "DATA", "runs/first")).text
        assert name.replace("-", "_") in text, target
