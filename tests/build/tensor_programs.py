"""Programs cut over real processes that talk by gloo, and what they say: for tests to compare."""

import dataclasses
import datetime as dt
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.gradient_clip import clip_gradients
from brimful.build.parallel import collectives
from brimful.build.parallel.place import own_part
from brimful.build.step import evaluate, train_step
from brimful.measure.meter import CpuMeter
from brimful.models.architectures import ARCHITECTURES
from brimful.models.generic import listed
from brimful.techniques.runnable import check_strategy
from brimful.train.checkpoint import load_checkpoint, save_checkpoint
from brimful.values.plan import PLAN_SCHEMA, Plan
from brimful.values.strategy import world_size
from build.plain import ragged_batch
from other_decoders import make_decoder
from processes import run_group
from samples import make_cluster, make_job, make_model, make_strategy
from train.programs import progress

NUM_STEPS = 2
"""The second is the first that has moments, and what it learns is in the held-out loss."""
RATE = 1e-2
TIMEOUT = dt.timedelta(seconds=120)
WIDE = {"hidden_size": 128, "intermediate_size": 344, "vocab_size": 2000}
"""Of programs that are measured: tensors of more bytes than what instruments differ by."""
MEASURED_TOKENS = 256


def case(name):
    """Return the job and the strategy of a case."""
    found = CASES[name]
    job = make_job(**{"model": found.model(), "global_batch": 8, **found.job})
    return job, check_strategy(job, make_strategy(**{"tp": 2, **found.strategy}))


@dataclasses.dataclass(frozen=True)
class Case:
    architecture: str
    config: dict
    strategy: dict = dataclasses.field(default_factory=dict)
    job: dict = dataclasses.field(default_factory=dict)
    steps: int = NUM_STEPS
    momentum: float | None = None  # SGD by torch's own: ours takes no pieces in fp32

    def model(self):
        make = make_model if self.architecture == "llama" else make_decoder
        return make(self.architecture, **{"vocab_size": 96, **self.config})


ZERO_1 = {"tp": 1, "zero": 1, "dp_shard": 2}
MEASURED = {"seq_len": MEASURED_TOKENS, "global_batch": 4}
TIED = {"tie_word_embeddings": True}
SELECTIVE = {"loss_chunks": 4, "activation_checkpointing": "selective"}
ALIKE = sorted(listed().cut - {*ARCHITECTURES})
"""What is cut by its class's plan alone."""
OF_ALIKE = {
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    },
    "cwm": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
EAGER_ALIKE = ("vaultgemma",)
CASES = {
    "llama": Case("llama", {}, {"attention": "eager"}, momentum=0.9),
    "llama-tied-uneven": Case("llama", TIED | {"vocab_size": 97}, SELECTIVE),
    "qwen3-biases": Case("qwen3", {"attention_bias": True}, {"activation_checkpointing": "full:1"}),
    "olmo2-padding": Case("olmo2", {"pad_token_id": 61}),
    "gemma2": Case("gemma2", {}, {"attention": "eager", "loss_chunks": 3}),
    "llama-biases": Case("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": Case("mistral", {}, {"activation_checkpointing": "full"}),
    "qwen2": Case("qwen2", TIED),
    "granite": Case("granite", {}),
    "cohere": Case("cohere", {}, momentum=0.0),
    "bf16-mixed": Case("llama", {}, job={"precision": "bf16-mixed"}, steps=1),
    "bf16-master": Case("llama", {}, job={"precision": "bf16-master"}, steps=1),
    "zero-2": Case("llama", {}, {"zero": 2, "dp_shard": 2}, momentum=0.9),
    "zero-3-held": Case("llama", TIED | {"vocab_size": 98}, SELECTIVE | {
        "zero": 3, "dp_shard": 2, "accumulate": "hold"}),
    "zero-3-eager": Case("gemma2", {"pad_token_id": 3}, {"zero": 3, "dp_shard": 2,
        "attention": "eager", "activation_checkpointing": "full:1"}),
    "zero-3-master": Case("llama", {}, {"zero": 3, "dp_shard": 2},
        job={"precision": "bf16-master"}, steps=1),
    "hybrid": Case("qwen3", {}, {"zero": 3, "dp_shard": 2, "dp_replicate": 2}),
    "zero-1-muon": Case("llama", {}, ZERO_1, job={"optimizer": "muon"}),
    "zero-1-held": Case("llama", TIED, ZERO_1 | {"accumulate": "hold"}),
    "zero-1-master": Case("llama", {}, ZERO_1, job={"precision": "bf16-master"}, steps=2),
    "zero-1-muon-master": Case("llama", {}, ZERO_1, job={"precision": "bf16-master",
        "optimizer": "muon"}, steps=1),
    "zero-1-groups": Case("qwen3", {}, ZERO_1 | {"dp_replicate": 2}),
    "zero-1-groups-master": Case("llama", {}, ZERO_1 | {"dp_replicate": 2},
        job={"precision": "bf16-master"}, steps=1),
    "zero-1-pieces": Case("llama", TIED, {"zero": 1, "dp_shard": 2}),
    "zero-0-pieces": Case("qwen3", {}, {"dp_replicate": 2, "accumulate": "hold"}),
    "zero-1-pieces-master": Case("llama", {}, {"zero": 1, "dp_shard": 2},
        job={"precision": "bf16-master"}, steps=1),
    "measured-zero-1-pieces": Case("llama", WIDE, {"zero": 1, "dp_shard": 2},
        job={"seq_len": MEASURED_TOKENS, "global_batch": 8}),
    "measured-zero-1-muon": Case("llama", WIDE, ZERO_1, job=MEASURED | {"optimizer": "muon"}),
    "measured-zero-1-master": Case("llama", WIDE, ZERO_1,
        job=MEASURED | {"precision": "bf16-master"}),
    "measured-zero-1-groups": Case("llama", WIDE, ZERO_1 | {"dp_replicate": 2},
        job={"seq_len": MEASURED_TOKENS, "global_batch": 8}),
    "measured": Case("llama", WIDE, job=MEASURED),
    "measured-chunks": Case("llama", WIDE, {"loss_chunks": 4, "activation_checkpointing": "full",
        "attention": "eager"}, job=MEASURED),
    "measured-mixed": Case("llama", WIDE | TIED, {"activation_checkpointing": "selective"},
        job={"seq_len": MEASURED_TOKENS, "global_batch": 2, "precision": "bf16-mixed"}),
    "measured-zero-3": Case("llama", WIDE, {"zero": 3, "dp_shard": 2},
        job={"seq_len": MEASURED_TOKENS, "global_batch": 8}),
}  # fmt: skip
CASES |= {
    f"alike-{kind}": Case(
        kind, OF_ALIKE.get(kind, {}), {"attention": "eager"} if kind in EAGER_ALIKE else {}
    )
    for kind in ALIKE
    if kind not in {"granite", "cohere"}  # which are above
}


@dataclasses.dataclass(frozen=True)
class Run:
    """What a program did.

    Attributes:
        weights: Before the first step, whole, by name.
        steps: Loss and gradient norm of each.
        held_out: Its loss on another batch, after the last.
    """

    weights: dict
    steps: list
    held_out: float


def micro_batches(job, strategy, step):
    inputs, labels = ragged_batch(job, step=step)
    size = strategy.micro_batch
    return [Batch(*rows) for rows in zip(inputs.split(size), labels.split(size), strict=True)]


def _train(program, numbers):
    """Take steps; returns loss and gradient norm of each."""
    steps = []
    for step in numbers:
        batches = micro_batches(program.job, program.strategy, step)
        done = train_step(
            program,
            own_part(batches, program.strategy),
            num_targets=count_targets(batches),
            learning_rate=RATE,
        )
        assert not isinstance(done.grad_norm, DTensor)
        steps.append((float(done.loss), float(done.grad_norm)))
    return steps


def run(name, strategy=None):
    """Train a case as it is, or on one device under another strategy."""
    job, own = case(name)
    strategy = own if strategy is None else strategy
    program = build_program(job, strategy, torch.device("cpu"))
    if CASES[name].momentum is not None:
        sgd = torch.optim.SGD(program.model.parameters(), momentum=CASES[name].momentum)
        program = dataclasses.replace(program, optimizer=sgd)
    weights = {n: _whole(p.detach()).clone() for n, p in program.model.named_parameters()}
    steps = _train(program, range(CASES[name].steps))
    held_out = evaluate(program, micro_batches(job, strategy, step=NUM_STEPS))
    return Run(weights, steps, held_out)


def go_on(name):
    """Train on, once as a run that nothing ends and once from what it saved; returns both."""
    job, strategy = case(name)
    cluster = msgspec.structs.replace(make_cluster(), num_devices=world_size(strategy))
    plan = Plan(schema=PLAN_SCHEMA, job=job, cluster=cluster, strategy=strategy, estimate=None)
    with TemporaryDirectory() as own:
        folders = [None] * dist.get_world_size()
        dist.all_gather_object(folders, own)
        program = build_program(job, strategy, torch.device("cpu"))
        _train(program, range(NUM_STEPS))
        path = save_checkpoint(Path(folders[0]), program, progress(plan, NUM_STEPS))
        again = build_program(job, strategy, torch.device("cpu"))
        load_checkpoint(path, again)
        dist.barrier()
    return [
        (
            _train(each, range(NUM_STEPS, 2 * NUM_STEPS)),
            {n: _whole(p.detach()) for n, p in each.model.named_parameters()},
        )
        for each in (program, again)
    ]


def _whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def measure(name):
    """Meter two real steps; returns the reading's peak, items and phases as plain numbers."""
    job, strategy = case(name)
    ids = torch.arange(job.global_batch * job.seq_len) % job.model.vocab_size
    rows = ids.view(job.global_batch, job.seq_len).split(strategy.micro_batch)
    batches = [Batch(row, row) for row in rows]
    meter = CpuMeter()
    meter.start()
    program = build_program(job, strategy, torch.device("cpu"))
    for _ in range(2):
        own, num_targets = own_part(batches, strategy), count_targets(batches)
        train_step(program, own, num_targets=num_targets, learning_rate=1e-3)
    meter.stop(program)
    read = meter.reading
    return (
        read.measured_peak_allocated_bytes,
        {item.name: item.num_bytes for item in read.items},
        {phase.phase: phase.num_bytes for phase in read.phases},
    )


SHAPES = ((6, 4), (5, 3), (8,), (7,), (4, 4), (3,))
"""Of the gradients that are clipped; not all can be cut evenly."""


def whole_gradients(dtype):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def clip(dtype, bound):
    """Clip gradients over two meshes, sharded, replicated and plain; returns norm and gradients."""
    world = dist.get_world_size()
    one = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    other = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp_shard", "tp"))
    spread = [
        (one, [Shard(0)]),
        (one, [Shard(1)]),
        (one, [Replicate()]),
        (other, [Shard(0), Replicate()]),
        (other, [Shard(0), Shard(1)]),
        None,
    ]
    parameters = []
    for whole, where in zip(whole_gradients(dtype), spread, strict=True):
        gradient = whole if where is None else distribute_tensor(whole, *where)
        parameters.append(nn.Parameter(torch.zeros_like(gradient)))
        parameters[-1].grad = gradient
    norm = clip_gradients(parameters, bound)
    assert not isinstance(norm, DTensor)
    return norm, [_whole(p.grad) for p in parameters]


PIECE = 1000
"""Numbers of a piece that is gathered or scattered."""


def allocations(collective):
    """Return the bytes of everything that one of gloo's collectives allocates."""
    piece, whole = torch.ones(PIECE), torch.ones(PIECE * dist.get_world_size())
    calls = {
        "gather": lambda: collectives.gathered(piece, dist.group.WORLD),
        "scatter": lambda: collectives.scattered(whole, dist.group.WORLD),
        "reduce": lambda: dist.all_reduce(whole),
    }
    with torch.profiler.profile(profile_memory=True) as profiler:
        calls[collective]()
    events = profiler.profiler.kineto_results.events()
    made = [e.nbytes() for e in events if e.name() == "[memory]" and e.nbytes() > 0]
    return made if collective == "reduce" else made[1:]  # the first is the result


DO = {"run": run, "go on": go_on, "measure": measure, "clip": clip, "allocations": allocations}


@cache
def in_processes(num, *asked):
    """Do what is asked in real processes; returns each one's answers in order.

    Args:
        num: How many.
        asked: Names in ``DO`` and their arguments.
    """
    with TemporaryDirectory() as folder:
        run_group(_work, num, num, asked, folder)
        return [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(num)]


def _work(rank, num, asked, folder):
    torch.set_num_threads(1)
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=num, timeout=TIMEOUT)
    answers = [DO[name](*arguments) for name, *arguments in asked]
    torch.save(answers, Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # the interpreter's own end trips over gloo's threads now and then


def is_for(name, num):
    """Whether a case runs on so many processes."""
    return world_size(case(name)[1]) == num
