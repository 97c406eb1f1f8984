"""Recordings made by hand: a training step whose every byte is known, and one of any length."""

from dataclasses import replace

import numpy as np

from brimful.pretend.recording import NEVER, Recording
from brimful.pretend.recording_builder import Place, RecordingBuilder
from brimful.units import KIB, MIB
from brimful.values.results import GRADIENTS, OPTIMIZER_STATE, PARAMETERS, WORKSPACES

COMM_STREAM = 5
LAYERS = ("model.layers.0.mlp", "model.layers.1.mlp")
PARAMETER, ACTIVATION, SCORES = 24 * MIB, 30 * MIB, 12 * MIB


class _Code:
    co_filename = "train.py"


def place(op, owner="", *, node="", line=0, stream=0):
    return Place(op=op, owner=owner, node=node, line=(_Code, line) if line else None, stream=stream)


def take(builder, num_bytes, where, *, item="", dtype="bfloat16"):
    shape = (num_bytes // (4 if dtype == "float32" else 2),)
    row = builder.allocate(num_bytes, shape, dtype, where)
    if item:
        builder.set_item(row, item)
    return row


def small_run():
    """Load two parameters; a step: forward, backward with a gather on a stream, update."""
    b = RecordingBuilder()
    for owner in LAYERS:
        take(b, PARAMETER, place("aten.empty.memory_format", owner, line=3), item=PARAMETERS)
    take(b, 8 * KIB, place("cuBLAS workspace"), item=WORKSPACES)
    b.begin_phase("step 1 forward")
    saved = []
    for owner in LAYERS:
        scores = take(b, SCORES, place("aten._softmax.default", owner, line=8))
        saved.append(take(b, ACTIVATION, place("aten.mm.default", owner, line=9)))
        b.free(scores)
    loss = take(b, 4, place("aten.nll_loss_forward.default", "loss", line=11), dtype="float32")
    b.begin_phase("step 1 backward")
    gradients = []
    for owner, activation in zip(reversed(LAYERS), reversed(saved), strict=True):
        gathered = take(
            b,
            40 * MIB,
            place("c10d.all_gather", owner, node="MmBackward0", stream=COMM_STREAM, line=12),
        )
        where = place("aten.mm.default", owner, node="MmBackward0", line=12)
        gradients.append(take(b, PARAMETER, where, item=GRADIENTS))
        b.use_elsewhere(gathered)
        b.free(gathered)
        b.free(activation)
    b.free(loss)
    b.wait()
    b.begin_phase("step 1 optimizer")
    for owner in LAYERS:
        where = place("aten.zeros_like.default", owner, line=13)
        take(b, 2 * PARAMETER, where, item=OPTIMIZER_STATE, dtype="float32")
    b.flush_cache()
    for gradient in gradients:
        b.free(gradient)
    return b.build()


def bare(events, num_bytes, *, streams, until, flushes):
    """Make a recording of which only what the allocator sees is known."""
    empty = long_run(0)
    rows = {"events": events, "num_bytes": num_bytes, "stream": streams, "in_use_until": until}
    columns = {
        name: np.array(column, dtype=getattr(empty, name).dtype) for name, column in rows.items()
    }
    order = columns["events"]
    num_rows = len(num_bytes)
    born, died = np.full(num_rows, NEVER), np.full(num_rows, NEVER)
    born[order[order >= 0]] = np.flatnonzero(order >= 0)
    died[~order[order < 0]] = np.flatnonzero(order < 0)
    names = ("owner", "op", "node", "line", "phase", "item", "shape_dtype")
    return replace(
        empty,
        **columns,
        **{name: np.zeros(num_rows, dtype=np.int32) for name in names},
        born=born,
        died=died,
        cache_flushes=np.array(flushes, dtype=np.int64),
        phase_starts=np.zeros(1, dtype=np.int64),
        phases=("load",),
    )


def long_run(num_events, *, seed=0):
    """Half a million rows of many sizes, most freed after a while, on two streams."""
    rng = np.random.default_rng(seed)
    num_rows = num_events // 2
    keys = np.arange(num_rows) * 2.0
    lives = np.where(rng.random(num_rows) < 0.9, rng.integers(1, 200, num_rows), 20_000)
    order = np.argsort(np.concatenate([keys, keys + lives * 2 + 1]), kind="stable")
    rows = np.arange(num_rows)
    events = np.concatenate([rows, ~rows])[order]
    place_of = np.empty(2 * num_rows, dtype=np.int64)
    place_of[order] = np.arange(2 * num_rows)

    def index(high):
        return rng.integers(0, high, num_rows).astype(np.int32)

    shapes = tuple((f"[{i}, 4096]", "bfloat16") for i in range(1000))
    sizes = (2 ** rng.uniform(9, 27, 300)).astype(np.int64)
    phase_starts = np.linspace(0, num_events, 8, endpoint=False).astype(np.int64)
    born, died = place_of[:num_rows].copy(), place_of[num_rows:].copy()
    return Recording(
        events=events,
        num_bytes=sizes[rng.integers(0, 300, num_rows)],
        born=born,
        died=died,
        stream=(rng.random(num_rows) < 0.1).astype(np.int32),
        in_use_until=np.where(rng.random(num_rows) < 0.01, died + 50, 0),
        owner=index(400),
        op=index(60),
        node=index(40),
        line=index(200),
        phase=(np.searchsorted(phase_starts, born, "right") - 1).astype(np.int32),
        item=index(3),
        shape_dtype=index(1000),
        phase_starts=phase_starts,
        marks=np.array([3, 17], dtype=np.int64),
        cache_flushes=np.array([num_events // 3][:num_events], dtype=np.int64),
        costs=(),
        owners=tuple(f"model.layers.{i // 5}.part{i % 5}" for i in range(400)),
        ops=tuple(f"aten.op{i}.default" for i in range(60)),
        nodes=("", *(f"Node{i}Backward0" for i in range(39))),
        lines=tuple(f"model.py:{i}" for i in range(200)),
        phases=("load", *(f"step {i // 3 + 1} {name}" for i in range(6)
                          for name in [("forward", "backward", "optimizer")[i % 3]]), "end"),
        items=("", PARAMETERS, OPTIMIZER_STATE),
        shapes=shapes,
    )  # fmt: skip
