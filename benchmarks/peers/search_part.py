"""The search beside trying everything: the same winner, and what each costs."""

import math
import random
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from exhaustive import Tried, best_of, every
from peer_rows import SearchRow
from progress import shown

from brimful.cost.estimate import allocatable_bytes
from brimful.hardware.cluster import Cluster
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model, read_config
from brimful.search.pins import Pins
from brimful.search.solve import Solution, solve
from brimful.values.job import Job, plain_job

NUM_DRAWN, NUM_QUICK = 4, 2
NUM_RUNS = 1
SMALL = {
    "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


class Space(NamedTuple):
    """A job on devices.

    Attributes:
        name: In words.
        job: What is trained.
        cluster: On what.
        is_tried: Whether every strategy is tried by itself, too.
        share: Where among the peaks the limit lies, 0 to 1; None: the GPU's own.
    """

    name: str
    job: Job
    cluster: Cluster
    is_tried: bool = False
    share: float | None = None


def run(*, quick: bool) -> tuple[list[SearchRow], tuple[str, ...], list[str]]:
    """Search every space; returns rows and no more."""
    drawn = [_drawn(number) for number in range(NUM_QUICK if quick else NUM_DRAWN)]
    spaces = drawn if quick else [*drawn, *_real(), *_large()]
    return [compare(space) for space in shown("searches", spaces)], (), []


def _drawn(number: int) -> Space:
    """Draw a small model on one to eight devices, and a limit that some strategies are within."""
    rng = random.Random(number)  # noqa: S311 - cases, not secrets
    fields = {
        "model_type": "llama", **SMALL, "num_hidden_layers": rng.randint(2, 3),
        "vocab_size": rng.choice((97, 2048, 32000)),
    }  # fmt: skip
    num_devices = rng.choice((1, 2))
    precision = rng.choice(("bf16", "bf16-mixed", "fp32"))
    job = plain_job(
        read_config("drawn", fields),
        precision=precision,
        seq_len=rng.choice((24, 64, 128)),
        global_batch=num_devices * rng.choice((1, 2)),
    )
    name = f"drawn {number}: {precision}, {job.model.num_layers} blocks"
    cluster = _cluster(f"{num_devices}xh100-80gb")
    return Space(name, job, cluster, is_tried=True, share=rng.random())


def _cluster(name: str) -> Cluster:
    return load_cluster(name, memory_limit_bytes=None)


def _job(model: str, seq_len: int, global_batch: int) -> Job:
    return plain_job(
        load_model(model), precision="bf16-mixed", seq_len=seq_len, global_batch=global_batch
    )


def _real() -> Iterator[Space]:
    """Yield real models, with every strategy tried."""
    spaces = (
        ("Llama 3.2 1B", _job("llama-3.2-1b", 4096, 2), "1xa100-40gb"),
        ("Llama 3.1 8B, one GPU", _job("llama-3.1-8b", 4096, 4), "1xh200"),
        ("Llama 3.1 8B, two GPUs", _job("llama-3.1-8b", 8192, 8), "2xh200"),
    )
    for name, job, cluster in spaces:
        yield Space(name, job, _cluster(cluster), is_tried=True)


def _large() -> Iterator[Space]:
    yield Space("Llama 3.1 8B, 8 nodes", _job("llama-3.1-8b", 8192, 256), _cluster("8x8xh100-80gb"))
    yield Space("Llama 3.1 70B", _job("llama-3.1-70b", 8192, 512), _cluster("32x8xh100-80gb"))
    yield Space("Llama 3.1 405B", _job("llama-3.1-405b", 8192, 1024), _cluster("128x8xh100-80gb"))


def compare(space: Space) -> SearchRow:
    """Search a space, and try it out where that is asked for."""
    if not space.is_tried:
        found, search_s = _searched(space)
        return _row(space, found, search_s)
    start_s = time.perf_counter()
    rows = every(space.job, space.cluster)
    exhaustive_s = time.perf_counter() - start_s
    limited = _limited(space, rows)
    found, search_s = _searched(limited)
    best = best_of(rows, allocatable_bytes(limited.cluster.device))
    return msgspec.structs.replace(
        _row(space, found, search_s),
        num_tried=len(rows),
        exhaustive_s=round(exhaustive_s, 3),
        same_winner=_is_same(found, best, rows, allocatable_bytes(limited.cluster.device)),
        same_count=found.record.num_considered == len(rows),
    )


def _limited(space: Space, rows: list[Tried]) -> Space:
    """Give devices as much memory as some of the strategies need."""
    if space.share is None:
        return space
    peaks = [row.peak_bytes for row in rows]
    limit = int(0.9 * min(peaks) + space.share * (max(peaks) - 0.9 * min(peaks)))
    device = space.cluster.device
    spare = device.usable_bytes - allocatable_bytes(device)
    device = msgspec.structs.replace(device, usable_bytes=limit + spare)
    return space._replace(cluster=msgspec.structs.replace(space.cluster, device=device))


def _searched(space: Space) -> tuple[Solution, float]:
    times = []
    for _ in range(NUM_RUNS):
        start_s = time.perf_counter()
        found = solve(space.job, space.cluster, Pins(pp=1), attention="sdpa", objective="time")
        times.append(time.perf_counter() - start_s)
    return found, min(times)


def _is_same(found: Solution, best: Tried, rows: list[Tried], limit_bytes: int) -> bool:
    """Whether both winners have one peak and one time; any of that peak where none fits."""
    made = found.plan.estimate
    if made.predicted_peak_allocated_bytes != best.peak_bytes:
        return False
    fits = best.peak_bytes <= limit_bytes
    alike = [best.step_s] if fits else [r.step_s for r in rows if r.peak_bytes == best.peak_bytes]
    assert made.predicted_step_s is not None
    return any(math.isclose(made.predicted_step_s, each, rel_tol=1e-6) for each in alike)


def _row(space: Space, found: Solution, search_s: float) -> SearchRow:
    return SearchRow(
        space=space.name,
        num_devices=space.cluster.num_devices,
        num_costed=found.record.num_considered,
        search_s=round(search_s, 4),
    )
