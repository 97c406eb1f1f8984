"""Laws of the first rung: how a prediction must change when the job, plan or machine does.

Each names what it is about and the term by which it may miss: the padding. No law knows a number
of the program's; all compare two of its answers.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from brimful.cost.estimate import estimate
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.hardware.gpus import load_cluster
from brimful.job import Job, check_job, plain_job
from brimful.models.config import read_config
from brimful.plan import Estimate
from brimful.search.solve import solve
from brimful.search.space import Pins
from brimful.strategy import Strategy, check_strategy, placed

ROUND_BYTES = 512
"""The caching allocator's grain (c10/cuda/CUDACachingAllocator.cpp, ``kMinBlockSize``)."""


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


def peak(case: Case) -> int:
    """Predict the peak."""
    return predicted(case).predicted_peak_allocated_bytes


def seconds(case: Case) -> float:
    """Predict a step's seconds."""
    said = predicted(case).predicted_step_s
    assert said is not None, "the rates of this GPU are known"
    return said


GRAIN = "512 B a tensor: the allocator's grain"
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
    Law(name="more memory never makes the best plan slower, and estimate says the same of it",
        quantity="time", padding="none", check=more_memory),
)  # fmt: skip


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
