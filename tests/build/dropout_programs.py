"""A job that drops, on one device and over real processes: losses and norms of its steps."""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

from brimful.build.assemble import build_program
from brimful.build.batch import count_targets
from brimful.build.parallel.place import own_part
from brimful.build.step import train_step
from build.plain import ragged_batches
from build.tensor_programs import TIMEOUT
from samples import make_job, make_strategy

SPREADS = {
    "replicas": {"dp_replicate": 2},
    "shards": {"dp_shard": 2, "zero": 3, "activation_checkpointing": "full:2"},
}


def run(**switches):
    """Train two steps of four micro-batches; returns (loss, norm) of each."""
    job = make_job("gpt2", dropout="model")
    strategy = make_strategy(micro_batch=1, attention="eager", **switches)
    program = build_program(job, strategy, torch.device("cpu"))
    steps = []
    for step in range(2):
        batches = ragged_batches(job, strategy, step=step)
        done = train_step(
            program, own_part(batches, strategy), num_targets=count_targets(batches),
            learning_rate=job.learning_rate, step=step + 1,
        )  # fmt: skip
        steps.append((float(done.loss), float(done.grad_norm)))
    return steps


def work(rank, folder):
    """Train every case as one of two processes, and write down what the first one sees."""
    torch.set_num_threads(1)
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=TIMEOUT)
    found = {name: run(**spread) for name, spread in SPREADS.items()}
    if rank == 0:
        Path(folder, "steps.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's own end trips over gloo's threads now and then
