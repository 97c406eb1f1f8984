"""Preference jobs whose models are sharded over real processes, and what they say."""

import os
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from brimful.build.assemble import build_program
from brimful.build.parallel.place import own_part
from brimful.build.step import train_step
from brimful.measure.meter import CpuMeter
from brimful.techniques.runnable import check_strategy
from brimful.train.data.encoders.preference import (
    READ_CHOSEN,
    READ_REJECTED,
    SCORED_CHOSEN,
    SCORED_REJECTED,
)
from brimful.train.data.rows import RowShape
from brimful.train.data.sample_batches import FileWindows
from brimful.train.data.samples import Sample, map_samples, write_samples
from brimful.train.precomputed import _ask_all
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


ASKED = {
    "ddp": {"dp_replicate": 2},
    "zero 2": {"zero": 2, "dp_shard": 2},
    "zero 3": {"zero": 3, "dp_shard": 2},
}
NUM_ASKED = 7
"""Pairs, of which one process has one micro-batch less than the other."""


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


def asked(folder, **how):
    """Ask a model about seven pairs before it trains; return what it says, and a step behind it."""
    job, strategy = settings("resident", **how)
    strategy = check_strategy(job, msgspec.structs.replace(strategy, reference="precomputed"))
    folder.mkdir()
    write_samples(map(_pair, range(NUM_ASKED)), folder, vocab_size=2000)
    windows = FileWindows(
        map_samples(folder, vocab_size=2000), seq_len=job.seq_len, packed=False, seed=0
    )
    program = build_program(job, strategy, torch.device("cpu"))
    shape = RowShape(seq_len=job.seq_len, pad_id=0, answer="tokens", whole=False)
    scores = _ask_all(program, windows, shape)
    made = make_pairs(job)._replace(reference=scores[: job.global_batch])
    batches = own_part(cut_pairs(made, strategy.micro_batch), strategy)
    done = train_step(program, batches, num_targets=job.global_batch, learning_rate=1e-3)
    return scores, float(done.loss), float(done.grad_norm)


def _pair(number):
    """Make a sample whose answers are of other lengths than those of others."""
    kinds = [READ_CHOSEN, SCORED_CHOSEN, READ_REJECTED, SCORED_REJECTED]
    lengths = [3, 2 + number, 3, 9 - number]
    labels = [kind for kind, length in zip(kinds, lengths, strict=True) for _ in range(length)]
    return Sample([7 * number + place + 1 for place in range(len(labels))], labels)


def work(rank, num, folder):
    """Be one process of all sharded cases."""
    torch.set_num_threads(1)
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=num, timeout=TIMEOUT)
    answers = {case: run(*settings(name, **how)) for case, (name, how) in SHARDED.items()}
    told = {case: asked(Path(folder, f"{case} {rank}"), **how) for case, how in ASKED.items()}
    torch.save((answers, told), Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's own end trips over gloo's threads now and then
