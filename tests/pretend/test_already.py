"""What a program does already is told as that, and not advised: checkpoints, a batch of one."""

from functools import cache

import numpy as np
import pytest
import torch
from tests.pretend import fsdp1_program, fsdp_program
from torch import nn
from torch.utils.checkpoint import checkpoint

from brimful import pretend
from brimful.pretend.remedies import freed_sooner
from brimful.show.changes import whole_facts
from brimful.show.pretend import pretend_summary
from brimful.units import MIB
from brimful.values.results import GRADIENTS, WHOLE_GRADIENTS

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

WORLD_SIZE = 8


@cache
def trained(case, **how):
    with pretend.gpu(world_size=WORLD_SIZE) as run:
        fsdp_program.train("cuda", **fsdp_program.cases(WORLD_SIZE)[case], **how)
    return run


def sharded(case, dtype=None, **how):
    return trained(case, dtype=dtype, **how).report(budget_bytes=64 * MIB)


def facts(report):
    return {fact.label: fact.text for fact in pretend_summary(report, ["x.py"]).facts}


def num_parameters(model):
    return sum(p.numel() for p in model.parameters())


def whole_bytes(report):
    return {item.name: item.num_bytes for item in report.items}.get(WHOLE_GRADIENTS, 0)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_gradients_that_are_held_whole_are_a_class_of_their_own(dtype):
    """In fp32, in which they are reduced, even where 16 bits compute."""
    report = sharded("hold", dtype=dtype)
    whole = report.whole_gradients
    assert whole.num_bytes == whole_bytes(report)
    with torch.device("meta"):
        every = 4 * num_parameters(fsdp_program.Model())
    assert 0.9 * every < whole.num_bytes <= every
    assert whole.num_backwards == 3
    told = facts(report)["whole"]
    assert "of gradients are kept whole until they are reduced: reduced with each mic" in told
    assert "for 3 reductions a step and not one" in told


@pytest.mark.parametrize("case", ["reduce-each", "zero-3"])
def test_what_is_reduced_at_once_is_not_held(case):
    report = sharded(case)
    assert not whole_bytes(report)
    assert "whole" not in facts(report)


@pytest.mark.parametrize("orig", [False, True])
def test_a_flat_parameter_has_its_gradient_whole_under_no_sync(orig):
    def told(hold):
        with pretend.gpu(world_size=fsdp1_program.WORLD_SIZE) as run:
            fsdp1_program.train("cuda", micro_batches=3, hold=hold, use_orig_params=orig)
        return run.report(budget_bytes=16 * MIB)

    report = told(hold=True)
    model = fsdp1_program.Model(lora=False, checkpointed=False, reentrant=False)
    assert report.whole_gradients.num_bytes == pytest.approx(4 * num_parameters(model), rel=0.05)
    assert "whole" in facts(report)
    assert not whole_bytes(told(hold=False))


def test_of_copies_that_are_no_shards_nothing_is_said():
    with pretend.gpu(world_size=2) as run:
        torch.distributed.init_process_group("nccl")
        model = nn.parallel.DistributedDataParallel(nn.Linear(512, 512).cuda())
        optimizer = torch.optim.SGD(model.parameters())
        for _ in range(2):
            with model.no_sync():
                model(torch.zeros(4, 512, device="cuda")).sum().backward()
            model(torch.zeros(4, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.distributed.destroy_process_group()
    report = run.report()
    assert report.whole_gradients is None
    assert any(item.name == GRADIENTS for item in report.items)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.how = how

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.how is None else checkpoint(block, x, use_reentrant=self.how)
        return x


def checkpointed(how, *, batch=4):
    with pretend.gpu("t4") as run:
        model = Model(how).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            x = torch.zeros(batch, 4096, 256, device="cuda", requires_grad=True)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return run.report(budget_bytes=56 * MIB)


@pytest.mark.parametrize("how", [None, False, True])
def test_checkpoints_are_advised_where_there_are_none(how):
    report = checkpointed(how)
    assert ("checkpointing" in facts(report)["change"]) == (how is None)
    assert bool(report.already.checkpointed_bytes) == (how is not None)


@pytest.mark.parametrize(("batch", "advised"), [(1, "fewer tokens at once"), (4, "a smaller bat")])
def test_a_batch_of_one_gets_no_smaller(batch, advised):
    report = checkpointed(None, batch=batch)
    assert advised in facts(report)["change"]
    assert report.already.is_of_one == (batch == 1)


def test_what_is_offloaded_to_the_host_has_its_own_line():
    """Shards of fp32 parameters, their gradients and two moments: 16 bytes each."""
    report = sharded("zero-3", offload=True)
    with torch.device("meta"):
        shard = num_parameters(fsdp_program.Model()) / WORLD_SIZE
    assert report.host.simulated_peak_bytes == pytest.approx(16 * shard, rel=0.02)
    assert facts(report)["host"].startswith(f"{16 * shard / MIB:.0f}")
    assert "optimizer state" in facts(report)["host"]
    assert "host" not in facts(sharded("zero-3"))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_what_it_is_to_reduce_each_is_a_replay_of_the_program_that_does(dtype):
    """Of the program that reduces each micro-batch, which is run."""
    held = sharded("hold", dtype=dtype).whole_gradients
    assert held.by == "set_requires_gradient_sync"
    each = sharded("reduce-each", dtype=dtype).reserved.simulated_peak_reserved_bytes
    assert (
        each <= held.reduced_each_bytes < 1.03 * each
    )  # what is left of a gradient lies elsewhere


def test_the_live_bytes_are_those_of_the_program_that_reduces_each():
    run = trained("hold", dtype=None)
    (events, left), rows = zip(*run._held.later.values(), strict=True), [*run._held.later]
    recording = run.recording()
    live = freed_sooner(recording, *map(np.array, (rows, events, left))).live_bytes()
    assert live.max() == trained("reduce-each", dtype=None).recording().live_bytes().max()
    assert live[-1] == recording.live_bytes()[-1]


@pytest.mark.parametrize(("budget", "fits"), [(400, "which fits"), (300, "which does not fit")])
def test_whether_reducing_each_makes_it_fit_is_said_in_the_program_s_own_word(budget, fits):
    run = trained("hold", dtype=None)
    (fact,) = whole_facts(run.report(budget_bytes=budget * MIB), budget * MIB)
    for words in (fact.text, fact.short):
        assert "set_requires_gradient_sync(True)" in words
        assert f"{fits}" in words
        assert "sync_each_batch" not in words


class Stopped(Exception):  # noqa: N818 - as a time limit is
    pass


def test_a_step_that_is_cut_in_its_backward_has_no_idle_gradients():
    """Whole parameters of FSDP2, which have gradients then, stand for shards that are updated."""

    def stop(_):
        raise Stopped

    def last(block, args, out):  # noqa: ARG001
        out.register_hook(stop)

    def train():
        model = fsdp_program.build("cuda", shape=(WORLD_SIZE,), dtype=torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.zeros(64, dtype=torch.int64, device="cuda")
        for step in range(2):
            for number in range(2):
                model.set_requires_gradient_sync(number == 1)
                if step:
                    model.layers[1].register_forward_hook(last)
                nn.functional.cross_entropy(model(ids), ids).backward()
            optimizer.step()
            optimizer.zero_grad()

    with pretend.gpu(world_size=WORLD_SIZE) as run, pytest.raises(Stopped):
        train()
    report = run.report(budget_bytes=64 * MIB)
    assert not report.idle_gradients
    assert report.without is None
