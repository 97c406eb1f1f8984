"""Two real processes one of which comes to a NaN, and what both say of it."""

import datetime as dt
import math
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.parallel.place import own_part
from brimful.build.step import train_step
from brimful.doctor.program import PlainStep
from brimful.techniques.runnable import check_strategy
from brimful.train.bad_step import StepNumbers, look_together
from brimful.values.job import LossScale
from processes import run_group
from samples import make_job, make_model, make_strategy

TIMEOUT = dt.timedelta(seconds=600)
LAYER = "model.layers.1.mlp.up_proj"
LAYOUTS = {
    "ddp": {"dp_replicate": 2},
    "zero-3": {"dp_shard": 2, "zero": 3},
    "tp": {"tp": 2},
}
SCRIPT = (True, False, True, True, True, True, False, False)
"""Of each step, whether its gradients are finite."""
NUMBERS = StepNumbers(6, math.nan, math.nan, 1e-3, None, skipped=False)


def look(layout, folder, *, ill):
    """Plant a NaN in what a layer of the second process returns; return what this one says."""
    job = make_job(model=make_model(vocab_size=96), global_batch=8)
    strategy = check_strategy(job, make_strategy(**LAYOUTS[layout]))
    program = build_program(job, strategy, torch.device("cpu"))
    if ill and dist.get_rank() == 1:
        program.model.get_submodule(LAYER).register_forward_hook(lambda _m, _i, out: out * math.nan)
    batches = made_batches()
    own = own_part(batches, strategy)
    step = PlainStep(micro_batches=own, num_targets=count_targets(batches))
    said = look_together(program, NUMBERS, step, position=None, out=Path(folder, layout))
    return said, [p.grad is None for p in program.model.parameters()]


def scale(layout):
    """Train with an Inf in the second process's gradients in scripted steps: scales and skips."""
    rule = LossScale(
        initial_scale=2.0**10, growth_factor=2.0, backoff_factor=0.5, growth_interval=3
    )
    job = make_job(
        model=make_model(vocab_size=96), global_batch=8, precision="fp16-mixed", loss_scale=rule
    )
    strategy = check_strategy(job, make_strategy(**LAYOUTS[layout]))
    program = build_program(job, strategy, torch.device("cpu"))
    now = [True]

    def spoil(_module, _args, out):
        if dist.get_rank() == 1 and not now[0] and out.requires_grad:
            out.register_hook(lambda gradient: gradient * math.inf)

    program.model.get_submodule(LAYER).register_forward_hook(spoil)
    found, batches = [], made_batches()
    for now[0] in SCRIPT:
        done = train_step(
            program,
            own_part(batches, strategy),
            num_targets=count_targets(batches),
            learning_rate=1e-3,
        )
        found.append((done.loss_scale, done.skipped))
    return found


def made_batches():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 96, (4, 2, 25), generator=generator)
    return [Batch(x[:, :-1].contiguous(), x[:, 1:].contiguous()) for x in tokens]


@cache
def answers():
    """Return what both processes say, by layout: of an ill pair and of a healthy one; the files."""
    with TemporaryDirectory() as folder:
        run_group(_work, 2, folder)
        told = [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(2)]
        files = {path.parent.parent.name: path.read_text() for path in Path(folder).rglob("*.json")}
        return told, files, folder


def _work(rank, folder):
    torch.set_num_threads(1)
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=TIMEOUT)
    told = {name: look(name, folder, ill=True) for name in LAYOUTS}
    told["scales"] = {name: scale(name) for name in LAYOUTS}
    told["healthy"] = look("ddp", folder, ill=False)
    torch.save(told, Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's own end trips over gloo's threads now and then
