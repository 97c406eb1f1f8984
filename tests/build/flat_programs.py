"""Jobs that FSDP1 shards over real processes, how they go on from what was saved, and what is said.

Each process runs all of them, one after the other, and the first writes what it found.
"""

import os
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.own import Range, whole
from brimful.build.parallel.place import own_part
from brimful.build.program import named_parameters
from brimful.build.step import evaluate, train_step
from brimful.measure.meter import CpuMeter
from brimful.techniques.runnable import check_strategy
from brimful.train.checkpoint import load_checkpoint, save_checkpoint
from brimful.train.handover import hand_over
from brimful.values.plan import PLAN_SCHEMA, Plan
from build.plain import ragged_batch
from build.tensor_programs import TIMEOUT
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy
from train.programs import progress

FLAT = {"zero": 3, "dp_shard": 2, "fsdp": 1}
EACH = {"zero": 3, "dp_shard": 2}
HELD = {**FLAT, "zero": 2, "micro_batch": 1, "accumulate": "hold"}
CASES = {
    "recomputed": ({}, {**FLAT, "micro_batch": 1, "activation_checkpointing": "full"}),
    "held": ({"architecture": "gpt2", "precision": "fp32"}, HELD),
    "mixed": ({"precision": "bf16-mixed"}, FLAT),
    "sgd": ({"optimizer": "sgd"}, FLAT),
    "masters": ({"precision": "bf16-master"}, FLAT),
    "lora": ({"adapter": {}}, {**FLAT, "zero": 2}),
    "nf4": ({"adapter": {"base": "nf4-double"}}, FLAT),
    "nf4 mixed": (
        {"adapter": {"base": "nf4", "dtype": "fp32"}, "precision": "bf16-mixed"},
        {**FLAT, "activation_checkpointing": "full"},
    ),
}
METERED = ("lora", "nf4 mixed")
SAVED = {"full": {}, "lora": {"adapter": {}}, "nf4": {"adapter": {"base": "nf4"}}}
NUM_STEPS, SAVED_AT = 2, 1


def settings(architecture="llama", adapter=None, *, how, **job):
    """Return a job, and how it is run."""
    made = make_job(architecture, model=make_model(architecture), global_batch=4, **job)
    if adapter is not None:
        method = "qlora" if "base" in adapter else "lora"
        made = msgspec.structs.replace(made, method=method, adapter=make_adapter(**adapter))
    return made, check_strategy(made, make_strategy(**{"micro_batch": 2, **how}))


def built(job, how):
    """Build a program, and the plan that it is of."""
    made, strategy = settings(**job, how=how)
    cluster = msgspec.structs.replace(make_cluster(), num_devices=strategy.dp_shard)
    plan = Plan(schema=PLAN_SCHEMA, job=made, cluster=cluster, strategy=strategy, estimate=None)
    return build_program(made, strategy, torch.device("cpu")), plan


def batches_of(program, step):
    size = program.strategy.micro_batch
    parts = (rows.split(size) for rows in ragged_batch(program.job, step=step))
    return [Batch(ids, labels) for ids, labels in zip(*parts, strict=True)]


def trained(program, steps):
    """Train; return losses and norms."""
    found = []
    for step in steps:
        every = batches_of(program, step)
        own, num = own_part(every, program.strategy), count_targets(every)
        done = train_step(program, own, num_targets=num, learning_rate=1e-3)
        found.append((float(done.loss), float(done.grad_norm)))
    return found


def run(job, how, meter=None):
    """Train, metered if asked, and judge; return losses and norms, the judged loss and weights."""
    if meter:
        meter.start()
    program, _ = built(job, how)
    steps = trained(program, range(NUM_STEPS))
    if meter:
        meter.stop(program)
    judged = evaluate(program, batches_of(program, 0))
    weights = {name: _numbers(parameter) for name, parameter in named_parameters(program)}
    return steps, judged, weights


def _numbers(parameter):
    """A whole parameter; of a frozen one its bytes, which FSDP1 calls numbers of another type."""
    found = whole(parameter)
    return found if parameter.requires_grad else found.flatten().view(torch.uint8)


def saved(folder, name, how):
    """Save behind two steps and hand over; return what the steps behind that say."""
    program, plan = built(SAVED[name], how)
    trained(program, range(SAVED_AT))
    evaluate(program, batches_of(program, 0))
    save_checkpoint(folder, program, progress(plan, SAVED_AT))
    hand_over(program, tokenizer_path=None, folder=folder / "model", merged=True)
    return trained(program, range(SAVED_AT, NUM_STEPS))


def resumed(folder, name, how):
    """Go on from what was saved."""
    program, _ = built(SAVED[name], how)
    load_checkpoint(folder / f"step-{SAVED_AT:08d}", program)
    return trained(program, range(SAVED_AT, NUM_STEPS))


def summed_whole(group):
    """Return a parameter of this process's and the other's numbers, as ``own.Range`` puts them."""
    rank, num = dist.get_rank(), dist.get_world_size()
    every = torch.tensor([0.0, -0.0, -1.5, float("inf"), -0.0, 2.0**-149])
    size = len(every) // num
    mine = Range(every.shape, rank * size, (rank + 1) * size, group)
    return mine.whole(every[mine.start : mine.stop]), every


def work(rank, num, folder):
    """Be one process of all."""
    torch.set_num_threads(1)
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=num, timeout=TIMEOUT)
    answers = {}
    for case, (job, how) in CASES.items():
        meter = CpuMeter() if case in METERED else None
        answers[case] = run(job, how, meter)
        if meter:
            answers[case, "peak"] = meter.reading.measured_peak_allocated_bytes
    for name in SAVED:
        flat, each = Path(folder, name, "flat"), Path(folder, name, "each")
        answers[name, "flat"] = saved(flat, name, FLAT)
        answers[name, "flat to each"] = resumed(flat, name, EACH)
        saved(each, name, EACH)
        answers[name, "each to flat"] = resumed(each, name, FLAT)
    answers["range"] = summed_whole(dist.group.WORLD)
    torch.save(answers, Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's own end trips over gloo's threads now and then
