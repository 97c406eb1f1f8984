"""Processes that compare state made before the first step with state made lazily."""

import os

import torch
import torch.distributed as dist

from brimful.build import step
from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.own import own_memory
from brimful.build.parallel.place import own_part
from brimful.build.program import state_tensors
from brimful.build.step import train_step
from samples import make_job, make_model, make_strategy


def ran(zero, rule):
    job = make_job(model=make_model(num_hidden_layers=2), optimizer=rule)
    strategy = make_strategy(micro_batch=1, zero=zero, dp_shard=2)
    program = build_program(job, strategy, torch.device("cpu"))
    ids = torch.randint(0, job.model.vocab_size, (4, job.seq_len))
    batches = [Batch(rows, rows) for rows in ids.split(1)]
    for _ in range(3):
        part = own_part(batches, strategy)
        num_targets = count_targets(batches)
        train_step(program, part, num_targets=num_targets, learning_rate=1e-2)
    tensors = [*program.model.parameters(), *state_tensors(program)]
    return [own_memory(tensor.detach()) for tensor in tensors]


def compare(rank, num, store, cases):
    """Raise unless for every case, a stage of ZeRO and an update rule, no bit differs."""
    torch.set_num_threads(1)
    where = f"file://{store}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=num)
    make_state = step.make_state
    for zero, rule in cases:
        step.make_state = make_state
        torch.manual_seed(1)
        eager = ran(zero, rule)
        step.make_state = lambda _program: None
        torch.manual_seed(1)
        lazy = ran(zero, rule)
        assert len(eager) == len(lazy) > 0, (zero, rule)
        for mine, theirs in zip(eager, lazy, strict=True):
            assert torch.equal(mine, theirs), (zero, rule)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's own end trips over gloo's threads now and then
