"""Laws of messages, seconds and money; all of them together with the others (``laws``)."""

import random
from collections.abc import Iterator

from laws import (
    LAWS,
    ON_THE_PRETEND_GPU,
    ROUNDING,
    Case,
    Law,
    draw,
    gpus,
    predicted,
    seconds,
    simulated,
    with_job,
    with_model,
    with_strategy,
)

from brimful.cost.comm import Collective, collective_seconds
from brimful.cost.money import Cost, Price, Prices, cost_of
from brimful.hardware.gpus import load_cluster

_KINDS: tuple[Collective, ...] = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


def utilization(rng: random.Random) -> Iterator[str]:
    """Look at a plan's MFU and HFU."""
    case = draw(rng, num_devices=rng.choice((1, 2, 8)))
    said = predicted(with_strategy(case, activation_checkpointing=rng.choice(("none", "full"))))
    assert said.mfu is not None
    assert said.hfu is not None
    if not 0 < said.mfu <= said.hfu * (1 + ROUNDING) <= 1 + ROUNDING:
        yield f"MFU {said.mfu} and HFU {said.hfu}"


def larger_messages(rng: random.Random) -> Iterator[str]:
    """Compare a message with one of twice the bytes."""
    cluster = load_cluster(f"{rng.choice((1, 4, 16))}x8xh100-80gb", memory_limit_bytes=None)
    kind, num_bytes = rng.choice(_KINDS), 10.0 ** rng.uniform(3, 10)
    ranks = 2 ** rng.randint(1, 3 + (cluster.num_devices > 8) * 2)  # noqa: PLR2004 - a node
    one, two = (float(collective_seconds(kind, n * num_bytes, ranks, cluster)) for n in (1.0, 2.0))
    if not one * (1 - ROUNDING) <= two <= 2 * one * (1 + ROUNDING):
        yield f"{kind} of {num_bytes:.0f} bytes takes {one} s and twice that {two} s"


def reduced(rng: random.Random) -> Iterator[str]:
    """Compare an all-reduce with a reduce-scatter and an all-gather of the same bytes."""
    cluster = load_cluster(f"{rng.choice((1, 2, 8))}x8xh100-80gb", memory_limit_bytes=None)
    num_bytes, ranks = 10.0 ** rng.uniform(3, 10), rng.choice((2, 4, 8))
    whole, *parts = (
        float(collective_seconds(kind, num_bytes, ranks, cluster)) for kind in _KINDS[:3]
    )
    if whole > sum(parts) * (1 + ROUNDING):
        yield f"an all-reduce takes {whole} s, its two parts {sum(parts)} s"


def linear_messages(rng: random.Random) -> Iterator[str]:
    """Compare what 3, 4 and 5 blocks gather and reduce in a step under ZeRO."""
    case = draw(rng, num_devices=rng.choice((2, 4)))
    case = with_strategy(case, zero=rng.choice((2, 3)))
    case = with_job(case, global_batch=case.strategy.micro_batch * case.strategy.dp_shard)
    told = [_bytes_told(with_model(case, num_hidden_layers=3 + more)) for more in range(3)]
    for kind in told[0]:
        few, some, many = (each[kind] for each in told)
        if many - some != some - few:
            yield f"{kind} of 3, 4, 5 blocks: {few}, {some}, {many} bytes"


def tensor_messages(rng: random.Random) -> Iterator[str]:
    """Compare what tensor parallelism sends for 128, 256 and 512 tokens."""
    case = with_strategy(draw(rng, num_devices=2), zero=0, dp_shard=1, tp=2)
    case = with_job(case, global_batch=case.strategy.micro_batch)
    told = [_bytes_told(with_job(case, seq_len=n)) for n in (128, 256, 512)]
    for kind in told[0]:
        few, some, many = (each[kind] for each in told)
        if many - some != 2 * (some - few):
            yield f"{kind} of 128, 256, 512 tokens: {few}, {some}, {many} bytes"


def _bytes_told(case: Case) -> dict[str, int]:
    """Return the bytes of a step's messages, by kind; second rung."""
    return {each.kind: each.num_bytes for each in simulated(case).collectives}


def money(rng: random.Random) -> Iterator[str]:
    """Compare a run with one of twice the steps, and with one at twice the price."""
    case = draw(rng, num_devices=rng.choice((1, 2, 8)))
    usd = rng.uniform(0.2, 12)
    once, long = _cost(case, usd), _cost(with_job(case, num_steps=2 * case.job.num_steps), usd)
    dear = _cost(case, 2 * usd)
    for what, told, wanted in (
        ("twice the steps, hours", long.hours, 2 * _number(once.hours)),
        ("twice the steps, dollars", long.usd, 2 * _number(once.usd)),
        ("twice the price, dollars", dear.usd, 2 * _number(once.usd)),
        ("GPU-hours", once.gpu_hours, case.cluster.num_devices * _number(once.hours)),
        ("hours", once.hours, case.job.num_steps * seconds(case) / 3600),
    ):
        if abs(_number(told) - wanted) > 1e-9 * wanted:
            yield f"{what}: {told}, not {wanted}"


def _cost(case: Case, usd: float) -> Cost:
    price = Price(usd_per_gpu_hour=usd, date="2026-01-01", source="drawn")
    prices = Prices(date="2026-01-01", gpus={case.cluster.device.name: price})
    return cost_of(case.job, case.cluster, seconds(case), prices)


def _number(value: float | None) -> float:
    assert value is not None
    return value


def more_gpus(rng: random.Random) -> Iterator[str]:
    """Compare n replicas with twice as many that have as much to do each."""
    num = rng.choice((1, 2, 4))
    few = with_strategy(draw(rng)._replace(cluster=gpus("h100-80gb", num)), dp_replicate=num)
    many = with_strategy(few._replace(cluster=gpus("h100-80gb", 2 * num)), dp_replicate=2 * num)
    many = with_job(many, global_batch=2 * few.job.global_batch)
    alone, beside = seconds(few), seconds(many)
    if beside < alone * (1 - ROUNDING):
        yield f"{num} GPUs take {alone} s, twice as many with twice the batch {beside} s"


COST_LAWS = (
    Law(name="MFU is above 0, at most HFU, and that at most 1", quantity="MFU, HFU",
        padding="1e-12: rounding of sums", check=utilization),
    Law(name="a message of twice the bytes takes as long or longer, at most twice as long",
        quantity="seconds of collectives", padding="1e-12: rounding of sums",
        check=larger_messages),
    Law(name="an all-reduce takes no longer than its reduce-scatter and all-gather",
        quantity="seconds of collectives", padding="1e-12: rounding of sums", check=reduced),
    Law(name="simulated: what ZeRO gathers and reduces is linear in the blocks",
        quantity="bytes of collectives", padding="none", check=linear_messages),
    Law(name="simulated: what tensor parallelism sends is linear in the tokens",
        quantity="bytes of collectives", padding="none", check=tensor_messages),
    Law(name="hours, GPU-hours and dollars are steps x seconds x devices x price",
        quantity="cost", padding="1e-9: rounding", check=money),
    Law(name="twice the replicas with twice the batch are no faster", quantity="time",
        padding="1e-12: rounding of sums", check=more_gpus),
)  # fmt: skip
ALL_LAWS = LAWS + COST_LAWS
SIMULATED = ON_THE_PRETEND_GPU | {linear_messages, tensor_messages}
"""Checks that need torch, and a second or two for each draw."""
