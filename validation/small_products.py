"""Products of ``products_draws``, drawn so small that 2 or 4 processes train them here and now.

What those draws leave out is drawn on top of them: DoRA, QAT, bases of several kinds of few bits,
FSDP1, dropout, modules in fp32, samples that are not packed. What is compiled is not (blocks,
optimizers of 4 bits and fp8), nor are fused kernels: that takes minutes, and has tests of its own.
A product whose techniques all stand in one case that is run anyway is drawn again.
"""

import random
from collections.abc import Collection, Iterable
from itertools import zip_longest
from typing import Any

from cases import Case
from msgspec.structs import replace
from products_draws import LEAST_TECHNIQUES, Shapes, check_run, draw, techniques
from sampler import Range

from brimful.build.assemble import build_skeleton
from brimful.errors import InputError, UnsupportedError
from brimful.techniques.dropout import drops
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.techniques.quantization import Quantization, default_group
from brimful.techniques.runnable import check_strategy
from brimful.values.job import NARROW, Base, Job, check_job
from brimful.values.strategy import Strategy, gathers, world_size

TINY = Shapes(
    head_dim=16,
    num_heads=Range(4, 4),
    num_layers=Range(3, 6),
    many_layers=Range(8, 9),
    vocab=Range(96, 160),
    seq_len=Range(32, 32),
    window=7,
    micro_batch=Range(1, 2),
    num_experts=(4, 8),
    rank=Range(2, 8),
    shards=Range(2, 4),
    few=(1, 2),
    replicas=(1, 2),
    kernels="cpu",
)
"""Of which a step is compared with the plain loop's."""
SMALL = TINY._replace(
    head_dim=32,
    num_layers=Range(4, 6),
    vocab=Range(1024, 3072),
    seq_len=Range(128, 128),
    window=64,
    rank=Range(4, 32),
)
"""Of which peaks are compared: what no tape sees is little beside their tensors."""
SIZES = (2, 4)
DRAWS = 60
"""For each product, of which one of every layout is taken in turn: what is refused least would be
there most."""
Layout = tuple[int, ...]
LEARNING_RATE = 1e-3
_SEED = 5
"""Of weights and data."""
_SOME = 0.3
_BASES: tuple[Base, ...] = ("nf4", "nf4-double", "int8", "llm-int8")
_KEPT = ("norm", "down_proj", "o_proj", "layers.1")


def drawn(
    seed: int,
    num: int,
    shapes: Shapes,
    *,
    beside: Iterable[Case] = (),
    sizes: Collection[int] = SIZES,
) -> list[Case]:
    """Draw so many products for each number of processes.

    Args:
        seed: Of the draw.
        num: Products for each of ``sizes``.
        shapes: How small.
        beside: Cases that are run anyway.
        sizes: Numbers of processes.
    """
    rng = random.Random(seed)  # noqa: S311 - cases, not secrets
    known = [set(words_of(case)) for case in beside]
    pools: dict[int, dict[Layout, list[Case]]] = {size: {} for size in sizes}
    for _ in range(DRAWS * num):
        try:
            case = _more(rng, draw(rng, shapes))
        except (InputError, UnsupportedError):
            continue
        words, pool = set(words_of(case)), pools.get(world_size(case.strategy))
        if pool is None or len(words) < LEAST_TECHNIQUES or any(map(words.issubset, known)):
            continue
        pool.setdefault(_layout(case.strategy), []).append(case)
    return [case for pool in pools.values() for case in _from_each(rng, pool)[:num]]


def _from_each(rng: random.Random, pool: dict[Layout, list[Case]]) -> list[Case]:
    """Take one case of every layout in turn, in an order that is drawn too."""
    layouts = rng.sample(sorted(pool), len(pool))
    turns = zip_longest(*(pool[layout] for layout in layouts))
    return [case for turn in turns for case in turn if case is not None]


def _layout(strategy: Strategy) -> Layout:
    """Name along which axes of so many processes a run is laid out."""
    degrees = (strategy.dp_replicate, strategy.dp_shard, strategy.tp, strategy.pp, strategy.ep)
    return (strategy.zero, *(degree > 1 for degree in degrees))


def words_of(case: Case) -> list[str]:
    """Name the techniques of a case, those too that ``products_draws`` does not draw."""
    job, strategy, adapter = case.job, case.strategy, case.job.adapter
    has = {
        f"base={adapter.base if adapter else ''}": adapter is not None and adapter.base != "same",
        "fsdp=1": strategy.fsdp == 1,
        "dropout": drops(job),
        f"keep_fp32={','.join(job.keep_fp32)}": bool(job.keep_fp32),
    }
    return [*techniques(case), *(name for name, is_there in has.items() if is_there)]


def describe(case: Case) -> str:
    """Name a product in a line."""
    return (
        f"{case.job.model.model_type} on {world_size(case.strategy)}: {', '.join(words_of(case))}"
    )


def _more(rng: random.Random, case: Case) -> Case:
    """Draw what the large products leave out; raises what refuses it."""
    if OPTIMIZERS[case.job.optimizer].compiled:
        raise UnsupportedError(f"{case.job.optimizer} is compiled")
    job, strategy = _job(rng, case.job), case.strategy
    if gathers(strategy) and rng.random() < _SOME:
        strategy = replace(strategy, fsdp=1)
    more = Case(job=check_job(job), strategy=check_strategy(job, strategy), kernels=case.kernels)
    check_run(more)
    if job.keep_fp32:  # whether the model has such a module its modules tell
        build_skeleton(more.job, more.strategy)
    return more


def _job(rng: random.Random, job: Job) -> Job:
    changes: dict[str, Any] = {"seed": _SEED, "learning_rate": LEARNING_RATE}
    is_chosen = rng.random() < _SOME
    if job.method == "lora" and is_chosen:
        changes["method"] = "dora"
    elif job.method == "full" and is_chosen:
        scheme = rng.choice(("int8", "int4"))
        quantization = Quantization(scheme=scheme, group_size=default_group(scheme))
        changes |= {"method": "qat", "quantization": quantization}
    elif job.method == "qlora":
        changes["adapter"] = replace(job.adapter, base=rng.choice(_BASES))
    if job.packing == "wrapped" and job.task == "causal-lm" and rng.random() < 2 * _SOME:
        changes["packing"] = "none"
    if rng.random() < _SOME:
        changes["dropout"] = "model"
    is_narrow = job.precision in NARROW or job.precision.endswith(("-mixed", "-master"))
    if is_narrow and rng.random() < _SOME:
        changes["keep_fp32"] = (rng.choice(_KEPT),)
    return replace(job, **changes)
