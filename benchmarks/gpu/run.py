"""One command: every case predicted, simulated and measured on this machine's GPU.

``python benchmarks/gpu/run.py --out validation/gpu/`` (see README.md), for eight minutes; the next
call goes on with the cases that have no row yet. With ``--rehearse`` the same code runs tiny cases
with this machine's CPU in the GPU's place; ``--plan GPU`` simulates without any.
"""

import argparse
import datetime as dt
import multiprocessing
import os
import shlex
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import machine
import msgspec
import summary
from cases import GPU_CASES, REHEARSAL_CASES, job_of, strategy_of
from peers import PACKAGES, PEER_CASES
from planned import lines as planned_lines
from planned import planned_of, read_planned, write_planned
from rows import (
    DOES_NOT_FIT,
    LATER,
    ROW_SCHEMA,
    Case,
    Environment,
    Measured,
    PeerRun,
    Predicted,
    Row,
    Simulated,
    check_row,
    compare,
    is_whole,
    read_document,
    read_rows,
    said_anew,
    write_rows,
)
from worker import Request, alone, do_and_log

from brimful.cost.estimate import allocatable_bytes, estimate
from brimful.cost.reserved import predicted_reserved
from brimful.errors import BrimfulError, InputError
from brimful.hardware.cluster import Device
from brimful.hardware.gpus import load_cluster
from brimful.hardware.probe import probe_local
from brimful.units import format_bytes

FORKS = multiprocessing.get_context("forkserver")
"""Every piece of work has a process of its own; all of them begin as forks of one that has imported
what takes long and has not touched a GPU."""
TOTAL_S = 480.0
OUT = machine.ROOT / "validation" / "gpu"
CHILD_S = 100.0
"""The longest that one process may take unless told; alone the largest case needs about half."""
MAX_SIMULATIONS = 4
"""At once, beside what is measured: niced, and on a quarter of the cores at most, so that the one
that launches kernels is not waited for."""
CLEARLY = 1.05
"""A case is not tried where it is simulated to take this many times what the GPU has."""
ROOM = 0.85
"""Of the GPU: what cases that are measured at the same time may be planned to take."""
CONTEXT_BYTES = 2**30
"""Of each of them: what its process takes beside tensors, and what is planned too low."""
UNKNOWN_BYTES = 40 * 2**30
"""What a case is taken to hold that was never simulated."""
Result = TypeVar("Result")


class Place(NamedTuple):
    """Where the harness runs and until when.

    Attributes:
        scratch: Folder for requests, results and this run's calibration.
        deadline_s: On ``time.monotonic``'s clock.
        child_s: The longest that one process may take.
        only_measures: Whether simulations and other trainers are left for another call.
        at_once: Cases that are measured at the same time; of several, memory alone.
        room: Share of the GPU that these may take.
    """

    scratch: Path
    deadline_s: float
    child_s: float
    only_measures: bool
    at_once: int
    room: float


def main() -> int:
    """Run; returns 0, or 1 where a case is left or was not measured."""
    args = _arguments()
    if args.rehearse:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        # Tiny tensors: threads would wait for each other, most of all on a busy machine.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # which does not touch it
    FORKS.set_forkserver_preload(["preloaded"])
    try:
        with tempfile.TemporaryDirectory(prefix="brimful-gpu-") as scratch:
            os.environ["BRIMFUL_CACHE"] = scratch  # the user's own calibration stays as it is
            deadline_s = time.monotonic() + args.total_s
            place = Place(
                Path(scratch), deadline_s, args.child_s, args.only_measure, args.at_once, args.room,
            )  # fmt: skip
            return _run(args, place)
    except BrimfulError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="predict, simulate and measure on this GPU")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the rows")
    parser.add_argument("--rehearse", action="store_true", help="tiny cases on the CPU")
    parser.add_argument("--list", action="store_true", help="say which cases there are; no more")
    parser.add_argument("--plan", default="", metavar="GPU", help="simulate for it; needs none")
    parser.add_argument(
        "--only-measure", action="store_true",
        help="no simulations and no other trainers: for a GPU whose minutes are counted",
    )  # fmt: skip
    parser.add_argument(
        "--at-once", type=int, default=1, metavar="N",
        help="with --only-measure, this many cases share the GPU, as far as planned.json says that "
        "they fit: the memory of each, and no times",
    )  # fmt: skip
    parser.add_argument("--room", type=float, default=ROOM, help="share of the GPU for them")
    parser.add_argument(
        "--complete", type=Path, metavar="FILE", help="predict and simulate its rows; needs no GPU"
    )
    parser.add_argument("--again", action="store_true", help="also cases that have a row")
    parser.add_argument("--cases", default="", help="only these, by name, with commas")
    parser.add_argument("--total-s", type=float, default=TOTAL_S, help="stop starting cases then")
    parser.add_argument("--child-s", type=float, default=CHILD_S, help="most of one process")
    return parser.parse_args()


def _run(args: argparse.Namespace, place: Place) -> int:
    cases = _chosen(REHEARSAL_CASES if args.rehearse else GPU_CASES, args.cases)
    if args.list:
        print("\n".join(planned_lines(cases, read_planned())))
        return 0
    if args.plan:
        return _plan(cases, place, args)
    if args.complete:
        return _complete(args.complete, place, again=args.again)
    if args.at_once > 1 and not args.only_measure:
        raise InputError(f"--at-once {args.at_once} measures memory alone; add --only-measure")
    datasheet = probe_local()
    if (datasheet.kernels == "cuda") == args.rehearse:
        raise InputError(
            f"this machine offers {datasheet.description} with {datasheet.kernels} kernels and "
            f"torch {metadata.version('torch')}; give --rehearse where there is no CUDA GPU"
        )
    path = args.out / f"{machine.slug(datasheet.description)}-{_now():%Y-%m}.json"
    kept = {row.case.name: row for row in read_rows(path)}
    pending = [case for case in cases if args.again or not _has_row(case, kept)]
    left = _climb(pending, datasheet, place, (path, kept)) if pending else 0
    done = [kept[case.name] for case in cases if case.name in kept]
    print("\n".join(["", *summary.lines(done), "", f"{len(done)} rows in {path}"]))
    if left:
        print(f"{left} cases are left; run the same again to go on")
    return 1 if left or not all(map(is_whole, done)) else 0


def _has_row(case: Case, kept: dict[str, Row]) -> bool:
    return case.name in kept and kept[case.name].case == case and is_whole(kept[case.name])


def _climb(
    pending: Sequence[Case], datasheet: Device, place: Place, file: tuple[Path, dict[str, Row]]
) -> int:
    """Take cases up the ladder until time is up; returns how many are left."""
    path, kept = file
    device = _known_rates(kept.values(), datasheet) or _calibrated(place, datasheet)
    request = Request(case=None, device=device, used_before_bytes=0)
    found = _ask(place, "environment", request, Environment)
    environment = None if isinstance(found, str) else found
    if place.at_once > 1:
        return _share(pending, (datasheet, device), place, file, environment)
    num_done = 0
    for case, simulated in _simulated_ahead(place, pending, device):
        if time.monotonic() >= place.deadline_s:
            break
        start_s = time.monotonic()
        row = kept[case.name] = _row(place, case, (datasheet, device), simulated)
        # After every case, so that a run that is killed keeps what it has.
        write_rows(path, kept.values(), environment)
        num_done += 1
        took_s = time.monotonic() - start_s
        print(f"{case.name}: {'; '.join(row.failures) or 'done'} ({took_s:.0f} s)", flush=True)
    return len(pending) - num_done


def _share(
    pending: Sequence[Case],
    devices: tuple[Device, Device],
    place: Place,
    file: tuple[Path, dict[str, Row]],
    environment: Environment | None,
) -> int:
    """Measure several cases at a time, as many as fit; returns how many are left."""
    path, kept = file
    waiting, running = deque(pending), dict[Future[Row], tuple[Case, int]]()
    room_bytes = int(place.room * devices[0].usable_bytes)
    with ThreadPoolExecutor(place.at_once) as pool:
        while waiting or running:
            if time.monotonic() >= place.deadline_s:
                waiting.clear()
            used = sum(num_bytes for _, num_bytes in running.values())
            for case in list(waiting):
                needed = _reserved_bytes(case)
                if running and (len(running) >= place.at_once or used + needed > room_bytes):
                    continue
                waiting.remove(case)
                used += needed
                running[pool.submit(_row, place, case, devices, LATER)] = case, needed
            for done in wait(running, timeout=1, return_when=FIRST_COMPLETED).done:
                case, _ = running.pop(done)
                row = kept[case.name] = done.result()
                write_rows(path, kept.values(), environment)
                print(f"{case.name}: {'; '.join(row.failures)}", flush=True)
    return sum(case.name not in kept for case in pending)


def _reserved_bytes(case: Case) -> int:
    """Return what a case is taken to hold of the GPU, the process's own included."""
    planned = read_planned().get(case.name)
    reserved = planned.simulated_peak_reserved_bytes if planned else None
    return (reserved or UNKNOWN_BYTES) + CONTEXT_BYTES


def _plan(cases: Sequence[Case], place: Place, args: argparse.Namespace) -> int:
    """Simulate cases for a GPU that need not be there, and write down what they take."""
    device = load_cluster(args.plan, memory_limit_bytes=None).device
    known = read_planned()
    pending = [case for case in cases if args.again or case.name not in known]
    for case, simulated in _simulated_ahead(place, pending, device):
        if time.monotonic() >= place.deadline_s:
            break
        known[case.name] = planned_of(case, device, simulated)
        write_planned(known)
        print(f"{case.name}: {simulated if isinstance(simulated, str) else 'done'}", flush=True)
    left = [case for case in cases if case.name not in known]
    print(f"{len(cases) - len(left)} of {len(cases)} cases are simulated")
    return 1 if left else 0


def _complete(path: Path, place: Place, *, again: bool) -> int:
    """Predict rows anew, and simulate what was only measured, with the PyTorch that measured."""
    document = read_document(path)
    kept = {row.case.name: row for row in document.rows}
    measured = [row for row in document.rows if row.measured]
    if not measured:
        raise InputError(f"{path} has no row that was measured; measure first")
    said = set(machine.versions_of("torch", "transformers"))
    for row in measured:
        if row.measured and not said <= set(row.measured.versions):
            raise InputError(
                f"{row.case.name} was measured with {', '.join(row.measured.versions)}; here are "
                f"{', '.join(sorted(said))}"
            )
    pending = [row.case for row in measured if again or row.simulated is None]
    known = [(row.case, row.simulated) for row in measured if row.simulated and not again]
    simulated_now = _simulated_ahead(place, pending, document.rows[0].device)
    for case, simulated in chain(simulated_now, known):
        if time.monotonic() >= place.deadline_s:
            break
        old = kept[case.name]
        predicted = _predict(place, case, (_datasheet(old.device), old.device))
        row = kept[case.name] = said_anew(old, predicted, simulated, machine.commit())
        write_rows(path, kept.values(), document.environment)
        print(f"{case.name}: {'; '.join(row.failures) or 'done'}", flush=True)
    print("\n".join(["", *summary.lines(list(kept.values()))]))
    return 1 if any(row.simulated is None and row.measured for row in kept.values()) else 0


def _datasheet(device: Device) -> Device:
    """Return what was known of a calibrated GPU before it was measured; of a CPU nothing was."""
    if device.kernels != "cuda":
        return msgspec.structs.replace(device, calibrated=False)
    name = machine.slug(device.description).removeprefix("nvidia-")
    known = load_cluster(name, memory_limit_bytes=None).device
    return msgspec.structs.replace(
        device,
        matrix_flops_per_s=known.matrix_flops_per_s,
        memory_bytes_per_s=known.memory_bytes_per_s,
        copy_bytes_per_s=known.copy_bytes_per_s,
        op_overhead_s=known.op_overhead_s,
        calibrated=False,
        source=known.source,
    )


def _chosen(cases: tuple[Case, ...], names: str) -> tuple[Case, ...]:
    wanted = [name for name in names.split(",") if name]
    known = {case.name: case for case in cases}
    for name in wanted:
        if name not in known:
            raise InputError(f"no case {name!r}; known: {', '.join(known)}")
    return tuple(known[name] for name in wanted) or cases


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _known_rates(rows: Iterable[Row], datasheet: Device) -> Device | None:
    """Return the rates that rows of this GPU were predicted with: a file has them once."""
    found = (row.device for row in rows if row.device.calibrated)
    return next((one for one in found if one.description == datasheet.description), None)


def _calibrated(place: Place, datasheet: Device) -> Device:
    """Measure the machine's rates; the datasheet's stand in where that fails."""
    request = Request(case=None, device=datasheet, used_before_bytes=0)
    device = _ask(place, "calibrate", request, Device)
    if isinstance(device, str):
        print(f"calibration: {device}; rates stay the datasheet's", flush=True)
        return datasheet
    print(f"{device.description}: {device.source}", flush=True)
    return device


def _simulated_ahead(
    place: Place, cases: Sequence[Case], device: Device
) -> Iterator[tuple[Case, Simulated | str]]:
    """Yield cases with their simulations, of which the next few are on their way meanwhile."""

    def one(case: Case) -> Simulated | str:
        if place.only_measures:
            return LATER
        request = Request(case=case, device=device, used_before_bytes=0)
        return _ask(place, "simulate", request, Simulated)

    num_workers = max(1, min(MAX_SIMULATIONS, (os.cpu_count() or 1) // 4))
    coming: deque[tuple[Case, Future[Simulated | str]]] = deque()
    waiting = deque(cases)
    with ThreadPoolExecutor(num_workers) as pool:
        try:
            while waiting or coming:
                while waiting and len(coming) <= num_workers:
                    case = waiting.popleft()
                    coming.append((case, pool.submit(one, case)))
                case, simulation = coming.popleft()
                yield case, simulation.result()
        finally:
            for _, simulation in coming:
                simulation.cancel()


def _row(
    place: Place, case: Case, devices: tuple[Device, Device], simulated: Simulated | str
) -> Row:
    """Measure a case and put its rungs together; what failed is its reason, not a rung."""
    device = devices[1]
    predicted = _predict(place, case, devices)
    used = machine.gpu_used_bytes() if device.kernels == "cuda" else 0
    request = Request(case=case, device=device, used_before_bytes=used, is_alone=place.at_once == 1)
    too_large = _too_large(case, simulated, device)
    measured = too_large or _ask(place, "measure", request, Measured)
    others = _others(place, case, request) if not too_large else {}
    rungs = {"predicted": predicted, "simulated": simulated, "measured": measured}
    failures = [f"{name}: {rung}" for name, rung in rungs.items() if isinstance(rung, str)]
    first = None if isinstance(predicted, str) else predicted
    second = None if isinstance(simulated, str) else simulated
    third = None if isinstance(measured, str) else measured
    return check_row(
        Row(
            schema=ROW_SCHEMA,
            case=case,
            predicted=first,
            simulated=second,
            measured=third,
            errors=compare(first, second, third),
            failures=tuple(failures),
            peers=tuple(one for one in others.values() if not isinstance(one, str)),
            absent=tuple(f"{name}: {one}" for name, one in others.items() if isinstance(one, str)),
            device=device,
            gpu=device.description,
            driver=machine.driver() if device.kernels == "cuda" else "",
            system=machine.system(),
            command=shlex.join(["python", *sys.argv]),
            commit=machine.commit(),
            date=_now().date().isoformat(),
        )
    )


def _others(place: Place, case: Case, request: Request) -> dict[str, PeerRun | str]:
    """Have other trainers do the same, where the case is one for them."""
    if case.name not in PEER_CASES or place.only_measures:
        return {}
    return {name: _ask(place, name, request, PeerRun) for name in PACKAGES}


def _too_large(case: Case, simulated: Simulated | str, device: Device) -> str:
    """Say why a case is not even tried; empty where it is."""
    if device.kernels != "cuda":
        return ""
    if isinstance(simulated, str):
        planned = read_planned().get(case.name)
        peak = planned.simulated_peak_allocated_bytes or 0 if planned else 0
    else:
        peak = simulated.simulated_peak_allocated_bytes
    capacity = allocatable_bytes(device)
    if peak <= CLEARLY * capacity:
        return ""
    return f"{DOES_NOT_FIT}: {format_bytes(peak)} of {format_bytes(capacity)}"


def _predict(place: Place, case: Case, devices: tuple[Device, Device]) -> Predicted | str:
    """Predict a case; what its formula lacks is traced first, but on a GPU's minutes."""
    datasheet, device = devices
    job, strategy = job_of(case), strategy_of(case)
    if not place.only_measures:
        request = Request(case=case, device=device, used_before_bytes=0)
        _ask(place, "trace", request, bool)  # where it fails, estimate says what lacks
    try:
        said, by_datasheet = (estimate(job, alone(d), strategy) for d in (device, datasheet))
        replayed = predicted_reserved(job, alone(device), strategy)
    except BrimfulError as error:
        return str(error)
    return Predicted(
        predicted_peak_allocated_bytes=said.predicted_peak_allocated_bytes,
        predicted_phases=said.phases,
        predicted_items=said.items,
        predicted_peak_reserved_bytes=said.predicted_peak_reserved_bytes,
        predicted_process_bytes=said.predicted_process_bytes,
        predicted_step_s=said.predicted_step_s,
        predicted_step_band_s=said.predicted_step_band_s,
        predicted_datasheet_step_s=by_datasheet.predicted_step_s,
        usable_bytes=said.usable_bytes,
        fits=said.fits,
        predicted_replayed_bytes=replayed.predicted_peak_reserved_bytes if replayed else None,
    )


def _ask(place: Place, verb: str, request: Request, kind: type[Result]) -> Result | str:
    """Have a process do one piece of work; returns its result, or why there is none."""
    name = machine.slug(request.case.name) if request.case else "machine"
    left_s = place.deadline_s - time.monotonic()
    if left_s <= 0:
        return "not run: the time for all cases was used up"
    asked, answered = (place.scratch / f"{name}.{verb}.{end}" for end in ("request", "result"))
    asked.write_bytes(msgspec.json.encode(request))
    limit_s = min(place.child_s, left_s)
    if why := _failure(verb, (asked, answered), limit_s):
        return why
    return msgspec.json.decode(answered.read_bytes(), type=kind)


def _failure(verb: str, files: tuple[Path, Path], limit_s: float) -> str:
    """Have a process do the work of ``files``; returns why it did not, empty where it did."""
    log = files[1].with_suffix(".log")
    process = FORKS.Process(target=do_and_log, args=(verb, *map(str, files), str(log)))
    process.start()
    process.join(limit_s)
    if process.is_alive():
        process.kill()
        process.join()
        return f"stopped after {limit_s:.0f} s, its limit"
    if not process.exitcode:
        return ""
    text = log.read_text("utf-8") if log.exists() else ""
    said = [line.strip() for line in text.splitlines() if line.strip()]
    return f"exit code {process.exitcode}: {said[-1] if said else 'no word'}"[:400]


if __name__ == "__main__":
    raise SystemExit(main())
