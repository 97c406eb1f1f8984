"""Stages of ``torch.distributed.pipelining`` whose shapes nobody gave: one rank, no neighbours."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from brimful import pretend
from brimful.cli.pretend_script import ended_by
from brimful.errors import InputError
from brimful.pretend.time_limit import Limits

pytestmark = pytest.mark.torch

WIDTH, TOKENS, STAGES, MICRO_BATCHES = 64, 32, 4, 8
KEPT = TOKENS * WIDTH * 4
"""Bytes of one micro-batch's stream in fp32."""


def stepped(rank, schedule, **shapes):
    """Train one step of a stage of linear layers, and return its peak."""
    with pretend.gpu("a100-40gb", world_size=STAGES, rank=rank):
        dist.init_process_group("nccl")
        device = torch.device("cuda", 0)
        module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))).to(device)
        stage = PipelineStage(module, rank, STAGES, device, **shapes)
        steps = schedule(stage, MICRO_BATCHES, loss_fn=lambda out, _: out.sum())
        x = torch.randn(MICRO_BATCHES * TOKENS, WIDTH, device=device)
        if rank == 0:
            steps.step(x)
        elif rank == STAGES - 1:
            steps.step(target=x, losses=[])
        else:
            steps.step()
        return torch.cuda.max_memory_allocated()


def like():
    return torch.empty(TOKENS, WIDTH, device="meta", requires_grad=True)


def test_the_first_stage_finds_its_shapes_itself():
    """It keeps three activations of each micro-batch under way: all of eight, or one a stage."""
    gpipe, one_by_one = stepped(0, ScheduleGPipe), stepped(0, Schedule1F1B)
    fewer = MICRO_BATCHES - STAGES
    assert 2 * fewer * KEPT <= gpipe - one_by_one <= 4 * fewer * KEPT


@pytest.mark.parametrize("rank", [1, STAGES - 1])
def test_what_comes_in_has_to_be_said(rank):
    with pytest.raises(InputError, match="input_args"):
        stepped(rank, Schedule1F1B)


@pytest.mark.parametrize("rank", [1, STAGES - 1])
def test_shapes_that_are_found_are_those_that_are_said(rank):
    found = stepped(rank, Schedule1F1B, input_args=like())
    said = stepped(rank, Schedule1F1B, input_args=like(), output_args=like())
    assert found == pytest.approx(said, abs=4 * KEPT)


SCRIPT = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("nccl")
rank, device = dist.get_rank(), torch.device("cuda", 0)
widths = [64, 96, 32, 128, 64]
part = nn.Linear(widths[rank], widths[rank + 1]).to(device)
given = torch.empty(32, widths[rank], device="meta", requires_grad=True)
shapes = {"input_args": given} if "--said" in sys.argv else {}
stage = PipelineStage(part, rank, 4, device, **shapes)
schedule = Schedule1F1B(stage, 8, loss_fn=lambda out, _: out.sum())
x = torch.randn(8 * 32, 64, device=device)
schedule.step(*[x] * (rank == 0), target=x if rank == 3 else None, losses=[])
print("ran")
"""


def ran(script, rank, *more, told=lambda _: None):
    run = pretend.gpu("a100-40gb", world_size=STAGES, rank=rank)
    assert ended_by(run, [str(script), *more], Limits(60), told) is None
    return run


@pytest.mark.parametrize("rank", [1, STAGES - 1])
def test_a_script_is_run_as_the_ranks_before_up_to_what_they_send(tmp_path, capsys, rank):
    script, notes = tmp_path / "stages.py", []
    script.write_text(SCRIPT, "utf-8")
    found = ran(script, rank, told=notes.append)
    assert capsys.readouterr().out == "ran\n"
    assert [note for note in notes if "up to what they send" in note] == notes[:1]
    said = ran(script, rank, "--said")
    assert found.peak_allocated_bytes == pytest.approx(said.peak_allocated_bytes, abs=4 * KEPT)
    widths = {shape for shape, _ in found.recording().shapes}
    assert f"[32, {(64, 96, 32, 128)[rank]}]" in widths


def test_what_a_stage_before_does_not_send_has_to_be_said(tmp_path):
    script = tmp_path / "stages.py"
    lost = SCRIPT.replace("widths = ", "assert rank, 'no data here'\nwidths = ")
    script.write_text(lost, "utf-8")
    run = pretend.gpu("a100-40gb", world_size=STAGES, rank=1)
    error = ended_by(run, [str(script)], Limits(60))
    assert isinstance(error, InputError)
    assert "input_args" in str(error)
