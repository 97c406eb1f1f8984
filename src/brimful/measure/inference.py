"""Measuring a model that writes text: it is loaded, reads prompts, and writes tokens, for real.

The instrument is the profiler's allocation events, as of ``CpuMeter``; it knows nothing of the
tape.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from brimful.build.exported import read_exported
from brimful.build.inference import constants_of, inference_skeleton
from brimful.build.model import materialize
from brimful.build.writing import cache_tensors, grow, new_cache, next_token, prompts
from brimful.cost.inference import (
    CONSTANTS,
    DECODE,
    INFERENCE_ITEMS,
    KV_CACHE,
    LOAD,
    PREFILL,
    WHY,
    InferenceJob,
)
from brimful.measure.allocations import MARKER, METHOD, Range, collect, lifetimes, live_bytes
from brimful.measure.meter import addresses
from brimful.measure.seen_frees import frees_seen
from brimful.process.versions import versions
from brimful.train.memory import peak_bytes, reset_peak
from brimful.values.job import plain_job
from brimful.values.plan import MemoryItem, PhasePeak
from brimful.values.results import BUFFERS, PARAMETERS, TRANSIENTS

SCHEMA = "brimful.inference-measurement/1"
NUM_WRITTEN = 4
"""Tokens that are written behind the prompt; the cache is then grown to the last token's length."""
_FIRST, _WRITING = "first token", "writing"
_Lasting = dict[str, set[int]]


class InferenceMeasurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The third rung of inference: a real run on this machine's CPU.

    Attributes:
        schema: ``SCHEMA``.
        versions: Versions of python, torch, transformers and brimful, as ``name version``.
        method: The instrument.
        items: What was alive at the peak, by class; their sum is the peak.
        phases: Peak of loading, of reading the prompts, and of the last token that is written.
        measured_peak_allocated_bytes: The largest live total.
        measured_process_bytes: What the process held at most, all of it.
        measured_load_s: Wall time of building and filling the model, under the profiler.
        measured_prefill_s: Of reading the prompts, unwatched.
        measured_token_s: Of writing the last token, unwatched.
    """

    schema: str
    versions: tuple[str, ...]
    method: str
    items: tuple[MemoryItem, ...]
    phases: tuple[PhasePeak, ...]
    measured_peak_allocated_bytes: int
    measured_process_bytes: int
    measured_load_s: float
    measured_prefill_s: float
    measured_token_s: float | None


class _Notes(NamedTuple):
    """What was seen from inside, while the profiler watched from outside."""

    seconds: dict[str, float]
    held: _Lasting
    cached: dict[str, set[int]]


def measure_inference(
    job: InferenceJob, *, weights: str | None, exported: Path | None = None
) -> InferenceMeasurement:
    """Load a model, read prompts and write tokens on this machine's CPU.

    ``job``: what is loaded, and how much text it holds. ``weights``: folder or hub id of the
    weights; None: random ones. ``exported``: folder of ``brimful convert`` that they are read from
    instead. Raises UnsupportedError: the format's package is not installed. Raises InputError: the
    weights are not there, or not of this model.
    """
    notes = _Notes({}, {}, {})
    reset_peak(torch.device("cpu"))
    with frees_seen(), _profiled() as profiler, torch.no_grad():
        model = _run(job, weights, exported, notes)
    with torch.no_grad():
        _time(job, model, notes)
    process_bytes = peak_bytes(torch.device("cpu"))
    events, ranges, *_ = collect(profiler.profiler.kineto_results.experimental_event_tree())
    lives = lifetimes(events)
    live = live_bytes(lives, len(events.time_ns))
    spans = {r.name: _bounds(r, events.time_ns) for r in ranges if r.name in {PREFILL, DECODE}}
    spans = {LOAD: (0, _bounds(ranges[0], events.time_ns)[1]), **spans}
    peaks = {name: int(live[a:b].max(initial=0)) for name, (a, b) in spans.items()}
    top = max(peaks, key=peaks.__getitem__)
    start, stop = spans[top]
    peak = start + int(live[start:stop].argmax())
    names = _classes(lives, peak, stop, {**notes.held, KV_CACHE: notes.cached.get(top, set())})
    return InferenceMeasurement(
        schema=SCHEMA,
        versions=versions(),
        method=METHOD,
        items=_items(lives, names, peak, top),
        phases=tuple(PhasePeak(phase=n, num_bytes=size, where=n) for n, size in peaks.items()),
        measured_peak_allocated_bytes=peaks[top],
        measured_process_bytes=process_bytes,
        measured_load_s=notes.seconds[LOAD],
        measured_prefill_s=notes.seconds[PREFILL],
        measured_token_s=notes.seconds.get(DECODE),
    )


def _profiled() -> Any:
    activities = [torch.profiler.ProfilerActivity.CPU]
    return torch.profiler.profile(activities=activities, profile_memory=True)


def _time(job: InferenceJob, model: Any, notes: _Notes) -> None:
    """Do once more what was watched, as the profiler takes longer than what it watches."""
    read, cache = prompts(job.num_sequences, job.prompt_len, torch.device("cpu")), new_cache(model)
    start = time.perf_counter()
    token = next_token(model, read, cache)
    notes.seconds[PREFILL] = time.perf_counter() - start
    if job.seq_len == job.prompt_len:
        return
    if job.seq_len - 1 > job.prompt_len:
        grow(cache, num_tokens=job.seq_len - 1)
    start = time.perf_counter()
    next_token(model, token, cache)
    notes.seconds[DECODE] = time.perf_counter() - start


def _run(job: InferenceJob, weights: str | None, exported: Path | None, notes: _Notes) -> Any:
    place = torch.device("cpu")
    with _phase(LOAD, notes):
        plain = plain_job(job.model, precision=job.compute, weights=weights)
        model = materialize(inference_skeleton(job), device=place, job=plain).eval()
        if exported is not None:
            read_exported(model, exported)
    with _phase(_FIRST, notes):
        next_token(model, prompts(1, 1, place), new_cache(model))
    cache = new_cache(model)
    with _phase(PREFILL, notes):
        token = next_token(model, prompts(job.num_sequences, job.prompt_len, place), cache)
    notes.cached[PREFILL] = addresses(cache_tensors(cache))
    num_left = job.seq_len - job.prompt_len
    if num_left:
        for _ in range(min(num_left - 1, NUM_WRITTEN)):
            with _phase(_WRITING, notes):
                token = next_token(model, token, cache)
        if num_left - 1 > NUM_WRITTEN:
            grow(cache, num_tokens=job.seq_len - 1)
        with _phase(DECODE, notes):
            next_token(model, token, cache)
        notes.cached[DECODE] = addresses(cache_tensors(cache))
    notes.held.update(_held(model))
    return model


@contextlib.contextmanager
def _phase(name: str, notes: _Notes) -> Iterator[None]:
    start = time.perf_counter()
    with torch.profiler.record_function(MARKER + name):
        yield
    notes.seconds[name] = time.perf_counter() - start


def _held(model: Any) -> _Lasting:
    """Return the addresses of what a model holds, by class."""
    held: _Lasting = {PARAMETERS: set(), CONSTANTS: set(), BUFFERS: set()}
    for module in model.modules():
        constants, made = constants_of(module), hasattr(module, "brimful_format")
        held[CONSTANTS] |= addresses(constants)
        held[CONSTANTS if made else BUFFERS] |= addresses(module.buffers(recurse=False))
        for parameter in module.parameters(recurse=False):
            held[PARAMETERS] |= addresses([getattr(parameter, "qdata", parameter)])
    return held


def _bounds(phase: Range, times: Any) -> tuple[int, int]:
    """Return the first event of a phase and the one behind its last."""
    first, last = np.searchsorted(times, [phase.start_ns, phase.end_ns])
    return int(first), int(last)


def _classes(lives: Any, peak: int, stop: int, known: _Lasting) -> Any:
    """Name every allocation: of what is alive at the peak and when its phase ends, by address."""
    names = np.full(len(lives.born), TRANSIENTS, dtype=object)
    stays = (lives.born <= peak) & (lives.died >= stop)
    for name, found in known.items():
        names[stays & np.isin(lives.address, list(found))] = name
    return names


def _items(lives: Any, names: Any, peak: int, phase: str) -> tuple[MemoryItem, ...]:
    alive = (lives.born <= peak) & (lives.died > peak)
    sizes = {name: int(lives.num_bytes[alive & (names == name)].sum()) for name in INFERENCE_ITEMS}
    return tuple(
        MemoryItem(name=name, phase=phase, num_bytes=size, where="device", why=WHY[name])
        for name, size in sizes.items()
        if size
    )
