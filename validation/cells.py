"""Cells: one value of every factor. Which go together, which pairs there are, a cover of them.

Knows what has a formula and what this version runs; knows nothing of sizes.
"""

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from brimful.cost.profiles import is_shipped
from brimful.cost.programs import HALF, TRACED_AS, Program, Tuning
from brimful.errors import InputError, UnsupportedError
from brimful.models.architectures import ARCHITECTURES
from brimful.models.config import read_config
from brimful.models.spec import ModelSpec
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.techniques.runnable import check_strategy
from brimful.values.job import SCALED, Adapter, Base, Job, LossScale, Method, Precision, plain_job
from brimful.values.strategy import Attention, Strategy, Zero, data_parallel

Cell = dict[str, str]
FACTORS = {
    "architecture": ("llama", "llama-tied", "gpt2-tied"),
    "precision": ("fp32", "bf16", "bf16-mixed"),
    "checkpointing": ("none", "full:K", "full"),
    "loss": ("whole", "chunked"),
    "attention": ("sdpa", "eager"),
    "accumulation": ("1", "more"),
    "kernels": ("cpu", "cuda"),
}
"""What runs are measured with: one device, full training, AdamW."""
ALL_FACTORS = {
    **FACTORS,
    "architecture": (
        "llama", "llama-tied", "gpt2-tied", "mistral", "qwen2", "qwen3", "qwen3-tied", "phi3",
        "olmo2",
    ),
    "method": ("full", "lora", "qlora"),
    "precision": tuple(TRACED_AS),
    "checkpointing": ("none", "selective:K", "selective", "full:K", "full"),
    "accumulation": ("1", "more", "held"),
    # What is compiled or paged has tests of its own (``test_low_bit``, ``test_paged``).
    "optimizer": tuple(
        name for name, rule in OPTIMIZERS.items() if not (rule.compiled or rule.pages)
    ),
    "axis": (
        "one device", "zero 0", "zero 1", "zero 2", "zero 3", "hybrid 2", "hybrid 3", "tp", "pp",
        "ep", "offload",
    ),
}  # fmt: skip
"""Everything that has a formula, and the axes that have none; not every combination is one
(``refusal_of``)."""
ONE = "one device"
UNPLANNED = frozenset({"ep", "offload"})
"""Axes of which a strategy says nothing yet."""
UNPREDICTED = frozenset({"tp", "pp"})
"""Axes that are simulated and trained, and have no formula yet."""
_TUNINGS: dict[str, Tuning] = {"full": "", "lora": "lora", "qlora": "nf4-double"}
_LOSS_SCALE = LossScale(
    initial_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
)
_NUM_CANDIDATES = 60
_TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 97,
}
_REASONS = {
    r"^tp=": "tp: does not divide the model, or is not run for it",
    r"take no shards": "ZeRO-2 and 3 with this optimizer: its kernels take no shards",
    r"\(no profile ": "ungrouped heads, written-out attention: no profile",
    r"beyond sliding_window": "sequence longer than the window",
    r"is longer than .* positions": "sequence longer than the model's positions",
    r"num_kv_heads=1 and .* eager": "one key and value head with eager attention: no profile",
    r"profiles of flash attention": "head width outside the profiles of flash attention",
    r"loss_chunks=.* cannot cut": "more chunks of the loss than tokens",
    r"could take .* EiB": "more bytes than can be counted",
}


def reason_of(message: str) -> str:
    """Name the kind of refusal that a message is of, without its numbers."""
    known = (text for pattern, text in _REASONS.items() if re.search(pattern, message))
    return next(known, message)


# -- what a cell stands for --


def job_of(
    model: ModelSpec, *, precision: str, seq_len: int, global_batch: int, optimizer: str = "adamw"
) -> Job:
    """Spell a job in full; what it leaves open here changes no bytes and no time."""
    return plain_job(
        model,
        precision=cast("Any", precision),
        optimizer=cast("Any", optimizer),
        loss_scale=_LOSS_SCALE if precision in SCALED else None,
        seq_len=seq_len,
        global_batch=global_batch,
        num_steps=8,
        learning_rate=1e-4,
    )


def adapted(job: Job, method: str, *, rank: int, base: Base) -> Job:
    """Return the job with adapters on every linear layer, where its method has any."""
    if method == "full":
        return job
    adapter = Adapter(
        rank=rank,
        alpha=16.0,
        targets=("all-linear",),
        trained_modules=(),
        dtype="same",
        base="nf4-double" if method == "qlora" else base,
        upcast="none",
        input_requires_grad=False,
    )
    return msgspec.structs.replace(job, method=cast("Method", method), adapter=adapter)


class Spread(NamedTuple):
    """Fields of a strategy that say over how many devices it runs, and how."""

    zero: Zero = 0
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1


def spread_of(axis: str, *, num_shards: int, num_replicas: int) -> Spread:
    """Return what an axis is with these sizes; those that it does not use are passed over."""
    kind, _, stage = axis.partition(" ")
    if axis in {"tp", "pp"}:
        return Spread()._replace(**{axis: num_shards})
    if axis == ONE or axis in UNPLANNED:
        return Spread()
    zero = cast("Zero", int(stage))
    if zero == 0:
        return Spread(dp_replicate=num_replicas)
    return Spread(zero, num_replicas if kind == "hybrid" else 1, num_shards)


def axis_of(strategy: Strategy) -> str:
    """Return the axis that a strategy is of."""
    if data_parallel(strategy) == 1:
        return ONE
    is_hybrid = strategy.dp_replicate > 1 and strategy.dp_shard > 1
    return f"{'hybrid' if is_hybrid else 'zero'} {strategy.zero}"


def program_of_cell(cell: Cell) -> Program:
    """Name the program that a cell's jobs run."""
    model_type, *flags = cell["architecture"].split("-")
    checkpointing = cell["checkpointing"]
    precision = cast("Precision", cell["precision"])
    return Program(
        architecture="-".join((ARCHITECTURES[model_type].traced_as, *flags)),
        tuning=_TUNINGS[cell.get("method", "full")],
        precision="bf16" if _narrows(cell) else TRACED_AS[precision],
        attention=cast("Attention", cell["attention"]),
        kernels=cast("Any", cell["kernels"]),
        recompute="selective" if checkpointing.startswith("selective") else "full",
    )


def _narrows(cell: Cell) -> bool:
    """Whether parameters are gathered in fewer bits than they are held in."""
    return cell.get("axis", ONE).endswith(("2", "3")) and cell["precision"] in HALF


# -- what goes together --


class Rule(NamedTuple):
    """Why cells are refused.

    Attributes:
        factors: On which it hangs.
        refusal: Says why a cell of these is refused; empty where it is not.
    """

    factors: tuple[str, ...]
    refusal: Callable[[Cell], str]


def _unplanned(cell: Cell) -> str:
    axis = cell.get("axis", ONE)
    if axis in UNPREDICTED:
        return f"{axis}: no formula"
    return f"{axis}: not planned by this version" if axis in UNPLANNED else ""


def _unheld(cell: Cell) -> str:
    holds = cell["accumulation"] == "held"
    return "one device: nothing to hold" if holds and cell.get("axis", ONE) == ONE else ""


def _unrun(cell: Cell) -> str:
    """Ask the package itself, with a tiny job."""
    return _unrun_by(
        cell.get("axis", ONE), cell["precision"], cell.get("optimizer", "adamw"),
        cell.get("method", "full"),
    )  # fmt: skip


@cache
def _unrun_by(axis: str, precision: str, optimizer: str, method: str) -> str:
    job = job_of(
        read_config("tiny", _TINY), precision=precision, seq_len=8, global_batch=4,
        optimizer=optimizer,
    )  # fmt: skip
    job = adapted(job, method, rank=4, base="same")
    spread = spread_of(axis, num_shards=2, num_replicas=2)
    strategy = Strategy(
        micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention="sdpa",
        **spread._asdict(),
    )  # fmt: skip
    try:
        check_strategy(job, strategy)
    except (InputError, UnsupportedError) as error:
        return reason_of(str(error))
    return ""


def _untraced(cell: Cell) -> str:
    if _narrows(cell) and cell["attention"] == "eager":
        return "ZeRO-2 and 3 of a mixed recipe, written-out attention: no profile"
    return "" if is_shipped(program_of_cell(cell).key) else "no profile of such a program"


RULES = (
    Rule(("axis",), _unplanned),
    Rule(("axis", "precision", "optimizer", "method"), _unrun),
    Rule(("axis", "accumulation"), _unheld),
    Rule(
        ("architecture", "precision", "checkpointing", "attention", "kernels", "method", "axis"),
        _untraced,
    ),
)


def refusal_of(cell: Cell) -> str:
    """Say why no case is drawn of a cell; empty where cases are."""
    return next(filter(None, (rule.refusal(cell) for rule in RULES)), "")


def pairs_of(cell: Cell) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """List the pairs of factor values that a cell has."""
    return set(itertools.combinations(cell.items(), 2))


def possible_pairs(
    factors: Mapping[str, Sequence[str]],
) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """List the pairs that any cell that is not refused has."""
    allowed, places = _allowed(factors), range(len(factors))
    found: set[tuple[tuple[str, str], tuple[str, str]]] = set()
    for one, other in itertools.combinations(places, 2):
        there = allowed.any(axis=tuple(p for p in places if p not in {one, other}))
        names = list(factors)
        pair = itertools.product(
            ((names[one], value) for value in factors[names[one]]),
            ((names[other], value) for value in factors[names[other]]),
        )
        found |= {both for both, is_there in zip(pair, there.flat, strict=True) if is_there}
    return found


def _allowed(factors: Mapping[str, Sequence[str]]) -> NDArray[np.bool_]:
    """Tell which cells are not refused: an axis per factor."""
    allowed = np.ones([len(values) for values in factors.values()], dtype=np.bool_)
    for rule in RULES:
        mine = {name: values for name, values in factors.items() if name in rule.factors}
        cells = (
            dict(zip(mine, values, strict=True)) for values in itertools.product(*mine.values())
        )
        table = np.array([not rule.refusal(cell) for cell in cells])
        allowed &= table.reshape([len(factors[n]) if n in mine else 1 for n in factors])
    return allowed


def pairwise_cover(
    rng: random.Random, factors: Mapping[str, Sequence[str]], *, there: Sequence[Cell] = ()
) -> list[Cell]:
    """Choose cells greedily until every possible pair of two factors' values is in one of them.

    Args:
        rng: Where chance comes from.
        factors: Values of every factor.
        there: Cells whose pairs need no other.
    """
    missing, cells = possible_pairs(factors), list[Cell]()
    missing.difference_update(pair for cell in there for pair in pairs_of(cell))
    while missing:
        candidates = [any_cell(rng, factors, Counter()) for _ in range(_NUM_CANDIDATES)]
        best = max(candidates, key=lambda cell: len(missing.intersection(pairs_of(cell))))
        if missing.intersection(pairs_of(best)):
            missing.difference_update(pairs_of(best))
            cells.append(best)
    return cells


def any_cell(
    rng: random.Random, factors: Mapping[str, Sequence[str]], refused: Counter[str]
) -> Cell:
    """Draw a cell; those that are refused on the way are counted by reason."""
    while True:
        cell = {factor: rng.choice(values) for factor, values in factors.items()}
        reason = refusal_of(cell)
        if not reason:
            return cell
        refused[reason] += 1
