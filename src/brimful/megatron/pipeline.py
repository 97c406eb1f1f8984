"""Which stage of a pipeline has how many layers, chunk by chunk.

Source: ``megatron/core/transformer/{transformer_block,pipeline_parallel_layer_layout}.py``,
``megatron/training/arguments.py``.
"""

import re

from brimful.errors import InputError, UnsupportedError
from brimful.models.fields import MAX_DEPTH
from brimful.programs.base import Flags

Chunks = tuple[tuple[int, ...], ...]
"""Layers of each chunk of every stage."""
LAYOUT = "--pipeline-model-parallel-layout"
_REPEATED = (re.compile(r"\(([^)]+)\)\*(\d{1,3})(?!\d)"), re.compile(r"(.)\*(\d{1,3})(?!\d)"))
"""What a layout writes once: in parentheses, which are looked at first, or one letter."""
MOST_LETTERS = 4 * MAX_DEPTH
"""Of a layout that is written out: layers, and what parts chunks."""
_EMBEDDING, _LAYER, _MORE, _LOSS = "E", "t", "m", "L"
"""The embedding, a layer, one that predicts a token more, the loss."""


def chunks_of(flags: Flags) -> Chunks:
    """Return the layers of every chunk."""
    num_layers = flags.first("--num-layers", default=1)
    if num_layers > MAX_DEPTH:
        raise InputError(f"--num-layers {num_layers:,} is over {MAX_DEPTH:,}; give less")
    found = _written(flags) if flags.has(LAYOUT) else _even(flags)
    held, pp, vp = sum(map(sum, found)), len(found), len(found[0])
    if min(map(min, found)) < 0:
        raise InputError(f"the ends of the pipeline hold more than {num_layers} layers; give less")
    if held != num_layers:
        raise InputError(
            f"{num_layers} layers do not divide over {pp * vp} chunks (pp {pp} x {vp} virtual "
            f"stages): these hold {held}; change one"
        )
    return found


def kinds_of_stages(flags: Flags) -> tuple[int, ...]:
    """Return a stage of each kind: the first, the last, and one of those between that are alike.

    Of these the first runs most micro-batches ahead.
    """
    last = flags.first("--pipeline-model-parallel-size", default=1) - 1
    between = dict.fromkeys((min(1, last),))
    if flags.has(LAYOUT):
        chunks = _written(flags)
        between = dict.fromkeys(chunks.index(each, 1) for each in chunks[1:last])
    return tuple(dict.fromkeys((0, *between, last)))


def written(num_layers: int, pp: int) -> str:
    """Write down stages of unlike numbers of layers: the first, with the embedding, has fewest.

    ``num_layers``: of a model, which do not divide over them. ``pp``: stages, 2 or more.
    """
    each, more = divmod(num_layers, pp)
    between = _times(f"t*{each + 1}|", min(more, pp - 2)) + _times(f"t*{each}|", pp - 2 - more)
    return f"Et*{each}|{between}t*{each + (more == pp - 1)}L"


def _times(chunk: str, number: int) -> str:
    return f"({chunk})*{number}" if number > 1 else chunk * max(0, number)


def _even(flags: Flags) -> Chunks:
    """Divide layers evenly but for the ends, where a command line says how many these hold."""
    number, has = flags.first, flags.has
    num_layers = number("--num-layers", default=1)
    pp = number("--pipeline-model-parallel-size", default=1)
    of_embedding = int(has("--account-for-embedding-in-pipeline-split"))
    of_loss = int(has("--account-for-loss-in-pipeline-split"))
    first = number("--decoder-first-pipeline-num-layers", default=0) if pp > 1 else 0
    last = number("--decoder-last-pipeline-num-layers", default=0) if pp > 1 else 0
    if of_embedding or of_loss:
        first = last = 0
    each = num_layers + of_embedding + of_loss - first - last
    each //= max(1, pp - (first > 0) - (last > 0))
    by_chunk = number("--num-layers-per-virtual-pipeline-stage", default=0)
    vp = max(1, -(-each // by_chunk)) if by_chunk else 0
    vp = vp or number("--num-virtual-stages-per-pipeline-rank", default=1)
    if vp > num_layers:
        raise InputError(f"{vp:,} virtual stages are over {num_layers} layers; give fewer")
    stages = [[each // vp] * vp for _ in range(pp)]
    if first:
        stages[0] = [first // vp] * vp
    if last:
        stages[-1] = [last // vp] * vp
    stages[0][0] -= of_embedding
    stages[-1][-1] -= of_loss
    return tuple(map(tuple, stages))


def _written(flags: Flags) -> Chunks:
    """Read a layout, such as ``Et|(tt|)*30L``: chunks of the first stage, the second and so on."""
    text = flags.text(LAYOUT)
    plain = text.replace(",", "")
    for pattern in _REPEATED:
        if sum(len(found[1]) * int(found[2]) for found in pattern.finditer(plain)) > MOST_LETTERS:
            raise InputError(f"{LAYOUT} {text[:40]}... is of more chunks and layers than there are")
        plain = pattern.sub(lambda found: found[1] * int(found[2]), plain)
    pp = flags.first("--pipeline-model-parallel-size", default=1)
    chunks = plain.split("|")
    more = flags.first("--mtp-num-layers", default=0)
    if set(plain) - set(f"{_EMBEDDING}{_LAYER}{_MORE}{_LOSS}|"):
        raise InputError(
            f"{LAYOUT} {text} is no layout of an embedding (E), layers (t, m) and a loss (L)"
        )
    if plain.count(_MORE) != more:
        raise InputError(f"{LAYOUT} {text} should have one m for each of --mtp-num-layers {more}")
    if _MORE in plain and not plain.endswith(_MORE * more + _LOSS):
        raise UnsupportedError(f"{LAYOUT} {text} has a formula with m beside L alone")
    if (chunks[0][:1], chunks[-1][-1:], plain.count(_EMBEDDING), plain.count(_LOSS)) != (
        _EMBEDDING, _LOSS, 1, 1,
    ):  # fmt: skip
        raise InputError(f"{LAYOUT} {text} should begin with E and end with L, once each")
    if len(chunks) % pp:
        raise InputError(
            f"{LAYOUT} {text} has {len(chunks)} chunks, no multiple of pp {pp}; change one"
        )
    return tuple(tuple(chunk.count(_LAYER) for chunk in chunks[stage::pp]) for stage in range(pp))
