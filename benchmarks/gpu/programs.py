"""Other people's kind of programs: simulated before anyone measures them, then measured.

``--simulate`` runs each script of ``programs/`` by ``brimful pretend`` and writes down what was
said; ``--measure`` runs each for real, unmodified, on this machine's GPU, in a process of its own,
and reads the allocator's counters when it has ended; ``--compare`` lays the two side by side. See
README.md of the folder.
"""

import argparse
import datetime as dt
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import machine
import msgspec

from brimful.files.writing import write_bytes
from brimful.units import GIB

FOLDER = Path(__file__).with_name("programs")
EVIDENCE = machine.ROOT / "validation" / "gpu"
SIMULATED = EVIDENCE / "programs-simulated.json"
MEASURED = EVIDENCE / "programs-nvidia-h200-2026-11.json"
SIMULATED_SCHEMA = "brimful.programs-simulated/1"
MEASURED_SCHEMA = "brimful.programs-measured/1"
PACKAGES = (
    "torch", "triton", "transformers", "accelerate", "peft", "trl", "bitsandbytes", "torchao",
    "liger-kernel", "flash-linear-attention", "fla-core", "datasets", "timm", "torchvision",
    "pytorch-lightning", "sentence-transformers", "diffusers", "deepspeed", "megatron-core",
    "torchtitan", "unsloth", "galore-torch", "nvidia-cudnn-cu13", "nvidia-cublas",
)  # fmt: skip
SIMULATE_S = 240.0
MEASURE_S = 90.0
TOTAL_S = 480.0
AT_ONCE = 4
SHARE = 0.85
"""Of the card: what scripts that run at the same time may be simulated to reserve."""
CONTEXT_BYTES = 2 * GIB
"""Added to each for context, kernels' code, and what is simulated too low."""
UNKNOWN_BYTES = 40 * GIB
"""What a script is taken to reserve that could not be simulated."""
ONE_PROCESS = (
    "ddp_bert", "deepspeed_fused_adam", "deepspeed_zero1", "deepspeed_zero2_offload",
    "deepspeed_zero3", "fsdp1_one", "fsdp2_offload", "fsdp2_one", "megatron_gpt",
    "torchtitan_compiled", "torchtitan_llama",
)  # fmt: skip
"""Scripts that make a process group of one."""
FLAGS = {
    **dict.fromkeys(ONE_PROCESS, ("--world-size", "1")),
    "trl_grpo": ("--assume-all-selected",),
}
"""Of ``brimful pretend``, which refuses these without: a process group that nobody launched; sizes
that hang on values."""
WORDS = 400
POLL_S = 0.05
_COUNTERS = {name: f"{name}_bytes.all.peak" for name in ("requested", "allocated", "reserved")}


class Simulated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``brimful pretend`` said of a script; None and a failure where it said nothing.

    Attributes:
        name: Of the script.
        flags: Of ``brimful pretend``, beside the card's.
        simulated_peak_requested_bytes: Of tensors as they were asked for.
        simulated_peak_allocated_bytes: In whole blocks: what ``max_memory_allocated`` counts.
        simulated_peak_reserved_bytes: Held from the driver.
        peak_phase: Where the first of them is.
        statement: The answer's first sentence.
        unknown_ops: Kernels whose memory was not known, with their calls.
        kernels_launched: Kernels beside PyTorch's that were followed, as told.
        kernels_missed: Packages of kernels that the script asked for and did not find, and those
            that were stood in for.
        assumptions: As told.
        failure: The last line of what went wrong; empty.
        seconds: Wall time, imports included.
        commit: Of the ``src`` that said it: the last that changed it.
    """

    name: str
    flags: tuple[str, ...] = ()
    simulated_peak_requested_bytes: int | None = None
    simulated_peak_allocated_bytes: int | None = None
    simulated_peak_reserved_bytes: int | None = None
    peak_phase: str = ""
    statement: str = ""
    unknown_ops: dict[str, int] = {}
    kernels_launched: tuple[str, ...] = ()
    kernels_missed: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    failure: str = ""
    seconds: float = 0.0
    commit: str = ""


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the allocator counted of a script; None where the script did not get so far.

    Attributes:
        name: Of the script.
        measured_peak_requested_bytes: ``requested_bytes.all.peak``.
        measured_peak_allocated_bytes: ``allocated_bytes.all.peak``, whole blocks.
        measured_peak_reserved_bytes: ``reserved_bytes.all.peak``.
        num_retries: Times that the allocator gave its cache back to find room.
        process_bytes: Of the process at its end, from ``nvidia-smi``; None where that shows none.
        card_used_bytes: Of the card at the script's end, by all that ran then.
        num_beside: Scripts that ran when it began, itself not counted.
        resets_peaks: Whether it reset these peaks itself, as some programs do to print those of
            their own: of the three only what is reserved is then that of the whole run.
        failure: The last line of what went wrong; empty.
        seconds: Of the script, imports of its own included, those of torch not.
        wall_s: Of the process.
    """

    name: str
    measured_peak_requested_bytes: int | None = None
    measured_peak_allocated_bytes: int | None = None
    measured_peak_reserved_bytes: int | None = None
    num_retries: int | None = None
    process_bytes: int | None = None
    card_used_bytes: int | None = None
    num_beside: int = 0
    resets_peaks: bool = False
    failure: str = ""
    seconds: float = 0.0
    wall_s: float = 0.0


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where rows were made; gpu and driver are what was pretended, or what was there."""

    gpu: str
    driver: str
    python: str
    system: str
    packages: tuple[str, ...]
    commit: str
    date: str
    command: str


class SimulatedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the pretend GPU said of every script."""

    schema: str
    environment: Environment
    rows: tuple[Simulated, ...]


class MeasuredFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every script took on a GPU."""

    schema: str
    environment: Environment
    rows: tuple[Measured, ...]


AnyFile = TypeVar("AnyFile", SimulatedFile, MeasuredFile)


class Running(NamedTuple):
    """A script that is being measured."""

    name: str
    process: subprocess.Popen[bytes]
    began_s: float
    num_beside: int
    reserved_bytes: int
    result: Path
    errors: Path


def main() -> int:
    """Run; returns 0, or 1 where a script has no figure."""
    args = _arguments()
    if args.child:
        return _child(Path(args.child[0]), Path(args.child[1]))
    names = _chosen(args.names)
    if args.simulate:
        return _simulate(names, args)
    if args.measure:
        return _measure(names, args)
    return _compare(names, args)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="other people's kind of programs")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--simulate", action="store_true", help="by brimful pretend; needs no GPU")
    what.add_argument("--measure", action="store_true", help="on this machine's GPU")
    what.add_argument("--compare", action="store_true", help="print both, and errors")
    what.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help="only these scripts")
    parser.add_argument(
        "--out", type=Path, help="where rows are written; default in validation/gpu"
    )
    parser.add_argument("--simulated", type=Path, default=SIMULATED, help="the simulations' file")
    parser.add_argument("--measured", type=Path, default=MEASURED, help="the measurements' file")
    parser.add_argument("--gpu", default="h200", help="what is pretended")
    parser.add_argument("--again", action="store_true", help="also scripts that have a figure")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help="scripts measured together")
    parser.add_argument("--room", type=float, default=SHARE, help="share of the card for them")
    parser.add_argument("--total-s", type=float, default=TOTAL_S, help="stop measuring then")
    parser.add_argument("--child-s", type=float, help="most of one script")
    return parser.parse_args()


def _chosen(wanted: Sequence[str]) -> list[str]:
    known = sorted(path.stem for path in FOLDER.glob("*.py"))
    wanted = [name for words in wanted for name in words.split(",") if name]
    for name in wanted:
        if name not in known:
            raise SystemExit(f"programs.py: no script {name!r}; known: {', '.join(known)}")
    return list(wanted) or known


# What the pretend GPU says


def _simulate(names: Sequence[str], args: argparse.Namespace) -> int:
    out = args.out or SIMULATED
    kept = {row.name: row for row in _rows(out, SimulatedFile)}
    environment = _environment(args.gpu, "")
    for name in names:
        if args.again or name not in kept or kept[name].failure:
            said = _simulated(name, args)
            row = kept[name] = msgspec.structs.replace(
                said, flags=FLAGS.get(name, ()), commit=machine.commit_of("src")
            )
            print(_simulated_line(row), flush=True)
            file = SimulatedFile(
                schema=SIMULATED_SCHEMA, environment=environment, rows=tuple(kept.values())
            )
            _write(out, file)
    return int(any(kept[name].failure for name in names))


def _simulated(name: str, args: argparse.Namespace) -> Simulated:
    limit_s = args.child_s or SIMULATE_S
    paths = [str(machine.ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)), "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    words = ["-m", "brimful", "pretend", "--gpu", args.gpu, *FLAGS.get(name, ()), "--json", "--"]
    words.append(str(FOLDER / f"{name}.py"))
    began = time.monotonic()
    try:
        done = subprocess.run(  # noqa: S603 - this Python, our own file
            [sys.executable, *words],
            env=environment, capture_output=True, text=True, timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Simulated(name=name, failure=f"stopped after {limit_s:.0f} s", seconds=limit_s)
    seconds = round(time.monotonic() - began, 1)
    # What the script prints comes before the answer, which starts on a line of its own.
    start = done.stdout.rfind('\n{\n "statement"') + 1
    try:
        said = json.loads(done.stdout[start:])
    except json.JSONDecodeError:
        return Simulated(name=name, failure=_why(done.stderr, done.returncode), seconds=seconds)
    return _read_answer(name, said, seconds)


def _read_answer(name: str, said: dict[str, Any], seconds: float) -> Simulated:
    beside = said["beside_torch"]
    unready = [("missed", each) for each in beside["missed"]]
    unready += [("stood in", each) for each in beside["stood_in"]]
    return Simulated(
        name=name,
        simulated_peak_requested_bytes=said["simulated_peak_allocated_bytes"],
        simulated_peak_allocated_bytes=said["simulated_peak_block_bytes"],
        simulated_peak_reserved_bytes=said["reserved"]["simulated_peak_reserved_bytes"],
        peak_phase=said["peak_phase"],
        statement=said["statement"],
        unknown_ops={each["op"]: each["num_calls"] for each in said["unknown_ops"]},
        kernels_launched=tuple(_brief(each) for each in beside["launched"]),
        kernels_missed=tuple(f"{how}: {_brief(each)}" for how, each in unready),
        assumptions=tuple(_brief(each) for each in said["assumptions"]),
        seconds=seconds,
    )


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("package") or value.get("name") or json.dumps(value)
    return str(value)[:WORDS]


def _simulated_line(row: Simulated) -> str:
    if row.failure:
        return f"{row.name:28s} {row.seconds:5.0f} s  FAILED {row.failure[:120]}"
    sizes = (
        row.simulated_peak_requested_bytes, row.simulated_peak_allocated_bytes,
        row.simulated_peak_reserved_bytes,
    )  # fmt: skip
    unknown = f"  unknown: {', '.join(row.unknown_ops)}" if row.unknown_ops else ""
    return f"{row.name:28s} {row.seconds:5.0f} s {' '.join(map(_gib, sizes))}{unknown}"


# What the GPU says


def _measure(names: Sequence[str], args: argparse.Namespace) -> int:
    out = args.out or MEASURED
    kept = {row.name: row for row in _rows(out, MeasuredFile)}
    expected = {
        row.name: row.simulated_peak_reserved_bytes for row in _rows(args.simulated, SimulatedFile)
    }
    environment = _environment(machine.gpu_query("name"), machine.driver())
    waiting = deque(name for name in names if args.again or name not in kept or kept[name].failure)
    room = args.room * int(machine.gpu_query("memory.total") or 0) * 2**20
    deadline = time.monotonic() + args.total_s
    running: list[Running] = []
    with tempfile.TemporaryDirectory(prefix="brimful-programs-") as scratch:
        while waiting or running:
            if time.monotonic() > deadline:
                waiting.clear()
            for name in _next(waiting, running, expected, (room, args.at_once)):
                waiting.remove(name)
                running.append(_started(name, Path(scratch), running, _needs(name, expected)))
            time.sleep(POLL_S)
            for one in list(running):
                limit_s = min(args.child_s or MEASURE_S, deadline - one.began_s)
                row = _ended(one, limit_s)
                if row is None:
                    continue
                running.remove(one)
                kept[row.name] = row
                print(_measured_line(row), flush=True)
                # After every script, so that a run that is killed keeps what it has.
                rows = tuple(kept.values())
                _write(
                    out, MeasuredFile(schema=MEASURED_SCHEMA, environment=environment, rows=rows)
                )
    left = [name for name in names if name not in kept or kept[name].failure]
    print(f"{len(names) - len(left)} of {len(names)} scripts are measured; rows in {out}")
    return int(bool(left))


def _needs(name: str, expected: dict[str, int | None]) -> int:
    return (expected.get(name) or UNKNOWN_BYTES) + CONTEXT_BYTES


def _next(
    waiting: Iterable[str],
    running: Sequence[Running],
    expected: dict[str, int | None],
    most: tuple[float, int],
) -> list[str]:
    """Choose what may begin beside what runs; alone, anything may."""
    room, at_once = most
    used, num, chosen = sum(one.reserved_bytes for one in running), len(running), []
    for name in waiting:
        needs = _needs(name, expected)
        if num == 0 or (num < at_once and used + needs <= room):
            chosen.append(name)
            used, num = used + needs, num + 1
    return chosen


def _started(name: str, scratch: Path, running: Sequence[Running], reserved: int) -> Running:
    result, errors = scratch / f"{name}.json", scratch / f"{name}.err"
    words = ["--child", str(FOLDER / f"{name}.py"), str(result)]
    paths = [str(machine.ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with errors.open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603 - this Python, our own file
            [sys.executable, str(Path(__file__).resolve()), *words],
            env=environment, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    return Running(name, process, time.monotonic(), len(running), reserved, result, errors)


def _ended(one: Running, limit_s: float) -> Measured | None:
    """Return a row of what has ended, or has had its time; None of what still runs."""
    wall_s = time.monotonic() - one.began_s
    code = one.process.poll()
    failure = ""
    if code is None:
        if wall_s < limit_s:
            return None
        os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()
        failure = f"stopped after {wall_s:.0f} s"
    said: dict[str, Any] = json.loads(one.result.read_bytes()) if one.result.exists() else {}
    if code and not said.get("failure"):
        failure = _why(one.errors.read_text(errors="replace"), code)
    said = {"failure": failure, **said} if not failure else {**said, "failure": failure}
    return Measured(name=one.name, num_beside=one.num_beside, wall_s=round(wall_s, 1), **said)


def _child(script: Path, result: Path) -> int:
    """Run a script as ``python SCRIPT`` would, then write down what the allocator counted."""
    import runpy
    import traceback

    import torch

    sys.argv = [str(script)]
    # As Python does for a script; this file's own neighbours are not the script's.
    sys.path[0] = str(script.parent)
    resets = _count_resets(torch.cuda)
    failure, began = "", time.monotonic()
    try:
        runpy.run_path(str(script), run_name="__main__")
        torch.cuda.synchronize()
    except SystemExit as ended:
        failure = f"exit code {ended.code}" if ended.code else ""
    except BaseException as error:  # noqa: BLE001 - whatever a script raises is its row
        traceback.print_exc()
        failure = f"{type(error).__name__}: {error}".strip().splitlines()[-1][:WORDS]
    said: dict[str, Any] = {"failure": failure, "seconds": round(time.monotonic() - began, 2)}
    if torch.cuda.is_initialized():
        stats = torch.cuda.memory_stats()
        said |= {f"measured_peak_{n}_bytes": stats.get(key) for n, key in _COUNTERS.items()}
        free, total = torch.cuda.mem_get_info()
        said |= {
            "num_retries": stats.get("num_alloc_retries"),
            "resets_peaks": bool(resets),
            "card_used_bytes": total - free,
            "process_bytes": machine.gpu_process_bytes(os.getpid()),
        }
    write_bytes(result, json.dumps(said).encode())
    return int(bool(failure))


def _count_resets(cuda: Any) -> list[None]:
    """Return a list that grows whenever the program lets peaks begin anew."""
    resets: list[None] = []
    for name in ("reset_peak_memory_stats", "reset_max_memory_allocated"):
        original = getattr(cuda, name)

        def reset(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            resets.append(None)
            return original(*args, **kwargs)

        setattr(cuda, name, reset)
    return resets


def _measured_line(row: Measured) -> str:
    sizes = (
        row.measured_peak_requested_bytes, row.measured_peak_allocated_bytes,
        row.measured_peak_reserved_bytes,
    )  # fmt: skip
    failed = f"  FAILED {row.failure[:100]}" if row.failure else ""
    return f"{row.name:28s} {row.seconds:5.1f} s {' '.join(map(_gib, sizes))}{failed}"


# Both


def _compare(names: Sequence[str], args: argparse.Namespace) -> int:
    said = {row.name: row for row in _rows(args.simulated, SimulatedFile)}
    found = {row.name: row for row in _rows(args.measured, MeasuredFile)}
    pair = f"{'simulated':>10s}{'measured':>10s}{'error':>9s}"
    print(f"{'GiB':25s}{'requested':>9s} | {'allocated':29s} | {'reserved':29s}")
    print(f"{'':25s}{'error':>9s} | {pair} | {pair}")
    for name in names:
        one, other = said.get(name, Simulated(name=name)), found.get(name, Measured(name=name))
        reasons = [
            f"{rung}: {row.failure[:60]}"
            for rung, row in (("simulated", one), ("measured", other))
            if row.failure
        ]
        if other.resets_peaks:
            reasons.append("it resets its peaks: only reserved compares")
        whole = _comparable(other)
        cells = (
            _error(one.simulated_peak_requested_bytes, whole.measured_peak_requested_bytes),
            _sizes(one.simulated_peak_allocated_bytes, whole.measured_peak_allocated_bytes),
            _sizes(one.simulated_peak_reserved_bytes, whole.measured_peak_reserved_bytes),
        )
        mark = "*" if one.unknown_ops else " "
        print(f"{name:24s}{mark}{' | '.join(cells)}  {'; '.join(reasons)}".rstrip())
    print(
        "* the memory of some kernels was not known; errors are (simulated - measured) / measured"
    )
    return 0


def _comparable(row: Measured) -> Measured:
    """Leave out what is not of the whole script: it failed, or reset its peaks itself."""
    live = dict.fromkeys(("measured_peak_requested_bytes", "measured_peak_allocated_bytes"))
    if row.failure:
        return Measured(name=row.name)
    return msgspec.structs.replace(row, **live) if row.resets_peaks else row


def _sizes(said: int | None, found: int | None) -> str:
    return f"{_gib(said):>10s}{_gib(found):>10s}{_error(said, found)}"


def _error(said: int | None, found: int | None) -> str:
    return f"{'-':>9s}" if said is None or not found else f"{said / found - 1:>+9.3%}"


def _gib(num_bytes: int | None) -> str:
    return f"{'-':>8s}" if num_bytes is None else f"{num_bytes / GIB:8.3f}"


def _environment(gpu: str, driver: str) -> Environment:
    return Environment(
        gpu=gpu,
        driver=driver,
        python=".".join(map(str, sys.version_info[:3])),
        system=machine.system(),
        packages=machine.versions_of(*PACKAGES),
        commit=machine.commit(),
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        command=shlex.join(["python", *sys.argv]),
    )


def _why(stderr: str, code: int) -> str:
    """Return the line that says what went wrong: the last of an error, before our own word."""
    told = [line.strip() for line in stderr.splitlines() if line.strip()]
    ours = told[-1] if told else f"exit code {code}, no word"
    raised = [line for line in told[:-1] if "Error: " in line or line.endswith("Error")]
    return (f"{raised[-1]} ({ours})" if raised and "see above" in ours else ours)[:WORDS]


def _rows(path: Path, kind: type[AnyFile]) -> tuple[Any, ...]:
    return msgspec.json.decode(path.read_bytes(), type=kind).rows if path.exists() else ()


def _write(path: Path, file: SimulatedFile | MeasuredFile) -> None:
    write_bytes(path, msgspec.json.format(msgspec.json.encode(file), indent=1) + b"\n")


if __name__ == "__main__":
    raise SystemExit(main())
