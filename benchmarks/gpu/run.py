"""One command: every case predicted, simulated and measured on this machine's GPU.

``python benchmarks/gpu/run.py --out validation/gpu/`` (see README.md). With ``--rehearse`` the same
code runs tiny cases with this machine's CPU in the GPU's place.
"""

import argparse
import datetime as dt
import os
import shlex
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, TypeVar

import machine
import msgspec
import summary
from cases import GPU_CASES, REHEARSAL_CASES, job_of, strategy_of
from rows import (
    ROW_SCHEMA,
    Case,
    Measured,
    Predicted,
    Row,
    Simulated,
    check_row,
    compare,
    read_rows,
    write_rows,
)
from worker import Request

from brimful.cost.estimate import estimate
from brimful.errors import BrimfulError, InputError, RunError
from brimful.hardware.cluster import Cluster, Device
from brimful.hardware.probe import probe_local

WORKER = Path(__file__).with_name("worker.py")
TOTAL_S = 480.0
CHILD_S = 100.0
"""The longest that one process may take; the largest case needs about half."""
MAX_SIMULATIONS = 4
Result = TypeVar("Result")


class Place(NamedTuple):
    """Where the harness runs and until when.

    Attributes:
        scratch: Folder for requests, results and this run's calibration.
        deadline_s: On ``time.monotonic``'s clock.
    """

    scratch: Path
    deadline_s: float


def main() -> int:
    """Run; returns 0, or 1 where a rung of a case is missing."""
    args = _arguments()
    if args.rehearse:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        # Tiny tensors: threads would wait for each other, most of all on a busy machine.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        with tempfile.TemporaryDirectory(prefix="brimful-gpu-") as scratch:
            os.environ["BRIMFUL_CACHE"] = scratch  # the user's own calibration stays as it is
            place = Place(Path(scratch), time.monotonic() + args.total_s)
            return _run(args, place)
    except BrimfulError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="predict, simulate and measure on this GPU")
    parser.add_argument("--out", type=Path, required=True, help="folder of the rows")
    parser.add_argument("--rehearse", action="store_true", help="tiny cases on the CPU")
    parser.add_argument("--cases", default="", help="only these, by name, with commas")
    parser.add_argument("--total-s", type=float, default=TOTAL_S, help="stop starting cases then")
    return parser.parse_args()


def _run(args: argparse.Namespace, place: Place) -> int:
    cases = _chosen(REHEARSAL_CASES if args.rehearse else GPU_CASES, args.cases)
    datasheet = probe_local()
    if (datasheet.kernels == "cuda") == args.rehearse:
        raise InputError(
            f"this machine offers {datasheet.description} with {datasheet.kernels} kernels and "
            f"torch {metadata.version('torch')}; give --rehearse where there is no CUDA GPU"
        )
    device = _calibrated(place, datasheet)
    path = args.out / f"{machine.slug(device.description)}-{_now():%Y-%m}.jsonl"
    kept = {row.case.name: row for row in read_rows(path)}
    simulations = _simulate_all(place, cases, device)
    done = []
    for case, simulated in zip(cases, simulations, strict=True):
        row = _row(place, case, (datasheet, device), simulated)
        done.append(row)
        # After every case, so that a run that is killed keeps what it has.
        kept[case.name] = row
        write_rows(path, kept.values())
        print(f"{case.name}: {'; '.join(row.failures) or 'done'}", flush=True)
    print("\n".join(["", *summary.lines(done), "", f"{len(done)} rows in {path}"]))
    return 1 if any(row.failures for row in done) else 0


def _chosen(cases: tuple[Case, ...], names: str) -> tuple[Case, ...]:
    wanted = [name for name in names.split(",") if name]
    known = {case.name: case for case in cases}
    for name in wanted:
        if name not in known:
            raise InputError(f"no case {name!r}; known: {', '.join(known)}")
    return tuple(known[name] for name in wanted) or cases


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _calibrated(place: Place, datasheet: Device) -> Device:
    """Measure the machine's rates; the datasheet's stand in where that fails."""
    request = Request(case=None, device=datasheet, used_before_bytes=0)
    device = _ask(place, "calibrate", request, Device)
    if isinstance(device, str):
        print(f"calibration: {device}; rates stay the datasheet's", flush=True)
        return datasheet
    print(f"{device.description}: {device.source}", flush=True)
    return device


def _simulate_all(place: Place, cases: tuple[Case, ...], device: Device) -> list[Simulated | str]:
    """Simulate the cases side by side, before anything is timed."""

    def one(case: Case) -> Simulated | str:
        request = Request(case=case, device=device, used_before_bytes=0)
        return _ask(place, "simulate", request, Simulated)

    num_workers = max(1, min(MAX_SIMULATIONS, (os.cpu_count() or 1) // 2))
    with ThreadPoolExecutor(num_workers) as pool:
        return list(pool.map(one, cases))


def _row(
    place: Place, case: Case, devices: tuple[Device, Device], simulated: Simulated | str
) -> Row:
    """Measure a case and put its rungs together; what failed is its reason, not a rung."""
    datasheet, device = devices
    predicted = _predict(case, datasheet, device)
    used = machine.gpu_used_bytes() if device.kernels == "cuda" else 0
    request = Request(case=case, device=device, used_before_bytes=used)
    measured = _ask(place, "measure", request, Measured)
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
            device=device,
            gpu=device.description,
            driver=machine.driver() if device.kernels == "cuda" else "",
            system=machine.system(),
            command=shlex.join(["python", *sys.argv]),
            commit=machine.commit(),
            date=_now().date().isoformat(),
        )
    )


def _predict(case: Case, datasheet: Device, device: Device) -> Predicted | str:
    job, strategy = job_of(case), strategy_of(case)
    try:
        said, by_datasheet = (estimate(job, _alone(d), strategy) for d in (device, datasheet))
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
    )


def _alone(device: Device) -> Cluster:
    return Cluster(name=device.name, device=device, num_devices=1, host_ram_bytes=0)


def _ask(place: Place, verb: str, request: Request, kind: type[Result]) -> Result | str:
    """Have a process do one piece of work; returns its result, or why there is none."""
    name = request.case.name if request.case else "machine"
    left_s = place.deadline_s - time.monotonic()
    if left_s <= 0:
        return "not run: the time for all cases was used up"
    asked, answered = (place.scratch / f"{name}.{verb}.{end}" for end in ("request", "result"))
    asked.write_bytes(msgspec.json.encode(request))
    limit_s = min(CHILD_S, left_s)
    try:
        _start([verb, str(asked), str(answered)], limit_s)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit_s:.0f} s, its limit"
    except RunError as error:
        return str(error)
    return msgspec.json.decode(answered.read_bytes(), type=kind)


def _start(arguments: list[str], limit_s: float) -> None:
    command = [sys.executable, str(WORKER), *arguments]
    done = subprocess.run(  # noqa: S603 - this Python, our own file
        command,
        env=_environment(arguments[0]),
        timeout=limit_s,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise RunError(f"exit code {done.returncode}: {said[-1] if said else 'no word'}"[:400])


def _environment(verb: str) -> dict[str, str]:
    paths = [str(machine.ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if verb == "simulate":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment


if __name__ == "__main__":
    raise SystemExit(main())
