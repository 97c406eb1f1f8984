"""Flags that name what a verb writes: refused before the work where it cannot be written.

Every verb's ``-o``, ``--out`` and the like is one of these. A file goes into a folder that is
there; a folder of a run may be made.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.cli import parsing
from brimful.files.writing import check_output_file, check_output_folder

if TYPE_CHECKING:
    from brimful.hardware.cluster import Cluster
    from brimful.pretend.recording import Recording
    from brimful.show.summary import Fact

_RECORDED = (
    ("--snapshot", "a PyTorch memory snapshot for pytorch.org/memory_viz", (".pickle", ".pkl")),
    ("--perfetto", "a trace for ui.perfetto.dev", (".json",)),
    ("--tape", "every allocation and free, as NumPy columns", (".npz",)),
)


def output_file(what: str, *, suffixes: tuple[str, ...] = ()) -> Callable[[str], Path]:
    """Return an argparse type for a file that the verb writes: refused before the work, not after.

    ``suffixes``: what it may end in; empty: anything.
    """

    def parse(text: str) -> Path:
        found = parsing.path(what, suffixes=suffixes)(text)
        check_output_file(found, what=what)
        return found

    return parse


def output_folder(what: str) -> Callable[[str], Path]:
    """Return an argparse type for a folder that the verb makes, or adds its files to."""

    def parse(text: str) -> Path:
        found = parsing.path(what)(text)
        check_output_folder(found, what=what)
        return found

    return parse


def add_recording_files(parser: argparse.ArgumentParser) -> None:
    """Add the flags of what is written of a recording."""
    for flag, what, suffixes in _RECORDED:
        kind = output_file(flag, suffixes=suffixes)
        written = f"write {what} ({' or '.join(suffixes)})"
        parser.add_argument(flag, metavar="FILE", type=kind, help=written)


def written_facts(args: argparse.Namespace) -> "tuple[Fact, ...]":
    """Name the files that were written of a recording.

    ``args``: has the flags of ``add_recording_files``.
    """
    from brimful.show.summary import Fact

    found = ((getattr(args, flag.removeprefix("--")), what) for flag, what, _ in _RECORDED)
    return tuple(Fact("written", f"{path}: {what}") for path, what in found if path is not None)


def write_recording_files(
    args: argparse.Namespace,
    recording: "Recording",
    *,
    allocator: str,
    capacity_bytes: int | None,
) -> None:
    """Write the files that were asked for.

    ``args``: has the flags of ``add_recording_files``. ``allocator``: settings as
    ``PYTORCH_CUDA_ALLOC_CONF`` spells them. ``capacity_bytes``: what the device can give the
    allocator; None: anything.
    """
    if args.tape is not None:
        from brimful.pretend.tape_file import save_recording

        save_recording(recording, args.tape)
    if args.snapshot is None and args.perfetto is None:
        return
    from brimful.allocator.config import parse_settings
    from brimful.pretend.perfetto import write_trace
    from brimful.pretend.snapshot import write_snapshot

    settings = parse_settings(allocator)
    if args.snapshot is not None:
        write_snapshot(recording, args.snapshot, settings=settings, capacity_bytes=capacity_bytes)
    if args.perfetto is not None:
        write_trace(recording, args.perfetto, settings=settings, capacity_bytes=capacity_bytes)


def write_simulated_files(
    args: argparse.Namespace, recording: "Recording", cluster: "Cluster", *, allocator: str
) -> None:
    """Write the files that were asked for of a simulation, whose device has its own limit.

    ``args``: has the flags of ``add_recording_files``. ``cluster``: the device; a CPU has no
    caching allocator, and as much as is asked for. ``allocator``: settings as
    ``PYTORCH_CUDA_ALLOC_CONF`` spells them.
    """
    from brimful.cost.estimate import allocatable_bytes

    is_cuda = cluster.device.kernels == "cuda"
    capacity_bytes = allocatable_bytes(cluster.device) if is_cuda else None
    write_recording_files(args, recording, allocator=allocator, capacity_bytes=capacity_bytes)
