"""Brimful beside its peers on the same work: ``python benchmarks/peers/run.py [--part PART]``.

Parts: ``simulator`` against PyTorch's MemTracker, ``estimator`` against other calculators,
``search`` against trying everything, ``loop`` against the HF Trainer. Each writes a file of its
own below ``--out``; ``--resume`` continues an interrupted run, the simulator's program by program.
The page is made by ``docs/generate_peers.py``.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "validation"), str(ROOT / "benchmarks")]

from peer_rows import (  # noqa: E402
    RESULT_SCHEMA,
    ROWS,
    Part,
    Result,
    partial_path,
    result_path,
    write_result,
)
from provenance import Watch, provenance  # noqa: E402

from brimful.hardware.probe import probe_local  # noqa: E402
from brimful.process.library_output import quiet_libraries  # noqa: E402

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description="compare Brimful with its peers")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--part", choices=list(ROWS), action="append", help="default: all")
    parser.add_argument("--quick", action="store_true", help="a few rows, to see the code run")
    parser.add_argument("--resume", action="store_true", help="leave out parts of this month")
    args = parser.parse_args()
    quiet_libraries()
    for part in args.part or list(ROWS):
        path = result_path(args.out, part, probe_local().description)
        if args.resume and path.is_file():
            print(f"{part}: {path.name} is there already")
            continue
        if not args.resume:
            partial_path(args.out, part).unlink(missing_ok=True)
        print(f"{part}: {_make(part, args.out, quick=args.quick).name}", flush=True)
    return 0


def _make(part: Part, folder: Path, *, quick: bool) -> Path:
    watch = Watch()
    rows, versions, notes = _run(part, folder, quick=quick)
    result = Result(
        schema=RESULT_SCHEMA,
        part=part,
        quick=quick,
        provenance=provenance(watch, seed=0),
        peer_versions=versions,
        rows=tuple(rows),
        notes=tuple(notes),
    )
    path = write_result(folder, result)
    partial_path(folder, part).unlink(missing_ok=True)
    return path


def _run(part: Part, folder: Path, *, quick: bool):  # type: ignore[no-untyped-def]  # noqa: ANN202 - rows differ by part
    import importlib

    keep = {"partial": partial_path(folder, part)} if part == "simulator" else {}
    return importlib.import_module(f"{part}_part").run(quick=quick, **keep)


if __name__ == "__main__":
    sys.exit(main())
