"""Drawing random cases: every pair of factor values at least once, shapes log-uniform.

Knows which draws are refused and why; knows nothing of how a case is run.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from cases import Case, Kernels
from cells import (
    ALL_FACTORS,
    FACTORS,
    ONE,
    Cell,
    Spread,
    adapted,
    any_cell,
    job_of,
    pairs_of,
    pairwise_cover,
    possible_pairs,
    program_of_cell,
    reason_of,
    spread_of,
)
from evidence import Refusal

from brimful.cost.estimate import estimate
from brimful.cost.programs import HALF, is_written_out
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster, Device, MatrixRates
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model, read_config, registry
from brimful.models.spec import ModelSpec
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Base, Job, check_job
from brimful.values.plan import Estimate
from brimful.values.strategy import Recompute, Strategy, spell_checkpointing, world_size

__all__ = [
    "ALL_FACTORS", "FACTORS", "REGISTRY_SHARE", "Cell", "Drawn", "Range", "Shapes", "cluster_for",
    "cluster_of", "draw_cases", "job_of", "pairs_of", "possible_pairs",
]  # fmt: skip

REGISTRY_SHARE = 1 / 3
MAX_DRAWS = 4000
"""A cell that refuses this many shapes has none to offer."""
_HEAD_DIMS = (32, 40, 64, 80, 96, 128, 192, 256)
_SWITCH_SHARE = 0.1
"""How many Llama-type draws have biases, or a head width that is not hidden / heads."""
_LLAMA_ONLY = frozenset({"attention_bias", "mlp_bias", "head_dim"})
_OWN_HEAD_WIDTH = frozenset({"mistral", "qwen3"})
_OWN_FIELDS: dict[str, dict[str, Any]] = {"mistral": {"sliding_window": None}}


class Range(NamedTuple):
    """A log-uniform range of whole numbers."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        """Draw one."""
        return round(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))


NUM_DEVICES = Range(2, 1024)
"""World sizes that are drawn; of a hybrid the shards, then as many replicas as are left."""
NUM_MICRO_BATCHES = (2, 3)
"""What one device accumulates, where it does."""


class Shapes(NamedTuple):
    """Between which sizes cases are drawn.

    Attributes:
        hidden: Width of the residual stream.
        layers: Blocks.
        vocab: Rows of the embedding.
        seq_len: Tokens per sequence.
        micro_batch: Sequences per forward pass.
        chunks: Pieces of a chunked loss.
        registry_share: How often a registry model is taken instead of drawn dimensions.
    """

    hidden: Range
    layers: Range
    vocab: Range
    seq_len: Range
    micro_batch: Range
    chunks: Range
    registry_share: float


class Drawn(NamedTuple):
    """The cases, and what was refused on the way to them."""

    cases: tuple[Case, ...]
    num_drawn: int
    refusals: tuple[Refusal, ...]


Wish = Callable[[Case, Estimate], str | None]
"""Says why a valid case is not wanted, or None."""


def draw_cases(
    rng: random.Random,
    num_cases: int,
    factors: Mapping[str, Sequence[str]],
    shapes: Shapes,
    wish: Wish,
) -> Drawn:
    """Draw cases; one that is refused is drawn again in the same cell.

    Args:
        rng: Where chance comes from.
        num_cases: How many; a pairwise cover comes first, the rest is random.
        factors: Values of every factor.
        shapes: Ranges of the sizes.
        wish: What a valid case must be besides.
    """
    refused: Counter[str] = Counter()
    cells = pairwise_cover(rng, factors)[:num_cases]
    cells += [any_cell(rng, factors, refused) for _ in range(num_cases - len(cells))]
    cases = tuple(_draw_valid(rng, cell, shapes, wish, refused) for cell in cells)
    return Drawn(
        cases=cases,
        num_drawn=len(cases) + refused.total(),
        refusals=tuple(Refusal(reason=r, num_draws=n) for r, n in refused.most_common()),
    )


def draw_missing(
    rng: random.Random,
    cells: Sequence[Cell],
    num_cases: int,
    factors: Mapping[str, Sequence[str]],
    shapes: Shapes,
) -> Drawn:
    """Draw cases of the possible pairs that no cell has, and others up to a number.

    Args:
        rng: Where chance comes from.
        cells: What is there.
        num_cases: How many at least.
        factors: Values of every factor.
        shapes: Ranges of the sizes.
    """
    refused: Counter[str] = Counter()
    chosen = pairwise_cover(rng, factors, there=cells)
    chosen += [any_cell(rng, factors, refused) for _ in range(num_cases - len(chosen))]
    cases = tuple(_draw_valid(rng, cell, shapes, _anything, refused) for cell in chosen)
    refusals = tuple(Refusal(reason=r, num_draws=n) for r, n in refused.most_common())
    return Drawn(cases, len(cases) + refused.total(), refusals)


def _anything(_case: Case, _estimate: Estimate) -> None:
    return None


def _draw_valid(
    rng: random.Random, cell: Cell, shapes: Shapes, wish: Wish, refused: Counter[str]
) -> Case:
    # Decided once: known models refuse more draws than others and would become rarer.
    is_known = rng.random() < shapes.registry_share and _is_known(cell)
    for _ in range(MAX_DRAWS):
        try:
            case = _draw(rng, cell, shapes, is_known=is_known)
            reason = wish(case, estimate(case.job, cluster_for(case), case.strategy))
        except (InputError, UnsupportedError) as error:
            reason = reason_of(str(error))
        if reason is None:
            return case
        refused[reason] += 1
    raise InputError(f"{MAX_DRAWS} draws of {cell} were refused ({refused}); widen the shapes")


def _draw(rng: random.Random, cell: Cell, shapes: Shapes, *, is_known: bool) -> Case:
    seq_len, micro_batch = shapes.seq_len.draw(rng), shapes.micro_batch.draw(rng)
    architecture = cell["architecture"]
    model = (
        _known_model(rng, architecture)
        if is_known
        else _draw_model(rng, architecture, shapes, seq_len)
    )
    spread = _draw_spread(rng, cell.get("axis", ONE))
    num_micro = 1 if cell["accumulation"] == "1" else rng.choice(NUM_MICRO_BATCHES)
    job = job_of(
        model,
        precision=cell["precision"],
        optimizer=cell.get("optimizer", "adamw"),
        seq_len=seq_len,
        global_batch=micro_batch * num_micro * spread.dp_replicate * spread.dp_shard,
    )
    job = _adapted(rng, job, cell.get("method", "full"))
    strategy = Strategy(
        micro_batch=micro_batch,
        activation_checkpointing=_draw_checkpointing(rng, cell["checkpointing"], model.num_layers),
        loss_chunks=1 if cell["loss"] == "whole" else shapes.chunks.draw(rng),
        attention=cast("Any", cell["attention"]),
        accumulate="hold" if cell["accumulation"] == "held" else "reduce-each",
        **spread._asdict(),
    )
    check_strategy(check_job(job), strategy)
    return Case(job=job, strategy=strategy, kernels=cast("Kernels", cell["kernels"]))


def _draw_spread(rng: random.Random, axis: str) -> Spread:
    num_devices = NUM_DEVICES.draw(rng)
    if not axis.startswith("hybrid"):
        return spread_of(axis, num_shards=num_devices, num_replicas=num_devices)
    num_shards = min(num_devices, NUM_DEVICES.high // 2)
    num_replicas = Range(2, NUM_DEVICES.high // num_shards).draw(rng)
    return spread_of(axis, num_shards=num_shards, num_replicas=num_replicas)


def _draw_checkpointing(rng: random.Random, kind: str, num_layers: int) -> str:
    recompute, _, some = kind.partition(":")
    if not some:
        return kind
    return spell_checkpointing(
        rng.randint(1, num_layers - 1),
        num_layers=num_layers,
        recompute=cast("Recompute", recompute),
    )


def _adapted(rng: random.Random, job: Job, method: str) -> Job:
    bases: list[Base] = ["same"]
    if job.precision in HALF:
        bases.append("bf16" if job.precision == "bf16-mixed" else "fp16")
    return adapted(job, method, rank=Range(4, 128).draw(rng), base=rng.choice(bases))


def _is_known(cell: Cell) -> bool:
    """Whether a registry model of the cell's kind has a formula; most have ungrouped heads."""
    program = program_of_cell(cell)
    written_out = is_written_out(program.precision, program.attention, program.kernels)
    return any(
        m.num_kv_heads < m.num_heads or not written_out or m.model_type in {"gpt2", "llama"}
        for m in _known_models(cell["architecture"])
    )


def _known_model(rng: random.Random, architecture: str) -> ModelSpec:
    return rng.choice(_known_models(architecture))


def _known_models(architecture: str) -> list[ModelSpec]:
    tied, model_type = architecture.endswith("-tied"), architecture.removesuffix("-tied")
    named = [load_model(name) for name, e in registry().items() if e["model_type"] == model_type]
    return [m for m in named if m.tied_embeddings == tied]


def _draw_model(rng: random.Random, architecture: str, shapes: Shapes, seq_len: int) -> ModelSpec:
    head_dim = rng.choice(_HEAD_DIMS)
    heads = max(1, round(shapes.hidden.draw(rng) / head_dim))
    drawn = {
        "hidden": heads * head_dim,
        "inner": 16 * round(heads * head_dim * rng.uniform(1.5, 6) / 16),
        "heads": heads,
        "layers": shapes.layers.draw(rng),
        "vocab": shapes.vocab.draw(rng),
        "positions": seq_len * rng.choice((1, 1, 2)),
    }
    if architecture == "gpt2-tied":
        return read_config("drawn", _gpt2(drawn))
    config = _llama(rng, drawn, head_dim)
    model_type, *tied = architecture.split("-")
    if model_type != "llama":
        config = {
            **{field: value for field, value in config.items() if field not in _LLAMA_ONLY},
            "model_type": model_type,
            "pad_token_id": None,
            **_OWN_FIELDS.get(model_type, {}),
        }
        if model_type in _OWN_HEAD_WIDTH:
            config["head_dim"] = head_dim
    return read_config("drawn", {**config, "tie_word_embeddings": bool(tied)})


def _gpt2(drawn: dict[str, int]) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_embd": drawn["hidden"],
        "n_inner": drawn["inner"],
        "n_layer": drawn["layers"],
        "n_head": drawn["heads"],
        "vocab_size": drawn["vocab"],
        "n_positions": drawn["positions"],
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _llama(rng: random.Random, drawn: dict[str, int], head_dim: int) -> dict[str, Any]:
    heads = drawn["heads"]
    odd_width = rng.choice(_HEAD_DIMS) if rng.random() < _SWITCH_SHARE else head_dim
    return {
        "model_type": "llama",
        "hidden_size": drawn["hidden"],
        "intermediate_size": drawn["inner"],
        "num_hidden_layers": drawn["layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        "head_dim": odd_width,
        "attention_bias": rng.random() < _SWITCH_SHARE,
        "mlp_bias": rng.random() < _SWITCH_SHARE,
        "vocab_size": drawn["vocab"],
        "max_position_embeddings": drawn["positions"],
        "bos_token_id": None,
        "eos_token_id": None,
    }


def cluster_for(case: Case) -> Cluster:
    """Return as many devices as a case runs on; its links play no part in a peak."""
    one = cluster_of(case.kernels)
    num_devices = world_size(case.strategy)
    return msgspec.structs.replace(one, num_devices=num_devices, devices_per_node=num_devices)


def cluster_of(kernels: Kernels) -> Cluster:
    """Return a device of these kernels; its rates and its size play no part in a peak."""
    if kernels == "cuda":
        return load_cluster("h100-80gb", memory_limit_bytes=None)
    device = Device(
        name="cpu",
        description="any CPU",
        kernels="cpu",
        usable_bytes=2**40,
        capability=0.0,
        matrix_flops_per_s=MatrixRates(fp32=0, bf16=0),
        memory_bytes_per_s=0,
        op_overhead_s=0,
        calibrated=False,
        source="stands for any CPU: rates are unknown",
    )
    return Cluster(name="cpu", device=device, num_devices=1, host_ram_bytes=0)
