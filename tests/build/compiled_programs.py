"""Jobs whose blocks are compiled, what they say in real runs, and what is simulated of them."""

import os
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
import torch.distributed as dist

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.experts import expert_modules
from brimful.build.parallel.experts import RECEIVED
from brimful.build.parallel.place import own_part
from brimful.build.step import train_step
from brimful.measure.meter import CpuMeter
from brimful.models.config import default_task, for_task
from brimful.techniques.runnable import check_strategy
from build.tensor_programs import TIMEOUT
from other_decoders import make_decoder
from other_models import cut, make_other_model, ragged
from processes import run_group
from samples import make_adapter, make_job, make_model, make_strategy

LLAMA = {"hidden_size": 128, "intermediate_size": 344, "vocab_size": 2000}
GPT2 = {"n_embd": 128, "n_inner": 344, "vocab_size": 2000}
BERT = {"hidden_size": 128, "intermediate_size": 512, "vocab_size": 2000}
LORA = {"method": "lora", "adapter": make_adapter()}
QLORA = {"method": "qlora", "adapter": make_adapter(base="nf4-double")}
WHOLE = {"compile": "model"}
LOSS = {"compile": "blocks+loss"}
ONCE = {"clip": 0.0, "global_batch": 2}
"""What an update inside the backward pass takes: nothing has to know all gradients first."""
FULL = {"activation_checkpointing": "full"}
CASES = {
    "llama": (("llama", LLAMA), {}, {}),
    "llama full": (("llama", LLAMA), {}, FULL),
    "llama bf16-mixed selective:2": (
        ("llama", LLAMA),
        {"precision": "bf16-mixed"},
        {"activation_checkpointing": "selective:2"},
    ),
    "llama lora full": (("llama", LLAMA), LORA, FULL),
    "llama fp8": (("llama", LLAMA), {"precision": "fp8"}, {}),
    "llama bf16-mixed loss": (("llama", LLAMA), {"precision": "bf16-mixed"}, LOSS),
    "qwen3 chunks loss": (("qwen3", LLAMA), {}, {"loss_chunks": 4, **LOSS}),
    "llama lora whole": (("llama", LLAMA), LORA, WHOLE),
    "gpt2 whole": (("gpt2", GPT2), {}, WHOLE),
    "qwen3 chunks": (("qwen3", LLAMA), {}, {"loss_chunks": 4}),
    "llama nf4-double full": (("llama", LLAMA), QLORA, FULL),
    "llama optimizer away": (("llama", LLAMA), {}, {"offload": "optimizer"}),
    "llama early": (("llama", LLAMA), ONCE, {"optimizer_in_backward": True}),
    "llama early whole": (("llama", LLAMA), ONCE, {"optimizer_in_backward": True, **WHOLE}),
    "llama activations away": (("llama", LLAMA), {}, {"offload": "activations:2"}),
    "llama activations away full": (
        ("llama", LLAMA),
        {},
        {"offload": "activations:2", **FULL},
    ),
    "bert": (("bert", BERT), {"packing": "none"}, {}),
    "bert whole full": (("bert", BERT), {"packing": "none"}, {**WHOLE, **FULL}),
    "bert masked loss": (("bert", BERT), {"task": "masked-lm"}, LOSS),
    "gpt2 full:1": (("gpt2", GPT2), {}, {"activation_checkpointing": "full:1"}),
}
BIASED = "llama biases"
MOE = "qwen3_moe"
CASES_OF_TWO = {
    BIASED: (("llama", {**LLAMA, "attention_bias": True, "mlp_bias": True}), {}, {}),
    MOE: ((MOE, {"hidden_size": 128, "moe_intermediate_size": 96, "vocab_size": 2000}), {}, {}),
}
SHARDED = {
    "zero 3": ("llama", {"zero": 3, "dp_shard": 2}),
    "zero 2 full": ("llama", {"zero": 2, "dp_shard": 2, **FULL}),
    "fsdp 1": ("llama", {"zero": 3, "dp_shard": 2, "fsdp": 1}),
    "ddp": ("llama", {"dp_replicate": 2}),
    "zero 1": ("llama", {"zero": 1, "dp_shard": 2}),
    "tp": ("llama", {"tp": 2}),
    "tp selective": ("llama", {"tp": 2, "activation_checkpointing": "selective"}),
    "tp full, biases": (BIASED, {"tp": 2, **FULL}),
    "pp": ("llama", {"pp": 2}),
    "ep": (MOE, {"zero": 3, "dp_shard": 2, "ep": 2}),
    "ep full": (MOE, {"zero": 3, "dp_shard": 2, "ep": 2, **FULL}),
    "ep selective": (
        MOE,
        {"zero": 3, "dp_shard": 2, "ep": 2, "activation_checkpointing": "selective"},
    ),
}
CAPTURED = ("tp full, biases", "ep")
"""What two processes train without the code that a compiler writes."""
NUM_STEPS = 2


def settings(name, *, compiles=None, **how):
    """Return the job and the strategy of a case."""
    (architecture, sizes), job, strategy = (CASES | CASES_OF_TWO)[name]
    makes = {"llama": make_model, "gpt2": make_model, "bert": make_other_model}
    model = makes.get(architecture, make_decoder)(architecture, **sizes)
    model = for_task(model, job.get("task", default_task(model)))
    made = make_job(**{
        "model": model, "seq_len": 256, "global_batch": 4, "precision": "fp32",
        "task": default_task(model), **job,
    })  # fmt: skip
    strategy = {"compile": "blocks", **strategy, **how}
    if compiles is not None:
        strategy["compile"] = compiles
    return made, check_strategy(made, make_strategy(**strategy))


class Taken(NamedTuple):
    """What two steps did: losses and norms, the metered peak, and the rows that experts got."""

    said: list
    peak: int
    received: tuple


def take(job, strategy):
    """Train two steps."""
    batches = _batches(job, strategy)
    num_targets = count_targets(batches)
    meter = CpuMeter()
    meter.start()
    program = build_program(job, strategy, torch.device("cpu"))
    received = _hear_rows(program.model) if strategy.ep > 1 else ()
    said = []
    for _ in range(NUM_STEPS):
        own = own_part(batches, strategy)
        done = train_step(program, own, num_targets=num_targets, learning_rate=1e-3)
        said.append((float(done.loss), float(done.grad_norm)))
    meter.stop(program)
    rows = tuple(map(tuple, received))
    return Taken(said, meter.reading.measured_peak_allocated_bytes, rows)


def _batches(job, strategy):
    if job.packing == "none":
        return cut(ragged(job, step=0), strategy.micro_batch)
    rows = torch.Generator().manual_seed(0)
    ids = torch.randint(0, job.model.vocab_size, (job.global_batch, job.seq_len), generator=rows)
    return [Batch(part, part) for part in ids.split(strategy.micro_batch)]


def _hear_rows(model):
    """Return lists that the rows of every forward pass will be put into, one for each block."""
    every = list(expert_modules(model))
    received = [[] for _ in every]
    for experts in every:
        setattr(experts, RECEIVED, lambda block, num_rows: received[block].append(num_rows))
    return received


@cache
def taken(name, **how):
    """Do ``take`` in this process, once."""
    return take(*settings(name, **how))


@cache
def in_two_processes(backend="inductor"):
    """Train in two processes of gloo, spread in each way; each one's answers by ways."""
    with TemporaryDirectory() as folder:
        run_group(_work, 2, folder, backend)
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(2)]


def _work(rank, folder, backend):
    torch.set_num_threads(1)
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=TIMEOUT)
    torch.compile = partial(torch.compile, backend=backend)
    ways = SHARDED if backend == "inductor" else CAPTURED
    answers = {(way, "blocks"): _spread(way) for way in ways}
    answers |= {(way, "none"): _spread(way, compiles="none") for way in ways}
    torch.save(answers, Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's own end trips over gloo's threads now and then


def _spread(way, **how):
    torch._dynamo.reset()
    name, strategy = SHARDED[way]
    return tuple(take(*settings(name, **{**strategy, **how})))
