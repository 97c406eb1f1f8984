"""One process's work: calibrate this machine, simulate a case, or measure it.

The work is one of ``WORK``; request and result are JSON files. A process of its own, so that
running out of memory ends one rung of one case, and so that no rung sees another.
"""

import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import machine
import msgspec
from cases import NUM_METERED_STEPS, NUM_TIMED_STEPS, job_of, strategy_of
from peers import PACKAGES, run_peer
from rows import Case, Environment, Measured, PeerRun, PhaseCounters, Simulated

from brimful.errors import RunError
from brimful.files.writing import write_bytes
from brimful.hardware.cluster import Cluster, Device
from brimful.process.library_output import quiet_libraries
from brimful.values.plan import PhasePeak

if TYPE_CHECKING:
    from brimful.build.batch import Batch
    from brimful.build.program import Program
    from brimful.measure.meter import Meter
    from brimful.pretend.recording import Recording
    from brimful.values.job import Job
    from brimful.values.strategy import Strategy

FUSED_ATTENTION = "aten::_scaled_dot_product_"


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a worker is asked.

    Attributes:
        case: Which case; None where calibrating.
        device: The machine's device as the GPU's owner sees it.
        used_before_bytes: Of the GPU's memory, before this process began.
        is_alone: Whether nobody else uses the GPU meanwhile; else no step is timed.
    """

    case: Case | None
    device: Device
    used_before_bytes: int
    is_alone: bool = True


def do_and_log(verb: str, request_path: str, result_path: str, log_path: str) -> None:
    """Do one piece of work and write its result; a failure ends in a traceback, in the log."""
    with Path(log_path).open("wb") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    if verb in {"trace", "simulate"}:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.nice(10)
    quiet_libraries()
    request = msgspec.json.decode(Path(request_path).read_bytes(), type=Request)
    write_bytes(Path(result_path), msgspec.json.encode(WORK[verb](request)))


def alone(device: Device) -> Cluster:
    """Return the cluster of one device."""
    return Cluster(name=device.name, device=device, num_devices=1, host_ram_bytes=0)


def calibrate(request: Request) -> Device:
    """Measure this machine's rates; in a rehearsal by steps as tiny as its cases are."""
    from brimful.measure.calibrate import calibrate as measure_rates
    from brimful.measure.kernels import Block

    tiny = (Block(2, 64, 64, 128, 2, 256),) if request.device.kernels == "cpu" else ()
    return measure_rates(request.device, on_progress=lambda _stage, _share: None, blocks=tiny)


def environment(request: Request) -> Environment:
    """Say what the machine is and what is installed."""
    import psutil
    import torch

    from brimful.process.versions import versions

    has_gpu = request.device.kernels == "cuda"
    return Environment(
        gpu=request.device.description,
        memory=machine.gpu_query("memory.total") if has_gpu else "",
        driver=machine.driver() if has_gpu else "",
        clocks=machine.gpu_query("clocks.max.sm,clocks.max.mem,power.limit,ecc.mode.current")
        if has_gpu
        else "",
        cuda=str(torch.version.cuda or ""),
        cudnn=str(torch.backends.cudnn.version() or "") if has_gpu else "",
        allocator=os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
        workspace=os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
        versions=(
            *versions(),
            *machine.versions_of(
                "peft", "bitsandbytes", "torchao", "trl", "liger-kernel", "accelerate"
            ),
        ),
        num_cores=os.cpu_count() or 0,
        ram_bytes=psutil.virtual_memory().total,
        system=machine.system(),
    )


def trace(request: Request) -> bool:
    """Trace what the case's formula lacks into the cache; returns whether anything did."""
    from brimful.cost.formula import is_traceable, untraced
    from brimful.cost.needed import needed, traced_job
    from brimful.cost.programs import kernels_of
    from brimful.simulate.on_demand import trace_needs

    (job, strategy), device = _asked(request), request.device
    if not is_traceable(job, strategy, device):
        return False
    missing = untraced(job, strategy, device, needed(job, strategy))
    if missing:
        trace_needs(
            traced_job(job, strategy), strategy.attention,
            kernels_of(device, strategy.fused_kernels), missing, watch=lambda _state: None,
        )  # fmt: skip
    return bool(missing)


def simulate(request: Request) -> Simulated:
    """Run the case on the pretend GPU; no CUDA device is visible to this process.

    Raises:
        RunError: CUDA was touched all the same.
    """
    import torch

    from brimful.simulate.capacity import reserve_for
    from brimful.simulate.items import read_simulation
    from brimful.simulate.run import trace
    from brimful.simulate.unrolled import record_whole

    job, strategy = _asked(request)
    kernels, start_s, hosts = request.device.kernels, time.perf_counter(), []

    def record(job: "Job", strategy: "Strategy") -> "Recording":
        traced = trace(job, strategy, imitate=kernels, capability=request.device.capability)
        hosts.append(traced.host)
        return traced.recording

    recording = record_whole(job, strategy, record)  # as brimful simulate does
    if torch.cuda.is_initialized():
        raise RunError("the simulation touched CUDA; it must not")
    allocator = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")  # that of the measuring process
    reserved = reserve_for(recording, alone(request.device), allocator=allocator)
    simulation = read_simulation(
        recording,
        kernels=kernels,
        reserved=reserved,
        simulate_s=time.perf_counter() - start_s,
        host=hosts[-1],
    )
    return Simulated(
        versions=simulation.versions,
        kernels=simulation.kernels,
        simulated_peak_allocated_bytes=simulation.simulated_peak_allocated_bytes,
        simulated_phases=simulation.phases,
        simulated_fine_phases=_fine_phases(recording),
        simulated_items=simulation.items,
        simulated_peak_block_bytes=reserved.simulated_peak_block_bytes if reserved else None,
        simulated_peak_reserved_bytes=reserved.simulated_peak_reserved_bytes if reserved else None,
        simulated_outcome=reserved.outcome if reserved else "",
        simulated_peak_host_bytes=simulation.simulated_peak_host_bytes,
        num_events=simulation.num_events,
        simulate_s=simulation.simulate_s,
    )


def _asked(request: Request) -> "tuple[Job, Strategy]":
    assert request.case is not None
    return job_of(request.case), strategy_of(request.case)


def _fine_phases(recording: "Recording") -> tuple[PhasePeak, ...]:
    """Return the peak of each part of a step; of several micro-batches the highest."""
    live = recording.live_bytes()
    starts = recording.phase_starts.tolist()
    peaks: dict[str, int] = {}
    for name, start, stop in zip(recording.phases, starts, [*starts[1:], len(live)], strict=True):
        peaks[name] = max(peaks.get(name, 0), int(live[start:stop].max(initial=0)))
    return tuple(PhasePeak(phase=name, num_bytes=peak, where=name) for name, peak in peaks.items())


def measure(request: Request) -> Measured:
    """Run the case for real: metered steps, timed steps, and one that only names its kernels.

    The latter two only where the GPU is nobody else's.
    """
    import torch
    from batches import random_batches

    from brimful.build.assemble import build_program
    from brimful.measure.meter import meter_for
    from brimful.process.versions import versions

    job, strategy = _asked(request)
    device = torch.device(request.device.kernels)
    meter = meter_for(request.device.kernels)
    meter.start()
    program = build_program(job, strategy, device)
    batches = random_batches(job, strategy)
    steps_s = [_timed_step(program, batches) for _ in range(NUM_METERED_STEPS)]
    meter.stop(program)
    if request.is_alone:
        steps_s += [_timed_step(program, batches) for _ in range(NUM_TIMED_STEPS)]
    process_bytes, process_method = _process_bytes(device, request.used_before_bytes)
    return Measured(
        versions=versions(),
        **_memory(meter),
        measured_process_bytes=process_bytes,
        process_method=process_method,
        measured_steps_s=tuple(steps_s),
        measured_step_s=statistics.median(timed)
        if (timed := steps_s[NUM_METERED_STEPS:])
        else None,
        attention_ops=_attention_ops(program, batches) if request.is_alone else (),
    )


def _timed_step(program: "Program", batches: "list[Batch]") -> float:
    """Take one optimizer step and return its seconds, as the training loop times it.

    Raises:
        RunError: The loss or the gradient norm is not a number: the run was no training.
    """
    from brimful.build.batch import count_targets
    from brimful.build.step import train_step

    num_targets, learning_rate = count_targets(batches), program.job.learning_rate
    start_s = time.perf_counter()
    result = train_step(program, batches, num_targets=num_targets, learning_rate=learning_rate)
    # Reading the loss waits for the GPU: its last sum was launched after the optimizer.
    loss, grad_norm = float(result.loss), float(result.grad_norm)
    step_s = time.perf_counter() - start_s
    if result.skipped:  # a first loss scale may be too large; the memory is the same
        return step_s
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        raise RunError(f"loss {loss} and gradient norm {grad_norm}; no step of training")
    return step_s


def _memory(meter: "Meter") -> dict[str, Any]:
    """Spell a meter's reading in the row's fields; the CUDA meter knows more than a reading."""
    from brimful.measure.meter import CudaMeter

    reading = meter.reading
    assert reading is not None
    common = {
        "method": reading.method,
        "measured_peak_allocated_bytes": reading.measured_peak_allocated_bytes,
        "measured_peak_reserved_bytes": reading.measured_peak_reserved_bytes,
        "measured_phases": reading.phases,
        "measured_items": reading.items,
        "measured_peak_host_bytes": reading.measured_peak_host_bytes,
    }
    if not isinstance(meter, CudaMeter):
        # The CPU allocator's events hold what was asked for: allocated is requested.
        requested = reading.measured_peak_allocated_bytes
        return {
            **common,
            "measured_peak_requested_bytes": requested,
            "measured_peak_active_bytes": None,
            "measured_counters": (),
            "measured_leftover_bytes": None,
            "num_alloc_retries": 0,
        }
    lasting = sum(item.num_bytes for item in reading.items)
    return {
        **common,
        "measured_peak_requested_bytes": max(p.requested_bytes for p in meter.peaks.values()),
        "measured_peak_active_bytes": max(p.active_bytes for p in meter.peaks.values()),
        "measured_counters": tuple(
            PhaseCounters(phase=part, **peaks._asdict()) for part, peaks in meter.peaks.items()
        ),
        "measured_leftover_bytes": meter.held_bytes - lasting,
        "num_alloc_retries": meter.num_alloc_retries,
    }


def _process_bytes(device: Any, used_before_bytes: int) -> tuple[int, str]:
    """Return the process's memory and where it was read.

    A container may hide processes from ``nvidia-smi``; then what the GPU gained since before this
    process began stands for it, which is right as long as nobody else uses the GPU.
    """
    from brimful.train.memory import peak_bytes

    if device.type != "cuda":
        return peak_bytes(device), "peak resident size"
    own = machine.gpu_process_bytes(os.getpid())
    if own is not None:
        return own, "nvidia-smi, this process"
    return machine.gpu_used_bytes() - used_before_bytes, "nvidia-smi, GPU now less before"


def _attention_ops(program: "Program", batches: "list[Batch]") -> tuple[str, ...]:
    """Take one more step under the profiler and name the fused attention operators in it."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        _timed_step(program, batches)
    names = {event.key for event in profiler.key_averages()}
    return tuple(sorted(name for name in names if name.startswith(FUSED_ATTENTION)))


def _peer(name: str) -> "Callable[[Request], PeerRun]":
    def run(request: Request) -> PeerRun:
        job, strategy = _asked(request)
        return run_peer(name, job, strategy, request.device.kernels)

    return run


WORK: dict[str, Callable[[Request], Any]] = {
    "calibrate": calibrate,
    "environment": environment,
    "trace": trace,
    "simulate": simulate,
    "measure": measure,
    **{name: _peer(name) for name in PACKAGES},
}
