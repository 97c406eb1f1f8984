"""The same model under another strategy: the same losses, and nothing made for it."""

from itertools import product

import pytest
import torch

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.retarget import can_retarget, retarget
from brimful.build.step import train_step
from brimful.errors import InputError
from brimful.measure.limit import HostLimit
from other_models import CNN, make_other_job
from samples import make_adapter, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
FIRST = make_strategy(micro_batch=4)
OTHERS = [
    make_strategy(micro_batch=1, activation_checkpointing="full", loss_chunks=4),
    make_strategy(micro_batch=2, activation_checkpointing="selective:1"),
    make_strategy(micro_batch=4, attention="eager"),
]
JOBS = {
    "full": make_job(),
    "gpt2": make_job("gpt2"),
    "lora": make_job(method="lora", adapter=make_adapter()),
}


def step(program, job):
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, job.model.vocab_size, (4, job.seq_len), generator=generator)
    batches = [Batch(rows, rows) for rows in ids.split(program.strategy.micro_batch)]
    num_targets = count_targets(batches)
    return float(train_step(program, batches, num_targets=num_targets, learning_rate=1e-2).loss)


@pytest.mark.few(4)
@pytest.mark.parametrize(("name", "other"), list(product(JOBS, OTHERS)))
def test_it_goes_on_as_if_nothing_had_happened(name, other):
    job = JOBS[name]
    plain, switched = (build_program(job, FIRST, CPU) for _ in range(2))
    losses = [step(plain, job) for _ in range(4)]
    found = [step(switched, job) for _ in range(2)]
    assert can_retarget(switched, other)
    switched = retarget(switched, other)
    found += [step(switched, job) for _ in range(2)]
    assert found == pytest.approx(losses, rel=1e-5)
    assert switched.strategy == other


@pytest.mark.parametrize("other", OTHERS)
def test_no_tensor_is_made(other):
    program = build_program(JOBS["full"], FIRST, CPU)
    before = {id(p) for p in program.model.parameters()}
    with HostLimit(0) as limit:
        switched = retarget(program, other)
    assert limit.live_bytes == 0
    assert {id(p) for p in switched.model.parameters()} == before
    assert switched.optimizer is program.optimizer


def test_checkpointing_is_switched_off_again():
    job = JOBS["full"]
    program = build_program(job, make_strategy(activation_checkpointing="full"), CPU)
    program = retarget(program, make_strategy())
    blocks = program.model.model.layers
    assert not any(block.gradient_checkpointing for block in blocks)


@pytest.mark.parametrize(
    "changes", [{"zero": 3, "dp_shard": 2}, {"tp": 2}, {"reference": "resident"}], ids=str
)
def test_what_lays_a_model_out_anew_needs_another_program(changes):
    program = build_program(make_job(model=make_model(num_hidden_layers=1)), FIRST, CPU)
    assert not can_retarget(program, make_strategy(**changes))


def test_statistics_over_a_batch_are_not_split():
    job = make_other_job(CNN)
    program = build_program(job, make_strategy(micro_batch=job.global_batch), CPU)
    program.model.add_module("norm", torch.nn.BatchNorm2d(4))
    with pytest.raises(InputError, match="norm"):
        retarget(program, make_strategy(micro_batch=job.global_batch // 2))
