"""A frozen base on the host of several processes: what two of gloo learn beside it."""

import os
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

from brimful.build.assemble import build_program
from brimful.build.parallel.place import own_part
from brimful.techniques.runnable import check_strategy
from build.plain import ragged_step
from pairs import make_lora
from processes import run_group
from samples import make_job, make_strategy

TIMEOUT = timedelta(seconds=60)
NUM_STEPS = 3
WAYS = {"ddp": {"dp_replicate": 2}, "zero 1": {"zero": 1, "dp_shard": 2}}
HELD = {"there": {}, "away": {"offload": "parameters", "activation_checkpointing": "full:2"}}


def take(strategy):
    """Train; return each step's loss and norm, and what trains."""
    job = make_job(**make_lora("qlora", base="nf4-double"))
    check_strategy(job, strategy)
    program = build_program(job, strategy, torch.device("cpu"))
    part = partial(own_part, strategy=strategy)
    said = [ragged_step(program, step=step, part=part) for step in range(NUM_STEPS)]
    return said, [each.detach() for each in program.model.parameters() if each.requires_grad]


@cache
def in_two_processes():
    """Train in two processes of gloo, in each way and with each base; each one's answers."""
    with TemporaryDirectory() as folder:
        run_group(_work, 2, folder)
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(2)]


def _work(rank, folder):
    torch.set_num_threads(1)
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=TIMEOUT)
    answers = {
        (way, base): take(make_strategy(micro_batch=1, **spread, **held))
        for way, spread in WAYS.items()
        for base, held in HELD.items()
    }
    torch.save(answers, Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's own end trips over gloo's threads now and then
