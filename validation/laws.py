"""Laws of the first two rungs: how an answer must change when the job, plan or machine does.

Each names what it is about and the term by which it may miss: the padding. No law knows a number
of the program's; all compare two of its answers.
"""

import random
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import msgspec

from brimful.cost.estimate import estimate
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.hardware.gpus import load_cluster
from brimful.models.config import layout_of, read_config
from brimful.models.layout import all_parameters
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.techniques.runnable import check_strategy, placed
from brimful.values.job import Adapter, Job, check_job, plain_job
from brimful.values.plan import Estimate
from brimful.values.results import Simulation
from brimful.values.strategy import Strategy

ROUND_BYTES = 512
"""The caching allocator's grain (c10/cuda/CUDACachingAllocator.cpp, ``kMinBlockSize``)."""


FORMULA_SHARE = 0.005
"""Between the first rung and the second, of the peak; the evidence's worst is 0.24 %."""
ROUNDING = 1e-12
"""Of sums of a few hundred doubles, whose order depends on their sizes."""


class Law(msgspec.Struct, frozen=True, kw_only=True):
    """What must hold between two predictions.

    Attributes:
        name: The relation, in words.
        quantity: What of a prediction it is about.
        padding: The term by which it may miss, and where that comes from; ``none``: exact.
        check: Draws one case and yields what does not hold; raises ``InputError`` or
            ``UnsupportedError`` where the case has no prediction.
    """

    name: str
    quantity: str
    padding: str
    check: Callable[[random.Random], Iterator[str]]


class Case(NamedTuple):
    """What is predicted."""

    job: Job
    cluster: Cluster
    strategy: Strategy


def draw(rng: random.Random, *, num_devices: int = 1, **fields: Any) -> Case:
    """Draw a small decoder with a plan; ``fields`` are of the job."""
    heads = rng.choice((4, 8))
    config = {
        "model_type": rng.choice(("llama", "qwen2", "mistral")),
        "hidden_size": 64 * rng.randint(2, 10),
        "intermediate_size": 32 * rng.randint(4, 40),
        "num_hidden_layers": rng.randint(3, 12),
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice((heads, heads // 2)),
        "vocab_size": rng.randint(500, 40_000),
        "max_position_embeddings": 8192,
        "tie_word_embeddings": rng.random() < 0.5,  # noqa: PLR2004 - a coin
    }
    job = plain_job(
        read_config("drawn", config),
        precision=rng.choice(("fp32", "bf16", "bf16-mixed", "bf16-master")),
        seq_len=rng.choice((64, 128, 512, 1000)),
        global_batch=64,
    )
    strategy = Strategy(
        micro_batch=rng.choice((1, 2, 4)),
        activation_checkpointing="none",
        loss_chunks=rng.choice((1, 2)),
        attention="sdpa",
        zero=3 if num_devices > 1 else 0,
        dp_shard=num_devices,
    )
    job = msgspec.structs.replace(job, **fields)
    return Case(job, gpus("h100-80gb", num_devices), strategy)


def gpus(name: str, num_devices: int) -> Cluster:
    """Return that many GPUs of one node."""
    text = name if num_devices == 1 else f"{num_devices}x{name}"
    return load_cluster(text, memory_limit_bytes=None)


def predicted(case: Case) -> Estimate:
    """Check a case as the command line does, and predict it."""
    check_strategy(check_job(case.job), case.strategy)
    return estimate(case.job, case.cluster, placed(case.strategy, case.cluster.num_devices))


def with_job(case: Case, **changes: Any) -> Case:
    """Return the case with another job."""
    return case._replace(job=msgspec.structs.replace(case.job, **changes))


def with_model(case: Case, **changes: Any) -> Case:
    """Return the case with another model of the same type."""
    model = case.job.model
    config = {"model_type": model.model_type, **model.hf_config, **changes}
    return with_job(case, model=read_config(model.name, config))


def with_strategy(case: Case, **changes: Any) -> Case:
    """Return the case with another plan."""
    return case._replace(strategy=msgspec.structs.replace(case.strategy, **changes))


def of_items(said: Estimate, *names: str) -> int:
    """Add up items of the peak."""
    return sum(item.num_bytes for item in said.items if item.name in names)


def _at_most(low: float, high: float, what: str) -> Iterator[str]:
    if low > high:
        yield f"{what}: {low} is more than {high}"


def more_micro_batch(rng: random.Random) -> Iterator[str]:
    """Compare a micro-batch with twice as many."""
    case = draw(rng)
    twice = with_strategy(case, micro_batch=2 * case.strategy.micro_batch)
    yield from _at_most(peak(case), peak(twice), "peak")


def longer(rng: random.Random) -> Iterator[str]:
    """Compare a sequence with one of twice as many tokens."""
    case = draw(rng)
    yield from _at_most(peak(case), peak(with_job(case, seq_len=2 * case.job.seq_len)), "peak")


def deeper(rng: random.Random) -> Iterator[str]:
    """Compare a model with one of one block more."""
    case = draw(rng)
    more = with_model(case, num_hidden_layers=case.job.model.num_layers + 1)
    yield from _at_most(peak(case), peak(more), "peak")


def wider(rng: random.Random) -> Iterator[str]:
    """Compare a model with one whose MLP is wider."""
    case = draw(rng)
    more = with_model(case, intermediate_size=case.job.model.intermediate_size + 64)
    yield from _at_most(peak(case), peak(more), "peak")


def checkpointed(rng: random.Random) -> Iterator[str]:
    """Compare recomputing every block with recomputing none."""
    case = draw(rng)
    full = with_strategy(case, activation_checkpointing="full")
    saved = (of_items(predicted(each), "saved activations") for each in (full, case))
    yield from _at_most(*saved, "saved activations")


def more_checkpointed(rng: random.Random) -> Iterator[str]:
    """Compare recomputing k blocks with recomputing one more."""
    case = draw(rng)
    k = rng.randrange(1, case.job.model.num_layers)
    less, more = (with_strategy(case, activation_checkpointing=f"full:{n}") for n in (k, k + 1))
    grain = ROUND_BYTES * 64
    recomputed = peak(with_strategy(case, activation_checkpointing=f"full:{k + 1}")) - grain
    yield from _at_most(recomputed, peak(less), "peak")
    yield from _at_most(seconds(less), seconds(more), "seconds")


def renamed(rng: random.Random) -> Iterator[str]:
    """Compare a model with the same under another name, and another seed."""
    case = draw(rng)
    model = msgspec.structs.replace(case.job.model, name="another")
    if predicted(with_job(case, model=model, seed=case.job.seed + 1)) != predicted(case):
        yield "a name or a seed changed the prediction"


def more_devices(rng: random.Random) -> Iterator[str]:
    """Compare ZeRO-3 on n devices with it on twice as many."""
    num = rng.choice((2, 4))
    case = draw(rng, num_devices=num)
    more = case._replace(cluster=gpus("h100-80gb", 2 * num))
    more = with_strategy(more, dp_shard=2 * num)
    few, many = _resident(case), _resident(more)
    yield from _at_most(many, few, "what rests")
    yield from _at_most(few, 2 * many, "what rests, against twice that of twice the devices")


def _resident(case: Case) -> int:
    """Return what is held between steps: the peak of loading is parameters alone."""
    return next(phase.num_bytes for phase in predicted(case).phases if phase.phase == "resume")


def faster(rng: random.Random) -> Iterator[str]:
    """Compare a GPU with one that multiplies and reads twice as fast."""
    case = draw(rng)
    device = case.cluster.device
    rates = device.matrix_flops_per_s
    quick = msgspec.structs.replace(
        device,
        matrix_flops_per_s=msgspec.structs.replace(rates, fp32=2 * rates.fp32, bf16=2 * rates.bf16),
        memory_bytes_per_s=2 * device.memory_bytes_per_s,
    )
    better = case._replace(cluster=msgspec.structs.replace(case.cluster, device=quick))
    yield from _at_most(seconds(better) * (1 - ROUNDING), seconds(case), "seconds")
    if peak(better) != peak(case):
        yield "the speed of a GPU changed the peak"


def more_memory(rng: random.Random) -> Iterator[str]:
    """Compare the best plan under a limit with the best under a higher one."""
    case = draw(rng, precision="bf16-mixed")
    low = rng.randint(2, 12) * 2**30
    plans = []
    for limit in (low, low + rng.randint(1, 8) * 2**30):
        cluster = load_cluster("h100-80gb", memory_limit_bytes=limit)
        plans.append(solve(case.job, cluster, Pins(), attention="sdpa", objective="time").plan)
    less, more = (plan.estimate for plan in plans)
    assert less is not None
    assert more is not None
    if less.fits:
        if not more.fits:
            yield "what fits in less does not fit in more"
        assert less.predicted_step_s is not None
        assert more.predicted_step_s is not None
        yield from _at_most(more.predicted_step_s, less.predicted_step_s, "seconds")
    for plan in plans:
        if estimate(plan.job, plan.cluster, plan.strategy) != plan.estimate:
            yield "the search says something else of its winner than estimate does"


def gathered(rng: random.Random) -> Iterator[str]:
    """Compare what ZeRO-3 gathers on 2 devices with what it gathers on 8."""
    few = draw(rng, num_devices=2)
    many = with_strategy(few._replace(cluster=gpus("h100-80gb", 8)), dp_shard=8)
    low, high = (_named(each, "gathered parameters") for each in (few, many))
    each = 4 * (_padding_numbers(few, 8) + _padding_numbers(few, 2))
    padding = 2 * each  # of the buffer of a message and of what is copied out of it
    yield from _at_most(abs(high - low), padding, "gathered parameters, apart")


def shards(rng: random.Random) -> Iterator[str]:
    """Compare parameters on one device with the shards of n."""
    num = rng.choice((2, 3, 8))
    one = draw(rng)
    many = with_strategy(one._replace(cluster=gpus("h100-80gb", num)), zero=3, dp_shard=num)
    whole, shard = _named(one, "parameters"), _named(many, "parameters")
    numbers = sum(prod(shape) for shape in _shapes(one))
    padded = whole * (1 + _padding_numbers(one, num) / numbers)
    if abs(num * shard - padded) > ROUNDING * padded:
        yield f"{num} shards take {num * shard} bytes, the whole and its padding {padded}"


def _named(case: Case, name: str) -> int:
    return of_items(predicted(case), name)


def _shapes(case: Case) -> list[tuple[int, ...]]:
    return [parameter.shape for parameter in all_parameters(layout_of(case.job.model))]


def _padding_numbers(case: Case, num_devices: int) -> int:
    """Count what ``ceil`` adds: rows of every tensor whose first dimension does not divide."""
    return sum(-first % num_devices * prod(rest) for first, *rest in _shapes(case))


def linear_saved(rng: random.Random) -> Iterator[str]:
    """Compare what 1, 2 and 4 sequences keep for their backward pass."""
    case = with_strategy(draw(rng), loss_chunks=1)
    said = [predicted(with_strategy(case, micro_batch=n)) for n in (1, 2, 4)]
    beside = [of_items(each, "logits and loss", "transients") for each in said]
    if len(_peaks(said)) > 1 or not _is_line(*beside):
        return  # the peak moves from one moment of a step to another
    saved = [of_items(each, "saved activations") for each in said]
    if not _is_line(*saved):
        yield f"saved activations of 1, 2, 4 sequences: {saved}"


def _is_line(one: int, two: int, four: int) -> bool:
    return four - two == 2 * (two - one)


def _peaks(said: list[Estimate]) -> set[str]:
    """Return where predictions peak."""
    return {max(each.phases, key=lambda phase: phase.num_bytes).where for each in said}


def adapter_state(rng: random.Random) -> Iterator[str]:
    """Compare the state of adapters of ranks r, 2 r and 4 r."""
    rank = rng.choice((2, 4, 8))
    case = draw(rng)
    one, two, four = (
        _named(with_job(case, method="lora", adapter=_adapter(n * rank)), "optimizer state")
        for n in (1, 2, 4)
    )
    if four - two != 2 * (two - one):
        yield f"optimizer state of ranks r, 2 r, 4 r: {one}, {two}, {four}"


def _adapter(rank: int) -> Adapter:
    return Adapter(
        rank=rank, alpha=2.0 * rank, targets=("all-linear",), trained_modules=(), dtype="same",
        base="same", upcast="none", input_requires_grad=False,
    )  # fmt: skip


def chunked_loss(rng: random.Random) -> Iterator[str]:
    """Compare a loss in chunks with one in twice as many."""
    case = with_strategy(draw(rng), loss_chunks=rng.choice((2, 4, 8)))
    more = with_strategy(case, loss_chunks=2 * case.strategy.loss_chunks)
    tokens = case.strategy.micro_batch * case.job.seq_len
    hidden = 4 * tokens * case.job.model.hidden_size
    yield from _at_most(peak(more), peak(case) + hidden, "peak")


def simulated(case: Case) -> Simulation:
    """Run a case on the pretend GPU."""
    from brimful.simulate.run import simulate

    check_strategy(check_job(case.job), case.strategy)
    return simulate(case.job, case.cluster, case.strategy)


def _small(rng: random.Random, **fields: Any) -> Case:
    """Draw a case of a step with one micro-batch."""
    case = draw(rng, **fields)
    return with_job(case, global_batch=case.strategy.micro_batch)


def simulated_micro_batch(rng: random.Random) -> Iterator[str]:
    """Compare a simulated micro-batch with twice as many."""
    case = _small(rng)
    size = 2 * case.strategy.micro_batch
    more = with_strategy(with_job(case, global_batch=size), micro_batch=size)
    low, high = (simulated(each).simulated_peak_allocated_bytes for each in (case, more))
    yield from _at_most(low, high, "simulated peak")


def simulated_as_predicted(rng: random.Random) -> Iterator[str]:
    """Compare the first rung with the second."""
    case = _small(rng)
    said, found = peak(case), simulated(case).simulated_peak_allocated_bytes
    yield from _at_most(abs(said - found), FORMULA_SHARE * found, "predicted, against simulated")


def simulated_early(rng: random.Random) -> Iterator[str]:
    """Compare an update behind the backward pass with one inside it."""
    case = _small(rng, clip=0.0)
    late = with_strategy(case, activation_checkpointing="full")
    early = with_strategy(late, optimizer_in_backward=True)
    low, high = (simulated(each).simulated_peak_allocated_bytes for each in (early, late))
    yield from _at_most(low, high, "simulated peak of an early update")


def simulated_away(rng: random.Random) -> Iterator[str]:
    """Compare blocks on the host with one block more there, updated inside the backward pass."""
    case = _small(rng, clip=0.0, precision="bf16")
    early = with_strategy(case, activation_checkpointing="full", optimizer_in_backward=True)
    num = rng.randrange(3, early.job.model.num_layers + 1)
    less, more = (
        simulated(with_strategy(early, offload=f"parameters:{n}")) for n in (num - 1, num)
    )
    low, high = (each.simulated_peak_allocated_bytes for each in (more, less))
    yield from _at_most(low, high, "simulated peak with one block more on the host")
    gained = more.simulated_peak_host_bytes - less.simulated_peak_host_bytes
    if gained * (num - 1) != less.simulated_peak_host_bytes:
        yield f"{num - 1} blocks take {less.simulated_peak_host_bytes} of the host, one {gained}"


def peak(case: Case) -> int:
    """Predict the peak."""
    return predicted(case).predicted_peak_allocated_bytes


def seconds(case: Case) -> float:
    """Predict a step's seconds."""
    said = predicted(case).predicted_step_s
    assert said is not None, "the rates of this GPU are known"
    return said


GRAIN = "512 B a tensor: the allocator's grain"
HIDDEN = "a hidden state of the micro-batch: the first chunk is highest, or the last"
ROWS = "the rows by which every first dimension is rounded up to the devices"
LAWS = (
    Law(name="twice the micro-batch never takes less", quantity="peak", padding="none",
        check=more_micro_batch),
    Law(name="twice the tokens of a sequence never take less", quantity="peak", padding="none",
        check=longer),
    Law(name="one block more never takes less", quantity="peak", padding="none", check=deeper),
    Law(name="a wider MLP never takes less", quantity="peak", padding="none", check=wider),
    Law(name="full checkpointing never saves more bytes than none", quantity="saved",
        padding="none", check=checkpointed),
    Law(name="one block more recomputed takes no more bytes and no fewer seconds",
        quantity="peak, time", padding=GRAIN, check=more_checkpointed),
    Law(name="names and seeds change nothing", quantity="all", padding="none", check=renamed),
    Law(name="twice the devices under ZeRO-3 hold at most as much each, at least half",
        quantity="shard", padding="first dimensions are split by ceil: a half or more, never less",
        check=more_devices),
    Law(name="twice the rates take no longer and the same bytes", quantity="time, peak",
        padding="1e-12 of the time: rounding of sums", check=faster),
    Law(name="what ZeRO-3 gathers does not depend on the number of devices", quantity="gathered",
        padding=ROWS, check=gathered),
    Law(name="n shards are the whole and its padding", quantity="shard", padding=ROWS,
        check=shards),
    Law(name="saved activations are linear in the micro-batch, the loss whole", quantity="saved",
        padding="none, while the peak stays at one moment: what is alive beside is linear too",
        check=linear_saved),
    Law(name="optimizer state of adapters is linear in their rank", quantity="optimizer state",
        padding="none", check=adapter_state),
    Law(name="a loss in twice as many chunks takes no more", quantity="peak", padding=HIDDEN,
        check=chunked_loss),
    Law(name="more memory never makes the best plan slower, and estimate says the same of it",
        quantity="time", padding="none", check=more_memory),
    Law(name="simulated: twice the micro-batch never takes less", quantity="peak", padding="none",
        check=simulated_micro_batch),
    Law(name="predicted is simulated", quantity="peak",
        padding=f"{FORMULA_SHARE:.1%}: profiles are traced at other sizes",
        check=simulated_as_predicted),
    Law(name="simulated: an update inside the backward pass never takes more",
        quantity="peak", padding="none", check=simulated_early),
    Law(name="simulated: one block more on the host takes no more of the device, its bytes there",
        quantity="peak, host", padding="none", check=simulated_away),
)  # fmt: skip
ON_THE_PRETEND_GPU = frozenset(
    {simulated_micro_batch, simulated_as_predicted, simulated_early, simulated_away}
)
"""Checks of laws that need torch, and a second or two for each draw."""


def broken(law: Law, *, num: int, seed: int) -> tuple[int, list[str]]:
    """Draw cases of a law; return how many had a prediction, and what did not hold."""
    rng, found, held = random.Random(seed), [], 0  # noqa: S311 - draws, no secrets
    for number in range(num):
        try:
            found += [f"draw {number}: {fault}" for fault in law.check(rng)]
        except (InputError, UnsupportedError):
            continue
        held += 1
    return held, found
