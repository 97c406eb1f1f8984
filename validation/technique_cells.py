"""Which techniques are combined, and at which sizes: cells, and the cases drawn for them.

Knows which cells are refused and why; knows nothing of how a case is run.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, cast

from cases import Case
from evidence import Refusal
from sampler import Cell, pairs_of

from brimful.build.assemble import build_skeleton
from brimful.errors import InputError, UnsupportedError
from brimful.models.config import load_model, read_config
from brimful.models.spec import MODULE, ModelSpec
from brimful.techniques.kernel_support import Place, check_attention
from brimful.techniques.runnable import check_strategy
from brimful.values.job import SCALED, Adapter, Base, LossScale, Task, Upcast, check_job, plain_job
from brimful.values.strategy import Strategy

FACTORS: dict[str, tuple[str, ...]] = {
    "architecture": ("llama", "gpt2", "qwen2", "bert", "t5", "switch_transformers", "module"),
    "precision": (
        "fp32", "tf32", "bf16", "fp16", "bf16-mixed", "fp16-mixed", "bf16-master", "fp16-master",
    ),
    "optimizer": ("adamw", "adamw-foreach", "adamw-8bit", "sgd", "adafactor"),
    "tuning": (
        "full", "lora", "lora bf16", "dora", "qlora nf4", "qlora nf4-double", "qlora int8",
        "qlora llm-int8",
    ),
    "adapters": ("plain", "fp32", "norms", "all", "inputs"),
    "checkpointing": ("none", "full", "full:K", "selective", "selective:K"),
    "attention": ("sdpa", "eager", "flash"),
    "packing": ("wrapped", "none", "documents"),
    "loss": ("whole", "chunked"),
    "accumulation": ("1", "more"),
    "weights": ("random", "folder"),
}  # fmt: skip
"""``adapters``: their type, what of the base is upcast, whether its inputs require gradients."""
FOLDER = "a folder"
"""Stands in a case for weights that are written when it is run."""
NUM_CANDIDATES = 40
"""Cells that are drawn for each that is chosen."""
_PLAIN: Cell = {factor: values[0] for factor, values in FACTORS.items()} | {"packing": "none"}
_CHUNKS = 4
_LOSS_SCALE = LossScale(
    initial_scale=256.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
)
"""Small, so that no step is skipped: what is measured is an update."""
_TASKS: dict[str, Task] = {
    "bert": "sequence-classification",
    "t5": "seq2seq",
    "switch_transformers": "seq2seq",
    "module": "module",
}
_MODULE_NAME = "pictures:build"

Pair = tuple[tuple[str, str], tuple[str, str]]


class Cover(NamedTuple):
    """Cells, and what was refused on the way to them.

    Attributes:
        cells: They hold every pair of values that is possible.
        refused: Why pairs of values and cells were refused, and how many.
        impossible: The pairs.
    """

    cells: tuple[Cell, ...]
    refused: Counter[str]
    impossible: frozenset[Pair]


class Sizes(NamedTuple):
    """Of a case.

    Attributes:
        width: Of the residual stream.
        layers: Blocks; of each stack, where there are two.
        vocab: Rows of the embedding.
        seq_len: Tokens per sequence; a picture is one.
        rows: Sequences per micro-batch.
    """

    width: int
    layers: int
    vocab: int
    seq_len: int
    rows: int


SMALLEST = Sizes(width=64, layers=2, vocab=64, seq_len=16, rows=8)
"""Of a case that is built only to see whether it is refused."""


def all_pairs(factors: Mapping[str, tuple[str, ...]]) -> set[Pair]:
    """List every pair of values of two factors."""
    return {
        ((one, a), (other, b))
        for one, other in itertools.combinations(factors, 2)
        for a, b in itertools.product(factors[one], factors[other])
    }


def cover(rng: random.Random) -> Cover:
    """Choose cells greedily until every possible pair of values is in one of them."""
    refused: Counter[str] = Counter()
    impossible = frozenset(_impossible(refused))
    missing = all_pairs(FACTORS) - impossible
    cells: list[Cell] = []
    while missing:
        wanted = rng.choice(sorted(missing))
        drawn = [_drawn(rng, wanted, impossible) for _ in range(NUM_CANDIDATES)]
        drawn.sort(key=lambda cell: -len(missing.intersection(pairs_of(cell))))
        best = _first_possible(drawn, refused)
        missing.difference_update(pairs_of(best))
        cells.append(best)
    return Cover(tuple(cells), refused, impossible)


def _impossible(refused: Counter[str]) -> Iterator[Pair]:
    """Yield the pairs of values that are refused where all else is plain."""
    for pair in sorted(all_pairs(FACTORS)):
        reason = refusal(_plain_but(dict(pair)))
        if reason is not None:
            refused[reason] += 1
            yield pair


def _plain_but(chosen: Cell) -> Cell:
    """Return the plainest cell with some values; what these need is chosen with them."""
    cell = {**_PLAIN, **chosen}
    if cell["adapters"] != "plain" and "tuning" not in chosen:
        cell["tuning"] = "lora"
    if cell["adapters"] in {"norms", "all"} and "precision" not in chosen:
        cell["precision"] = "bf16-mixed"
    if cell["architecture"] == "switch_transformers" and "attention" not in chosen:
        cell["attention"] = "eager"
    return cell


def _drawn(rng: random.Random, wanted: Pair, impossible: frozenset[Pair]) -> Cell:
    """Draw a cell with a pair of values and no impossible pair, as far as there is one."""
    chosen = dict(wanted)
    for factor in rng.sample(list(FACTORS), len(FACTORS)):
        if factor not in chosen:
            allowed = [v for v in FACTORS[factor] if _goes(chosen, factor, v, impossible)]
            chosen[factor] = rng.choice(allowed or FACTORS[factor])
    return {factor: chosen[factor] for factor in FACTORS}


def _goes(chosen: Cell, factor: str, value: str, impossible: frozenset[Pair]) -> bool:
    one = (factor, value)
    return not any(
        (one, other) in impossible or (other, one) in impossible for other in chosen.items()
    )


def _first_possible(cells: list[Cell], refused: Counter[str]) -> Cell:
    for cell in cells:
        reason = refusal(cell)
        if reason is None:
            return cell
        refused[reason] += 1
    raise RuntimeError(f"every cell like {cells[0]} is refused; draw more of them")


def refusals(refused: Counter[str]) -> tuple[Refusal, ...]:
    """Say which reasons there were, the most frequent first."""
    return tuple(Refusal(reason=r, num_draws=n) for r, n in refused.most_common())


def refusal(cell: Cell) -> str | None:
    """Say why a cell cannot be run; None where it can."""
    if cell["tuning"] == "full" and cell["adapters"] != "plain":
        return "switches of adapters without adapters"
    try:
        case_of(cell, SMALLEST)
    except (InputError, UnsupportedError) as error:
        return _short(str(error))
    return _unbuilt(tuple(cell[factor] for factor in FACTORS if factor not in _NOT_BUILT))


_NOT_BUILT = ("optimizer", "checkpointing", "packing", "accumulation", "weights")
"""Factors that no skeleton hangs on."""


@cache
def _unbuilt(built: tuple[str, ...]) -> str | None:
    """Say why the skeleton of a cell cannot be built; None where it can."""
    values = iter(built)
    cell = {f: _PLAIN[f] if f in _NOT_BUILT else next(values) for f in FACTORS}
    case = case_of(cell, SMALLEST)
    try:
        build_skeleton(case.job, case.strategy)
    except (InputError, UnsupportedError) as error:
        return _short(str(error))
    return None


def _short(message: str) -> str:
    """Cut a message down to what several cells share: its first clause."""
    return message.partition(";")[0].partition(" (")[0][:100]


def case_of(cell: Cell, sizes: Sizes) -> Case:
    """Spell a cell out at some sizes.

    Raises:
        InputError: The job or the strategy contradicts itself.
        UnsupportedError: Its attention cannot run on a CPU.
    """
    architecture, precision = cell["architecture"], cast("Any", cell["precision"])
    model = _model(architecture, sizes)
    job = plain_job(
        model,
        task=_TASKS.get(architecture, "causal-lm"),
        precision=precision,
        optimizer=cast("Any", cell["optimizer"]),
        loss_scale=_LOSS_SCALE if precision in SCALED else None,
        packing=cast("Any", cell["packing"]),
        weights=None if cell["weights"] == "random" else FOLDER,
        seq_len=1 if architecture == MODULE else sizes.seq_len,
        global_batch=sizes.rows * (1 if cell["accumulation"] == "1" else 3),
        num_steps=8,
        learning_rate=1e-5,
        **_tuning(cell),
    )
    strategy = Strategy(
        micro_batch=sizes.rows,
        activation_checkpointing=cell["checkpointing"].replace("K", str(sizes.layers - 1)),
        loss_chunks=1 if cell["loss"] == "whole" else _CHUNKS,
        attention=cast("Any", cell["attention"]),
    )
    check_attention(check_job(job), check_strategy(job, strategy), Place("cpu", 0.0))
    return Case(job=job, strategy=strategy, kernels="cpu")


def _tuning(cell: Cell) -> dict[str, Any]:
    method, _, base = cell["tuning"].partition(" ")
    if method == "full":
        return {"method": method, "adapter": None}
    switch = cell["adapters"]
    adapter = Adapter(
        rank=8,
        alpha=16.0,
        targets=("all-linear",),
        trained_modules=(),
        dtype="fp32" if switch == "fp32" else "same",
        base=cast("Base", base or "same"),
        upcast=cast("Upcast", switch if switch in {"norms", "all"} else "none"),
        input_requires_grad=switch == "inputs",
    )
    return {"method": method, "adapter": adapter}


def _model(architecture: str, sizes: Sizes) -> ModelSpec:
    if architecture == MODULE:
        return load_model(_MODULE_NAME)
    config = _CONFIGS[architecture](sizes)
    return read_config(f"drawn-{architecture}", {"model_type": architecture, **config})


def _decoder(sizes: Sizes) -> dict[str, Any]:
    heads = sizes.width // 32
    return {
        "hidden_size": sizes.width,
        "intermediate_size": 5 * sizes.width // 2,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": sizes.seq_len,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _gpt2(sizes: Sizes) -> dict[str, Any]:
    return {
        "n_embd": sizes.width,
        "n_layer": sizes.layers,
        "n_head": sizes.width // 32,
        "vocab_size": sizes.vocab,
        "n_positions": sizes.seq_len,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _bert(sizes: Sizes) -> dict[str, Any]:
    return {
        "hidden_size": sizes.width,
        "intermediate_size": 4 * sizes.width,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.width // 32,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": sizes.seq_len,
        "num_labels": 3,
        "pad_token_id": 0,
    }


def _t5(sizes: Sizes) -> dict[str, Any]:
    return {
        "d_model": sizes.width,
        "d_ff": 3 * sizes.width,
        "d_kv": 32,
        "num_heads": sizes.width // 32,
        "num_layers": sizes.layers,
        "vocab_size": sizes.vocab,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
    }


def _switch(sizes: Sizes) -> dict[str, Any]:
    return {
        **_t5(sizes),
        "num_experts": 4,
        "expert_capacity": sizes.seq_len // 2,
        "num_sparse_encoder_layers": max(1, sizes.layers // 2),
        "num_sparse_decoder_layers": max(1, sizes.layers // 2),
    }


_CONFIGS = {
    "llama": _decoder,
    "gpt2": _gpt2,
    "qwen2": _decoder,
    "bert": _bert,
    "t5": _t5,
    "switch_transformers": _switch,
}
