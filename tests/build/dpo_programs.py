"""Preference jobs whose models are sharded over real processes, and what they say."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from brimful.build.assemble import build_program
from brimful.build.parallel.place import own_part
from brimful.build.step import train_step
from brimful.measure.meter import CpuMeter
from brimful.techniques.runnable import check_strategy
from build.tensor_programs import TIMEOUT
from pairs import cut_pairs, make_lora, make_pair_job, make_pairs
from samples import make_model, make_strategy

WIDE = {"hidden_size": 128, "intermediate_size": 344, "vocab_size": 2000}
ALONE = {"resident": {}, "adapters-off": make_lora(), "mixed": {"precision": "bf16-mixed"}}
SHARDED = {
    "resident, zero 1": ("resident", {"zero": 1, "dp_shard": 2}),
    "resident, zero 2": ("resident", {"zero": 2, "dp_shard": 2}),
    "resident, zero 3": (
        "resident", {"zero": 3, "dp_shard": 2, "activation_checkpointing": "full"},
    ),
    "adapters-off, zero 2": ("adapters-off", {"zero": 2, "dp_shard": 2}),
    "adapters-off, zero 3": ("adapters-off", {"zero": 3, "dp_shard": 2, "loss_chunks": 4}),
    "resident, updated on the host": (
        "resident", {"zero": 3, "dp_shard": 2, "offload": "optimizer"},
    ),
    "mixed, zero 3": ("mixed", {"zero": 3, "dp_shard": 2}),
}  # fmt: skip


def settings(name, **strategy):
    """Return a job, and how it is run."""
    job = make_pair_job(
        model=make_model("llama", **WIDE), seq_len=96, global_batch=4, **ALONE[name]
    )
    reference = "adapters-off" if job.adapter else "resident"
    return job, check_strategy(job, make_strategy(reference=reference, **strategy))


def run(job, strategy):
    """Train two steps; return losses, norms, weights behind them and the metered peak."""
    meter = CpuMeter()
    meter.start()
    program = build_program(job, strategy, torch.device("cpu"))
    steps = []
    for step in range(2):
        batches = own_part(cut_pairs(make_pairs(job, step=step), strategy.micro_batch), strategy)
        done = train_step(program, batches, num_targets=job.global_batch, learning_rate=1e-3)
        steps.append((float(done.loss), float(done.grad_norm)))
    meter.stop(program)
    named = {n: p.detach() for n, p in program.model.named_parameters()}
    weights = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in named.items()}
    return steps, weights, meter.reading.measured_peak_allocated_bytes


def work(rank, num, folder):
    """Be one process of all sharded cases."""
    torch.set_num_threads(1)
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=num, timeout=TIMEOUT)
    answers = {case: run(*settings(name, **how)) for case, (name, how) in SHARDED.items()}
    torch.save(answers, Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's own end trips over gloo's threads now and then
