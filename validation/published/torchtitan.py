"""Published torchtitan runs, rebuilt as programs and run on the pretend GPU.

    python validation/published/torchtitan.py --row tt_l31-8b_8gpu_fsdp
    python validation/published/torchtitan.py --all --json

What was published is the peak of reserved memory since the statistics were last reset, so what is
compared is the replay of the allocator, loading included, as the launcher had set it.
"""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812
from fsdp1_moves import pretending as flat_parameters
from row import GIB, NUM_OWNERS, Row, read_rows
from torch.distributed.tensor.parallel import loss_parallel
from torchtitan_eras import ERAS, Era, Setup, program
from torchtitan_flat import shard_flat
from torchtitan_launches import LaunchQueue, freed_by_the_device
from torchtitan_model import MODELS, Decoder
from torchtitan_parallel import as_it_was, checkpoint, shard, tensor_parallel

from brimful import pretend
from brimful.allocator.config import PYTORCH_DEFAULTS
from brimful.allocator.replay import Replay, replay
from brimful.pretend.recording import Recording

ROWS = Path(__file__).parent / "rows" / "torchtitan.json"
NUM_STEPS = 2
"""From the second step on every step is the same: optimizer state is there."""
CLIP_NORM = 1.0
NEAR = 0.05
"""Above this share of error a row is marked."""


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulation of one run says; bytes of one GPU.

    Attributes:
        live_bytes: Peak of what tensors asked for.
        allocated_bytes: Peak of the blocks handed out for it, native segments.
        active_bytes: Peak of blocks handed out, or freed but still in use by other streams.
        native_bytes: Peak reserved, native segments.
        expandable_bytes: Peak reserved, expandable segments.
        compared_bytes: The one of both that the launcher had set, within what the card has.
        setting: Which that is.
        num_retries: Times the cache was given back for want of bytes.
        out_of_memory: Whether the replay of ``setting`` ended for want of bytes.
        num_events: Allocations and frees.
        owners: Who held most at the peak: class, operation, shape, and bytes.
    """

    live_bytes: int
    allocated_bytes: int
    active_bytes: int
    native_bytes: int
    expandable_bytes: int
    compared_bytes: int
    setting: str
    num_retries: int
    out_of_memory: bool
    num_events: int
    owners: tuple[tuple[str, int], ...]


def simulate(row: Row[Setup]) -> Simulated:
    """Run the program of a row on the pretend GPU and replay its allocator.

    Args:
        row: The published run.
    """
    setup = row.config
    recording = record(setup)
    native, expandable = (_replay(recording, expandable=e, setup=None) for e in (False, True))
    compared = _replay(recording, expandable=setup.expandable, setup=setup)
    live = recording.live_bytes()
    return Simulated(
        live_bytes=int(live.max()),
        allocated_bytes=native.peak_allocated_bytes,
        active_bytes=native.peak_active_bytes,
        native_bytes=native.peak_reserved_bytes,
        expandable_bytes=expandable.peak_reserved_bytes,
        compared_bytes=compared.peak_reserved_bytes,
        setting="expandable" if setup.expandable else "native",
        num_retries=compared.num_retries,
        out_of_memory=compared.out_of_memory is not None,
        num_events=len(recording.events),
        owners=_owners(recording, int(live.argmax())),
    )


def record(setup: Setup) -> Recording:
    """Run ``NUM_STEPS`` steps of a program on the pretend GPU and return its tape.

    Args:
        setup: The run's settings.
    """
    era = ERAS[setup.era]
    with torch.device("meta"):
        model = Decoder(MODELS[setup.model], program(era, setup))
    queue = LaunchQueue() if era.records_streams and setup.tp > 1 else None
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(pretend.gpu(world_size=setup.dp * setup.tp, says_cuda=False))
        stack.enter_context(as_it_was(era.engine))
        if setup.sharding == "fsdp1":
            stack.enter_context(flat_parameters(run.tape))
        model = _load(_parallelize(model, run, setup, era), setup)
        optimizer = torch.optim.AdamW(
            model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, **{era.optimizer: True}
        )
        with queue.watching(run.tape) if queue else contextlib.nullcontext():
            for _ in range(NUM_STEPS):
                _step(model, optimizer, setup, era)
        recording = run.recording()
    return freed_by_the_device(recording) if queue else recording


def _parallelize(model: Any, run: pretend.Run, setup: Setup, era: Era) -> Any:
    if setup.tp == 1:
        data_mesh = run.mesh((setup.dp,), ("dp",))
    else:
        mesh = run.mesh((setup.dp, setup.tp), ("dp", "tp"))
        data_mesh = mesh["dp"]
        tensor_parallel(model, mesh["tp"])
    checkpoint(model, setup.checkpointing, era.engine)
    if setup.sharding == "fsdp1":
        return shard_flat(model, data_mesh)
    shard(model, data_mesh, era.engine)
    return model


def _load(model: Any, setup: Setup) -> Any:
    """Give the model memory, where sharding did not, and draw its weights in place."""
    if setup.sharding == "fsdp2":
        model.to_empty(device="gpu:0")
        with torch.no_grad():
            model.init_weights()
    return model.train()


def _step(model: Any, optimizer: Any, setup: Setup, era: Era) -> None:
    """Train on one batch, holding what the loop of the time held."""
    shape = (setup.micro_batch, setup.tokens)
    inputs, labels = (torch.zeros(shape, dtype=torch.long, device="gpu:0") for _ in range(2))
    optimizer.zero_grad()
    with loss_parallel() if setup.tp > 1 else contextlib.nullcontext():
        logits = model(inputs)
        if era.float_logits:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1))
        else:
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
        if not era.keeps_logits:
            del logits
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM, foreach=True)
    optimizer.step()
    torch.gpu.synchronize()  # the loop reads the loss


def _replay(recording: Recording, *, expandable: bool, setup: Setup | None) -> Replay:
    requests = dataclasses.replace(recording.requests(), cache_flushes=None)
    return replay(
        requests,
        settings=dataclasses.replace(PYTORCH_DEFAULTS, expandable_segments=expandable),
        capacity_bytes=None if setup is None else int(setup.usable_gib * GIB),
    )


def _owners(recording: Recording, event: int) -> tuple[tuple[str, int], ...]:
    """Add up what is alive at an event by class, operation and shape, the largest first."""
    totals: dict[str, int] = {}
    for row in recording.alive_at(event).tolist():
        shape, dtype = recording.shapes[recording.shape_dtype[row]]
        label = recording.items[recording.item[row]] or recording.ops[recording.op[row]]
        key = f"{label} {shape} {dtype}"
        totals[key] = totals.get(key, 0) + int(recording.num_bytes[row])
    return tuple(sorted(totals.items(), key=lambda x: -x[1])[:NUM_OWNERS])


# -- the command --


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One row beside its simulation.

    Attributes:
        id: The row.
        published_gib: What was published.
        simulated_gib: What the replay says.
        error: Simulated over published, less 1.
        simulated: The simulation in full.
    """

    id: str
    published_gib: float
    simulated_gib: float
    error: float
    simulated: Simulated


def compare(row: Row[Setup]) -> Line:
    """Simulate a row and put both numbers side by side."""
    simulated = simulate(row)
    gib = simulated.compared_bytes / GIB
    return Line(
        id=row.id,
        published_gib=row.published_gib,
        simulated_gib=round(gib, 3),
        error=round(gib / row.published_gib - 1, 5),
        simulated=simulated,
    )


def _print(line: Line) -> None:
    said = line.simulated
    print(
        f"{line.id:28s} {line.published_gib:7.2f} {line.simulated_gib:8.2f} {line.error:+8.1%}"
        f"{' !' if abs(line.error) > NEAR else '  '}  live {said.live_bytes / GIB:6.2f}"
        f"  native {said.native_bytes / GIB:6.2f}  expandable {said.expandable_bytes / GIB:6.2f}"
        f"  ({said.setting})",
        flush=True,
    )


def _chosen(argv: list[str] | None) -> tuple[argparse.Namespace, Iterator[Row[Setup]]]:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--row", help="id of one row")
    which.add_argument("--all", action="store_true", help="every row")
    parser.add_argument("--json", action="store_true", help="one object on one line per row")
    args = parser.parse_args(argv)
    rows = read_rows(ROWS, Setup)
    names = [row.id for row in rows]
    if args.row and args.row not in names:
        parser.error(f"no row {args.row!r}; there are: {', '.join(names)}")
    return args, (row for row in rows if args.all or row.id == args.row)


def main(argv: list[str] | None = None) -> int:
    """Compare the chosen rows and print them."""
    args, rows = _chosen(argv)
    for row in rows:
        line = compare(row)
        if args.json:
            print(msgspec.json.encode(line).decode(), flush=True)
        else:
            _print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
