"""Stages of ``torch.distributed.pipelining`` whose shapes nobody gave: one rank, no neighbours."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from brimful import pretend
from brimful.errors import InputError

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
