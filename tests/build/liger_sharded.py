"""Train tiny programs over two processes with and without Liger's kernels.

A script, to be run with ``TRITON_INTERPRET=1``: prints the losses and gradient norms of every case
that is named, as JSON. What it does to Triton's interpreter stands in ``liger_interpreted``.
"""

import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from liger_interpreted import SIZES, fit, train_step

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.parallel.place import own_part
from brimful.techniques.runnable import check_strategy
from build.plain import ragged_batch
from build.tensor_programs import TIMEOUT
from samples import make_adapter, make_job, make_model, make_strategy

WHOLE = {"micro_batch": 1, "dp_shard": 2}
DEEPSPEED = {**WHOLE, "engine": "deepspeed"}
CASES = {
    "flat 3": ({}, {**WHOLE, "zero": 3, "fsdp": 1, "activation_checkpointing": "full"}),
    "flat 2": ({}, {**WHOLE, "zero": 2, "fsdp": 1, "accumulate": "hold"}),
    "flat lora": ({"method": "lora", "adapter": make_adapter()}, {**WHOLE, "zero": 3, "fsdp": 1}),
    "each 3": ({}, {**WHOLE, "zero": 3}),
    "deepspeed 1": ({"precision": "fp32"}, {**DEEPSPEED, "zero": 1, "accumulate": "hold"}),
    "deepspeed 2": ({"precision": "fp32"}, {**DEEPSPEED, "zero": 2}),
    "deepspeed 3": ({"precision": "fp32"}, {**DEEPSPEED, "zero": 3}),
    "deepspeed offloaded": (
        {"precision": "fp32"},
        {**DEEPSPEED, "zero": 3, "offload": "parameters"},
    ),
}
NUM_STEPS = 2


def take(name, fused_kernels):
    """Train some steps; return the loss and the norm of each."""
    job, how = CASES[name]
    job = make_job(model=make_model("llama", **SIZES), global_batch=4, **job)
    how = {**how, "fused_kernels": fused_kernels}
    strategy = check_strategy(job, make_strategy(**how))
    program = build_program(job, strategy, torch.device("cpu"))
    found = []
    for step in range(NUM_STEPS):
        ids, labels = ragged_batch(job, step=step)
        every = list(map(Batch, ids.split(1), labels.split(1)))
        own, num = own_part(every, strategy), count_targets(every)
        done = train_step(program, own, num_targets=num, learning_rate=1e-3)
        found.append((float(done.loss), float(done.grad_norm)))
    return found


def work(rank, names, folder):
    """Be one of two processes."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=TIMEOUT)
    fit()
    found = {name: [take(name, each) for each in ("none", "liger")] for name in names}
    if rank == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)  # the interpreter's own end trips over gloo's threads now and then


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        mp.spawn(work, (sys.argv[1:], scratch), nprocs=2)
