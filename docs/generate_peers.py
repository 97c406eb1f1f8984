"""Writes docs/peers.md and its picture from ``benchmarks/peers/results``.

``python docs/generate_peers.py``; every number on the page is of a result file, or counted from it.
"""

import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from peers_words import RESULTS, folded, made, ratio, result_of, table  # noqa: E402, I001 - says where the rest is
from comparison_rows import PeerRow  # noqa: E402
from evidence import read_evidence  # noqa: E402
from peer_rows import LoopRow, SearchRow, SimulatorRow, read_result  # noqa: E402
from peers_estimator import chart, estimator  # noqa: E402

from brimful.units import GIB, MIB  # noqa: E402

VALIDATION = HERE.parent / "validation"
SPEED_BAR, PEAK_BAR = 0.97, 1.02
"""Of ``validation/peers_part.py``."""
PAGE, PICTURE = HERE / "peers.md", HERE / "peers.svg"
BAR_FASTER = 20.0
"""The simulator's bar: this many times faster than MemTracker, on the 8B model."""
HEADLINE = "Llama 3.1 8B"
_HEAD = """# Beside other tools

Brimful beside its peers, on the same work. `python benchmarks/peers/run.py` makes the figures,
each part a file of `benchmarks/peers/results/` with versions, machine and command; this page is
generated from these by `python docs/generate_peers.py`, and a test keeps it up to date.
"""
_SIMULATOR = """## The simulator beside MemTracker

`torch.distributed._tools.mem_tracker` is PyTorch's own memory simulator. Two steps of one program,
a fresh process for every run, imports not timed, one thread. *pretend* runs the same text as
MemTracker on `brimful.pretend`, on CPU kernels too; *simulate* is `brimful simulate` of the same
job on an H200's, which traces few blocks and copies the tape to full depth. Wall seconds are the
best of the runs, with the slowest in brackets where there were several.
"""
_PEAKS = """### What they say the peak is

Small programs were run for real on the CPU, under the profiler, which sees every allocation and
free. Why MemTracker differs was looked into for the small Llama in fp32: under a plain fake mode
`transformers` cannot see that no attention mask is needed, makes one, gives up grouped key heads
and copies them to all heads. Two tensors of the model's width per block are the difference. The
pretend GPU keeps the values of integers, so that libraries go the way that they go in a real run.
The large programs were not run; why the two differ there, most under FSDP2, was not looked into.
Under FSDP2 MemTracker is given a model that was made whole, pretend one that was made on `meta`.
"""


def main() -> None:
    """Write the page and the picture."""
    PAGE.write_text(page(), encoding="utf-8")
    PICTURE.write_text(chart(), encoding="utf-8")


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD, *_simulator(), *estimator(PICTURE.name), *_search(), *_loop(), ""]
    return "\n".join(parts).replace("\n\n\n", "\n\n")


def _simulator() -> Iterator[str]:
    result = result_of("simulator")
    rows = {(row.program, row.tool): row for row in cast("tuple[SimulatorRow, ...]", result.rows)}
    programs = list(dict.fromkeys(name for name, _ in rows))
    yield _SIMULATOR
    yield _headline(rows)
    yield ""
    head = ["program", "MemTracker", "pretend", "times", "simulate", "times", "resident"]
    yield table(head, [_times(name, rows) for name in programs])
    yield ""
    yield from _failures(rows.values())
    yield _PEAKS
    head = ["program", "measured", "pretend", "error", "MemTracker", "error"]
    yield table(head, [_peaks(name, rows) for name in programs])
    yield ""
    yield made(result)
    yield ""


Tools = dict[tuple[str, Any], SimulatorRow]


def _headline(rows: Tools) -> str:
    faster = _faster(rows, HEADLINE, "simulate")
    state = "met" if faster and faster >= BAR_FASTER else "missed"
    told = "unknown" if faster is None else f"{faster:.0f} times"
    return folded(
        f"**{HEADLINE}: simulate is {told} faster than MemTracker** (bar: {BAR_FASTER:.0f} "
        f"times, {state}); of the same text on the pretend GPU, every block traced, "
        f"{ratio(_faster(rows, HEADLINE, 'pretend'))}."
    )


def _faster(rows: Tools, name: str, tool: str) -> float | None:
    ours, theirs = rows.get((name, tool)), rows.get((name, "mem_tracker"))
    if ours is None or theirs is None or not ours.wall_s or not theirs.wall_s:
        return None
    return min(theirs.wall_s) / min(ours.wall_s)


def _times(name: str, rows: Tools) -> list[str]:
    ours, theirs = rows[name, "pretend"], rows[name, "mem_tracker"]
    resident = [row.rss_bytes for row in (theirs, ours)]
    return [
        name,
        _wall(theirs),
        _wall(ours),
        ratio(_faster(rows, name, "pretend")),
        _wall(rows.get((name, "simulate"))),
        ratio(_faster(rows, name, "simulate")),
        " / ".join("-" if size is None else f"{size / GIB:.2f}" for size in resident) + " GiB",
    ]


def _wall(row: SimulatorRow | None) -> str:
    if row is None:
        return "-"
    if not row.wall_s:
        return "fails"
    slowest = f" ({max(row.wall_s):.2f})" if len(row.wall_s) > 1 else ""
    return f"{min(row.wall_s):.2f}{slowest} s"


def _failures(rows: Iterable[SimulatorRow]) -> Iterator[str]:
    for row in rows:
        if row.reason:
            yield folded(f"{row.tool} on {row.program} fails: `{row.reason}`")
            yield ""


def _peaks(name: str, rows: Tools) -> list[str]:
    real, ours, theirs = (rows.get((name, tool)) for tool in ("real", "pretend", "mem_tracker"))
    truth = real.peak_bytes if real else None
    return [name, _mib(truth), *_against(ours, truth), *_against(theirs, truth)]


def _against(row: SimulatorRow | None, truth: int | None) -> tuple[str, str]:
    said = row.peak_bytes if row else None
    error = f"{said / truth - 1:+.2%}" if said and truth else "-"
    return _mib(said), error


def _mib(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / MIB:,.1f} MiB"


def _search() -> Iterator[str]:
    result = result_of("search")
    rows = cast("tuple[SearchRow, ...]", result.rows)
    drawn = [row for row in rows if row.space.startswith("drawn")]
    others = [row for row in rows if not row.space.startswith("drawn")]
    tried = [row for row in rows if row.num_tried]
    same = sum(bool(row.same_winner and row.same_count) for row in tried)
    yield "## The search beside trying everything"
    yield ""
    yield folded(
        f"The search of `brimful plan` evaluates strategies as arrays. Beside it every strategy is "
        f"estimated by itself; both share the estimate and what may be chosen. "
        f"**In {same} of {len(tried)} spaces both find the same peak and step time among as many "
        f"strategies.** One search each, on one core; the test suite compares spaces of up to 8 "
        f"devices and pipelines (`tests/search`)."
    )
    yield ""
    head = ["space", "devices", "strategies", "search", "one by one", "times", "same winner"]
    yield table(head, [_drawn_line(drawn), *(_search_line(row) for row in others)])
    yield ""
    yield folded("Where nothing stands under *one by one* there are too many to be tried so.")
    yield ""
    yield made(result)
    yield ""


def _drawn_line(rows: Sequence[SearchRow]) -> list[str]:
    devices = sorted({row.num_devices for row in rows})
    search_s = sum(row.search_s for row in rows)
    alone_s = sum(row.exhaustive_s or 0.0 for row in rows)
    return [
        f"{len(rows)} drawn, small Llamas", f"{devices[0]} to {devices[-1]}",
        f"{sum(row.num_costed for row in rows):,}", f"{search_s:.2f} s", f"{alone_s:.1f} s",
        ratio(alone_s / search_s), f"{sum(bool(r.same_winner) for r in rows)} of {len(rows)}",
    ]  # fmt: skip


def _search_line(row: SearchRow) -> list[str]:
    alone = row.exhaustive_s
    return [
        row.space, f"{row.num_devices:,}", f"{row.num_costed:,}", f"{row.search_s:.2f} s",
        "-" if alone is None else f"{alone:.1f} s",
        ratio(alone / row.search_s if alone else None),
        "-" if row.same_winner is None else "yes" if row.same_winner else "**no**",
    ]  # fmt: skip


_LOOP_HEAD = [
    "settings", "pairs", "tokens/s", "theirs", "ratio", "peak", "loss apart", "others' load",
]  # fmt: skip


def _loop() -> Iterator[str]:
    """Say what the evidence says, made on a quiet machine, and what a short form says here."""
    evidence = read_evidence("hf_trainer", VALIDATION)
    rows = cast("tuple[PeerRow, ...]", evidence.rows)
    how = evidence.provenance
    yield "## The loop beside the HF Trainer"
    yield ""
    yield folded(
        "The same weights, rows, order, types, optimizer, clip and schedule, a process for each "
        "run, ours and theirs by turns; a Llama of 6 blocks on a CPU. The last line is each at its "
        f"best under one limit of memory. Evidence of {how.date} on {how.machine.cpu}, by "
        f"`{how.command}`; bars are {SPEED_BAR} x the tokens per second and {PEAK_BAR} x the peak."
    )
    yield ""
    yield table(_LOOP_HEAD, [_loop_line(_settings(row), row) for row in rows])
    yield ""
    result = read_result(RESULTS, "loop")
    if result is None:
        return
    short = cast("tuple[LoopRow, ...]", result_of("loop").rows)
    yield "The short form of it, `python benchmarks/peers/run.py --part loop`:"
    yield ""
    yield table(_LOOP_HEAD, [_loop_line(row.settings, row) for row in short])
    yield ""
    yield from (f"- {note}" for note in result.notes)
    yield ""
    yield made(result)


def _settings(row: PeerRow) -> str:
    job, strategy = row.case.job, row.case.strategy
    again = "" if strategy.activation_checkpointing == "none" else ", checkpointed"
    best = "" if row.settings == "same" else "each at its best: "
    return f"{best}{job.method} {job.precision}{again}"


def _loop_line(settings: str, row: LoopRow | PeerRow) -> list[str]:
    ours, theirs = map(statistics.median, (row.tokens_per_s, row.peer_tokens_per_s))
    return [
        settings, str(len(row.tokens_per_s)), f"{ours:,.0f}", f"{theirs:,.0f}",
        f"{row.speed_ratio:.3f} x", f"{row.peak_ratio:.3f} x", f"{row.loss_error:.0e}",
        f"{row.others_load:.0%}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
