"""The largest dense decoder whose every parameter one GPU trains, with a host of ordinary size.

Blocks are on the host as far as it holds them, and are updated while they are on the device
(``--offload parameters:K --optimizer-in-backward``); all blocks are recomputed, the loss is cut
into chunks. Searched is the depth: the deepest that the allocator's replay and the host take, and
one block more does not. Nothing of it ran on a GPU; the same way of training is run on a CPU with
a small model.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import torch
from cases import Case
from evidence import Summary, relative, spread_of
from moonshot_rows import MoonshotRow, MoonshotRows, RehearsedMoonshot, rule_words
from progress import shown
from sampler import cluster_of
from worker import meter

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.step import train_step
from brimful.cost.copied import Copied, copied_seconds
from brimful.cost.estimate import estimate_or_none
from brimful.hardware.cluster import Cluster
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model, parameter_count, read_config
from brimful.models.spec import ModelSpec
from brimful.simulate.run import simulate
from brimful.techniques.runnable import check_strategy
from brimful.units import GIB
from brimful.values.job import Job, Optimizer, plain_job
from brimful.values.results import OPTIMIZER_STATE, PARAMETERS, Simulation
from brimful.values.strategy import Strategy

SEQ_LEN, CHUNKS = 4096, 8
HOST_RESERVE_BYTES = 8 * GIB
"""Of the host, left to the process itself and the system (assumed; ``cost.assumptions`` has 1 to 4
GB a process)."""
NUM_STEPS = 12
PEAK_BAR = 0.005


class Site(NamedTuple):
    """A GPU and its host, and the shape of a block that suits both.

    Attributes:
        gpu: Of the table.
        host_bytes: Of the host.
        hidden: Width of the decoder.
        inner: Width inside of its MLP. All four matrices' sizes are powers of two, as pinned
            blocks are.
        known: Models of the registry to be tried here, with their update rules, and whether state
            travels.
    """

    gpu: str
    host_bytes: int
    hidden: int
    inner: int
    known: tuple[tuple[str, Optimizer, bool], ...]


SITES = (
    Site("h200", 128 * GIB, 16384, 32768, (
        ("llama-3.1-70b", "adamw-8bit", True), ("llama-3.1-70b", "adafactor", False),
        ("qwen2.5-72b", "adafactor", False),
    )),
    Site("rtx-4090", 64 * GIB, 8192, 16384, (
        ("llama-2-13b", "adamw-8bit", True), ("llama-3.1-8b", "adamw-8bit", True),
        ("mistral-small-24b", "adafactor", False), ("qwen2.5-32b", "adafactor", False),
    )),
)  # fmt: skip
RULES: tuple[tuple[Optimizer, bool], ...] = (
    ("adafactor", False), ("sgd", False), ("adamw-8bit", False), ("adamw-8bit", True),
    ("adamw", False), ("adamw", True),
)  # fmt: skip
"""Update rules, and whether their state travels with blocks of the host. SGD without momentum keeps
nothing; the others about 0, 2 and 4 bytes a parameter in bf16."""
_STATE_BYTES: dict[Optimizer, tuple[float, ...]] = {
    "adamw-8bit": (1.0, 1.0, 4 / 256, 4 / 256), "adamw": (2.0, 2.0),
}  # fmt: skip
"""Of each tensor of a state, for a parameter in bf16: moments, and scales of 256 of them."""
NORMS = ("input_layernorm", "post_attention_layernorm", "norm")
"""Kept in fp32: weights of about one, which in bf16 no update of this size changes."""
_HEAD_DIM, _KV_HEADS, _VOCAB = 128, 8, 32768


def run(*, seed: int, quick: bool) -> tuple[list[MoonshotRows], Summary]:
    """Search and simulate every site, and run the small one."""
    rows = [_rehearsed(rehearse(seed))]
    if not quick:
        asked = [(site, *rule) for site in SITES for rule in RULES]
        rows += [_simulated(largest(*one)) for one in shown("largest", asked)]
        known = [(site, *pair) for site in SITES for pair in site.known]
        rows += [_simulated(least_away(*one)) for one in shown("known models", known)]
    return rows, summarize(rows)


def _simulated(row: MoonshotRow) -> MoonshotRows:
    return MoonshotRows(case=row.case, simulated=row, run=None)


def _rehearsed(row: RehearsedMoonshot) -> MoonshotRows:
    return MoonshotRows(case=row.case, simulated=None, run=row)


def shape(site: Site, num_layers: int) -> ModelSpec:
    """Return a decoder of a site's shape."""
    config = {
        "model_type": "llama", "hidden_size": site.hidden, "intermediate_size": site.inner,
        "num_hidden_layers": num_layers, "num_attention_heads": site.hidden // _HEAD_DIM,
        "num_key_value_heads": _KV_HEADS, "head_dim": _HEAD_DIM, "vocab_size": _VOCAB,
        "max_position_embeddings": SEQ_LEN, "tie_word_embeddings": False,
    }  # fmt: skip
    return read_config(f"decoder-{site.hidden}x{num_layers}", config)


def job_of(model: ModelSpec, rule: Optimizer) -> Job:
    """Return the job: whole training in bf16, one sequence a step."""
    momentum = {"beta1": 0.0} if rule == "sgd" else {}
    return plain_job(
        model, precision="bf16", optimizer=rule, seq_len=SEQ_LEN, global_batch=1, clip=0.0,
        num_steps=NUM_STEPS, keep_fp32=NORMS, **momentum,
    )  # fmt: skip


def strategy_of(num_away: int, *, travels: bool = False) -> Strategy:
    """Return the strategy, with so many blocks on the host, and perhaps their state."""
    away = f"{'optimizer,' if travels else ''}parameters:{num_away}"
    return Strategy(
        micro_batch=1,
        activation_checkpointing="full",
        loss_chunks=CHUNKS,
        attention="sdpa",
        offload=away if num_away else "none",
        optimizer_in_backward=True,
    )


class _Tried(NamedTuple):
    """A model on a site, with so many blocks on the host."""

    job: Job
    strategy: Strategy
    found: Simulation
    host_limit: int

    @property
    def is_on_device(self) -> bool:
        """Whether the device holds it."""
        assert self.found.reserved is not None, "sites are of GPUs"
        return self.found.reserved.outcome != "out of memory"

    @property
    def over_bytes(self) -> int:
        """By how much the fuller memory is over; not above 0 where both hold it."""
        reserved, blocks = self.found.reserved, self.found.simulated_host_block_bytes or 0
        assert reserved is not None, "sites are of GPUs"
        if reserved.outcome == "out of memory":
            return max(1, reserved.short_bytes)
        if blocks > self.host_limit:
            return blocks - self.host_limit
        return reserved.simulated_peak_reserved_bytes - reserved.capacity_bytes

    @property
    def fits(self) -> bool:
        """Whether both memories hold it."""
        return self.over_bytes <= 0


def tried(site: Site, job: Job, num_away: int, *, travels: bool = False) -> _Tried:
    """Simulate a job on a site."""
    strategy = check_strategy(job, strategy_of(num_away, travels=travels))
    found = simulate(job, cluster_of_site(site), strategy)
    return _Tried(job, strategy, found, site.host_bytes - HOST_RESERVE_BYTES)


def cluster_of_site(site: Site) -> Cluster:
    """Return the one GPU."""
    return load_cluster(site.gpu, memory_limit_bytes=None)


def block_bytes(model: ModelSpec) -> int:
    """Return the bytes of a block's parameters in bf16."""
    deeper = msgspec.structs.replace(model, num_layers=model.num_layers + 1)
    return 2 * (parameter_count(deeper).total - parameter_count(model).total)


def pinned_block_bytes(site: Site, rule: Optimizer, *, travels: bool) -> int:
    """Return what PyTorch pins for a block, and its state: every tensor in a power of two."""
    kv = _KV_HEADS * _HEAD_DIM
    counts = [site.hidden * site.hidden] * 2 + [site.hidden * kv] * 2
    counts += [site.hidden * site.inner] * 3
    each = (2.0, *_STATE_BYTES.get(rule, ())) if travels else (2.0,)
    sizes = [int(count * width) for count in counts for width in each]
    norms = [4 * site.hidden] * 2 * (3 if travels else 1)  # in fp32, and so is their state
    return sum(1 << (size - 1).bit_length() for size in (*sizes, *norms))


def largest(site: Site, rule: Optimizer, travels: bool) -> MoonshotRow:  # noqa: FBT001
    """Find the deepest decoder of a site's shape that fits: one block more does not."""
    block = pinned_block_bytes(site, rule, travels=travels)
    most_away = (site.host_bytes - HOST_RESERVE_BYTES) // block

    def at(num_layers: int) -> _Tried:
        job = job_of(shape(site, num_layers), rule)
        return tried(site, job, min(num_layers, most_away), travels=travels)

    depth = most_away + 4
    here = at(depth)
    each = block_bytes(here.job.model)
    step = _blocks_of(here, rule, each)
    while step:  # nearly a line: a jump or two, then one by one
        there = at(depth + step)
        if there.fits == here.fits or abs(step) > 1:
            depth, here = depth + step, there
            step = _blocks_of(here, rule, each)
            continue
        fitting, over = (here, there) if here.fits else (there, here)
        return _row("largest", site, fitting, f"one block more: {_why(over)}")
    raise AssertionError("a step is at least one block")


def _blocks_of(here: _Tried, rule: Optimizer, each: int) -> int:
    """Guess how many blocks more, or fewer, there is room for; never none."""
    state = sum(_STATE_BYTES.get(rule, ())) / 2
    reserved = here.found.reserved
    assert reserved is not None
    room = reserved.capacity_bytes - reserved.simulated_peak_reserved_bytes
    if reserved.outcome == "out of memory":  # held until then; what is alive is known to the end
        room = min(0, reserved.capacity_bytes - here.found.simulated_peak_allocated_bytes)
    blocks = int(room / (each * (1 + state)))
    return blocks or (1 if here.fits else -1)


def _why(over: _Tried) -> str:
    reserved = over.found.reserved
    assert reserved is not None
    if reserved.outcome == "out of memory":
        return f"the device is short of {over.over_bytes / GIB:.2f} GiB in {reserved.where}"
    return f"the host is short of {over.over_bytes / GIB:.2f} GiB"


def least_away(site: Site, name: str, rule: Optimizer, travels: bool) -> MoonshotRow:  # noqa: FBT001
    """Find the fewest blocks of a known model that must be on the host for the device to hold it.

    Fewer of them take less of the host as well, so that both memories hold it there or nowhere.
    """
    job = job_of(load_model(name), rule)
    low, high = -1, job.model.num_layers
    best, limit = tried(site, job, high, travels=travels), ""
    if not best.is_on_device:
        return _row("known", site, best, _why(best))
    while high - low > 1:
        middle = (low + high) // 2
        here = tried(site, job, middle, travels=travels)
        if here.is_on_device:
            high, best = middle, here
        else:
            low, limit = middle, f"one block fewer on the host: {_why(here)}"
    return _row("known", site, best, limit if best.fits else _why(best))


def _row(kind: str, site: Site, found: _Tried, limit: str) -> MoonshotRow:
    simulation, reserved = found.found, found.found.reserved
    assert reserved is not None
    return MoonshotRow(
        kind=kind,  # type: ignore[arg-type]  # one of two
        gpu=site.gpu,
        host_bytes=site.host_bytes,
        host_limit_bytes=found.host_limit,
        case=Case(job=found.job, strategy=found.strategy, kernels="cuda"),
        num_parameters=parameter_count(found.job.model).total,
        simulated_peak_allocated_bytes=simulation.simulated_peak_allocated_bytes,
        simulated_peak_reserved_bytes=reserved.simulated_peak_reserved_bytes,
        capacity_bytes=reserved.capacity_bytes,
        simulated_peak_host_bytes=simulation.simulated_peak_host_bytes,
        simulated_host_block_bytes=simulation.simulated_host_block_bytes or 0,
        outcome=reserved.outcome,
        fits=found.fits,
        limit=limit,
        predicted_step_s=step_seconds(site, found),
        simulate_s=simulation.simulate_s,
    )


def step_seconds(site: Site, found: _Tried) -> float | None:
    """Predict a step: the work with SGD's update, and what copies take beyond it.

    A block of the host comes for its forward pass and again for its backward pass, and goes home
    once; its state comes and goes once. Updates read and write on the device, in the time of SGD's.
    """
    plain = msgspec.structs.replace(found.strategy, offload="none", optimizer_in_backward=False)
    job = msgspec.structs.replace(found.job, optimizer="sgd", beta1=0.0, keep_fp32=())
    said = estimate_or_none(job, cluster_of_site(site), plain)
    if said is None or said.predicted_step_s is None:
        return None
    host = {item.name: float(item.num_bytes) for item in found.found.host}
    parameters, state = host.get(PARAMETERS, 0.0), host.get(OPTIMIZER_STATE, 0.0)
    copied = Copied(to_host=parameters + state, to_device=2 * parameters + state)
    device = cluster_of_site(site).device
    more_s = copied_seconds(copied, device, beside_s=said.predicted_step_s)
    return None if more_s is None else said.predicted_step_s + more_s


def rehearse(seed: int) -> RehearsedMoonshot:
    """Train a small decoder the same way on this CPU: what changes, and what is taken."""
    config = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
        "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4,
        "vocab_size": 4096, "max_position_embeddings": 512, "tie_word_embeddings": False,
    }  # fmt: skip
    job = plain_job(
        read_config("small", config), precision="bf16", optimizer="adafactor", seq_len=256,
        global_batch=1, clip=0.0, num_steps=NUM_STEPS, learning_rate=1e-2, keep_fp32=NORMS,
    )  # fmt: skip
    strategy = check_strategy(job, strategy_of(7))
    case = Case(job=job, strategy=strategy, kernels="cpu")
    simulated, measured = simulate(job, cluster_of("cpu"), strategy), meter(case)
    losses, changed = _trained(job, strategy, seed)
    return RehearsedMoonshot(
        case=case,
        num_steps=len(losses),
        num_tensors=len(changed),
        num_changed=sum(changed),
        first_loss=losses[0],
        last_loss=losses[-1],
        simulated_peak_allocated_bytes=simulated.simulated_peak_allocated_bytes,
        measured_peak_allocated_bytes=measured.measured_peak_allocated_bytes,
        simulated_peak_host_bytes=simulated.simulated_peak_host_bytes,
        measured_peak_host_bytes=measured.measured_peak_host_bytes or 0,
    )


def _trained(job: Job, strategy: Strategy, seed: int) -> tuple[list[float], list[bool]]:
    """Take steps on one batch; returns each loss, and of each tensor whether it changed."""
    program = build_program(job, strategy, torch.device("cpu"))
    before = [parameter.detach().clone() for parameter in program.model.parameters()]
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(job.model.vocab_size, (1, job.seq_len + 1), generator=generator)
    batch = Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    losses = [
        float(train_step(
            program, [batch], num_targets=count_targets([batch]), learning_rate=job.learning_rate
        ).loss)
        for _ in range(NUM_STEPS)
    ]  # fmt: skip
    after = program.model.parameters()
    return losses, [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]


def summarize(rows: list[MoonshotRows]) -> Summary:
    """Say what is largest, and what does not hold."""
    ran = [row.run for row in rows if row.run is not None]
    errors = [
        relative(row.simulated_peak_allocated_bytes, row.measured_peak_allocated_bytes)
        for row in ran
    ]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread_of("device peak", errors),),
        bars=(
            "the largest fit both memories by the allocator's replay, and one block more does not",
            f"on a CPU every tensor changes, the loss falls, device within {PEAK_BAR:.1%}",
        ),
        missed=tuple(_missed(rows)),
        findings=tuple(_findings(rows)),
    )


def _missed(rows: list[MoonshotRows]) -> Iterator[str]:
    for row in rows:
        if row.simulated is not None and row.simulated.kind == "largest" and not row.simulated.fits:
            yield f"{row.simulated.gpu}, {row.case.job.optimizer}: the largest does not fit"
        small = row.run
        if small is None:
            continue
        error = relative(small.simulated_peak_allocated_bytes, small.measured_peak_allocated_bytes)
        if small.num_changed != small.num_tensors or small.last_loss >= small.first_loss:
            yield f"on a CPU {small.num_changed} of {small.num_tensors} tensors changed"
        if abs(error) > PEAK_BAR:
            yield f"on a CPU the device is {error:+.2%} off"


def _findings(rows: list[MoonshotRows]) -> Iterator[str]:
    for row in (row.simulated for row in rows):
        if row is not None and row.kind == "largest":
            yield (
                f"{row.gpu}, host of {row.host_bytes // GIB} GiB, {rule_words(row.case)}: "
                f"{row.num_parameters / 1e9:.1f}B"
            )
