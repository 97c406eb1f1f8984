"""Predicting a published run: its peaks and its speed beside what was measured."""

import re
from typing import NamedTuple

from brimful.cost.attending import scores_by, scores_of
from brimful.cost.efficiency import fused_bytes
from brimful.cost.estimate import estimate
from brimful.cost.memory import phase_peaks
from brimful.errors import BrimfulError, UnsupportedError
from brimful.hardware.cuda_libraries import NEWEST, Version
from brimful.programs.formulas import Machines, has_formula, predict_program
from brimful.published.express import FLOAT8, Expressed, Unexpressed, express
from brimful.published.four_bits import more_bytes
from brimful.published.programs import OtherProgram, memory_of, other_program
from brimful.published.replayed import replayed, told
from brimful.published.rows import PublishedRun, is_traced
from brimful.values.job import FP8, Precision
from brimful.values.plan import Band, Estimate

COMPILED = "torch.compile"
"""Of a program whose blocks a compiler has made, which ours has not."""
_FUSED = frozenset({COMPILED, "fused kernels", "fused loss", "Thunder"})
"""Of programs whose kernels pass a tensor once; how many fewer tensors pass is not counted."""
_TORCH = re.compile(r"\btorch (\d+)\.(\d+)")


class Predicted(NamedTuple):
    """A published run, predicted.

    Attributes:
        run: What was published.
        allocated_bytes: Peak of live tensors.
        reserved_bytes: Band for the allocator's segments; None where its program was not traced.
        process_bytes: Band for the process.
        likely_reserved_bytes: What the allocator most likely holds: the replay, of any program;
            None where it was not replayed.
        likely_process_bytes: The same, and the middle of what lies outside the allocator.
        tokens_per_s: Of one device; None where a rate is unknown.
        is_fitted: Whether published figures chose a rule of its program: its errors are in-sample.
    """

    run: PublishedRun
    allocated_bytes: int
    reserved_bytes: Band | None
    process_bytes: Band | None
    likely_reserved_bytes: int | None
    likely_process_bytes: int | None
    tokens_per_s: float | None
    is_fitted: bool = False


def predict(run: PublishedRun) -> Predicted | Unexpressed:
    """Predict a published run, or say why there is no prediction."""
    if run.command and has_formula(run.command):
        return _of_command(run)
    found = _estimated(run)
    if isinstance(found, Unexpressed):
        return found
    expressed, estimated = found
    program = other_program(run, expressed)
    peak = _peak(run, expressed, estimated, program)
    held = None if program.updates_otherwise else replayed(run, expressed, program)
    scaled = _scaled(estimated, peak)
    reserved = told(held) if held and is_traced(run) else None
    return Predicted(
        run=run,
        allocated_bytes=peak,
        reserved_bytes=reserved,
        process_bytes=_around(estimated, scaled, reserved),
        likely_reserved_bytes=held.predicted_peak_reserved_bytes if held else None,
        likely_process_bytes=held.predicted_process_bytes if held else None,
        tokens_per_s=_tokens_per_s(run, expressed, estimated),
        is_fitted=any(rule.basis == "fitted" for rule in program.rules),
    )


def predict_tokens_per_s(run: PublishedRun) -> float | None:
    """Predict the speed alone of a published run, without a replay; None: it is not predicted."""
    if run.command and has_formula(run.command):
        of_command = _of_command(run)
        return None if isinstance(of_command, Unexpressed) else of_command.tokens_per_s
    found = _estimated(run)
    return None if isinstance(found, Unexpressed) else _tokens_per_s(run, *found)


def _estimated(run: PublishedRun) -> tuple[Expressed, Estimate] | Unexpressed:
    """Estimate what a run is in our words, or say why there is no prediction."""
    expressed = express(run)
    if isinstance(expressed, Unexpressed):
        return expressed
    try:
        job, cluster, strategy = expressed
        torch = _torch_version(run)
        scores = scores_of(job, strategy.attention, cluster.device, torch)
        if run.kernel:
            scores = scores_by(run.kernel, job)
        return expressed, estimate(*expressed, products=_products(run), scores=scores)
    except UnsupportedError as error:
        return Unexpressed(str(error).partition(";")[0])


def _of_command(run: PublishedRun) -> Predicted | Unexpressed:
    """Predict what a program's own command line asks for: its fullest process."""
    try:
        per_node = run.devices_per_node or run.num_devices
        machines = Machines(run.gpu, per_node, run.network, _torch_version(run))
        found = predict_program(run.command, run.num_devices, machines)
    except BrimfulError as error:
        return Unexpressed(str(error).partition(";")[0])
    reserved = max(rank.predicted_peak_reserved_bytes for rank in found.ranks)
    rate = found.predicted_tokens_per_s
    return Predicted(
        run=run,
        allocated_bytes=max(rank.predicted_peak_allocated_bytes for rank in found.ranks),
        reserved_bytes=None,
        process_bytes=None,
        tokens_per_s=None if rate is None else rate / run.num_devices,
        likely_reserved_bytes=reserved,
        likely_process_bytes=max(rank.predicted_process_bytes for rank in found.ranks),
    )


def _torch_version(run: PublishedRun) -> Version:
    """Return PyTorch's (major, minor) where a row says it."""
    said = _TORCH.search(run.versions)
    return (int(said[1]), int(said[2])) if said else NEWEST


def _peak(
    run: PublishedRun, expressed: Expressed, estimated: Estimate, program: OtherProgram
) -> int:
    """Return the peak, with what programs of its time held more or less."""
    job, _, strategy = expressed
    peak = estimated.predicted_peak_allocated_bytes
    if (program.changes or program.updates_otherwise) and strategy.pp == 1:
        phases = phase_peaks(memory_of(expressed, program))
        peak = max(phase.num_bytes for phase in phases)
    return peak + more_bytes(run, job)


def _scaled(estimated: Estimate, peak: int) -> Band | None:
    band, own = estimated.predicted_peak_reserved_bytes, estimated.predicted_peak_allocated_bytes
    if band is None:
        return None
    return Band(low=band.low * peak / own, high=band.high * peak / own)


def _around(estimated: Estimate, scaled: Band | None, reserved: Band | None) -> Band | None:
    """Add to a band of reserved bytes what lies outside the allocator.

    What is there of a process is seen at other times, and by a driver that knows no segments: only
    its lower end follows a replay.
    """
    own, process = estimated.predicted_peak_reserved_bytes, estimated.predicted_process_bytes
    if scaled is None or own is None or process is None:
        return None
    outside = process.low - own.low, process.high - own.high
    low = reserved.low if reserved else scaled.low
    return Band(low=low + outside[0], high=max(low, scaled.high) + outside[1])


def _products(run: PublishedRun) -> Precision | None:
    """Return the recipe whose types a run's products are in; None: its own."""
    return FP8 if FLOAT8 in run.beyond else None


def _tokens_per_s(run: PublishedRun, expressed: Expressed, estimated: Estimate) -> float | None:
    """Return the speed of one device; None of casts to 8 bits that are kernels of their own.

    A compiler makes them part of what is computed before; no formula counts them where it does not.
    """
    step_s, parts = estimated.predicted_step_s, estimated.predicted_step_time
    if not step_s or (FLOAT8 in run.beyond and COMPILED not in run.unlike):
        return None
    if parts and _FUSED & {*run.unlike}:
        step_s -= parts.memory_s - float(fused_bytes(parts.memory_s, expressed.cluster.device))
    return expressed.job.tokens_per_step / step_s / run.num_devices
