"""Simulating a model that writes text: load it on the pretend GPU, read the prompt, add a token."""

import time
from typing import Any

import msgspec
import numpy as np
import torch

from brimful.build.inference import constants_of, inference_skeleton
from brimful.build.model import materialize
from brimful.build.writing import cache_tensors, grow, new_cache, next_token, prompts
from brimful.cost.formats import SERVED
from brimful.cost.inference import (
    CONSTANTS,
    DECODE,
    INFERENCE_ITEMS,
    KV_CACHE,
    LOAD,
    PREFILL,
    WHY,
    InferenceJob,
    why_not_simulated,
)
from brimful.errors import UnsupportedError
from brimful.hardware.cluster import Cluster, Device
from brimful.hardware.cuda_chips import version_of
from brimful.pretend import device, guard, kernels
from brimful.pretend.fake_mode import FakeMode
from brimful.pretend.moving import modules_move
from brimful.pretend.recording import Recording
from brimful.pretend.tape import Tape
from brimful.process.versions import versions
from brimful.simulate.capacity import reserve_for
from brimful.values.job import plain_job
from brimful.values.plan import MemoryItem, PhasePeak
from brimful.values.results import BUFFERS, PARAMETERS, TRANSIENTS, Reserved

SCHEMA = "brimful.inference-simulation/1"
_FIRST, _GROWING, _DONE = "first token", "growing", "done"
"""One token is read before anything counts, since kernels keep workspaces from their first call on.
Between a prompt's first token and the last what is decoded is not run."""


class InferenceSimulation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The second rung of inference: transformers' own forward, run on the pretend GPU.

    Attributes:
        schema: ``SCHEMA``.
        versions: Versions of python, torch, transformers and brimful, as ``name version``.
        kernels: Whose kernels were assumed: ``cuda`` or ``cpu``.
        items: What is alive at the peak, by class; their sum is the peak.
        phases: Peak of loading, of reading the prompts, and of the last token that is written.
        simulated_peak_allocated_bytes: The largest live total.
        reserved: What the caching allocator makes of it; None on a CPU.
        num_events: Allocations and frees recorded.
        simulate_s: Wall time of the simulation without imports, in seconds.
    """

    schema: str
    versions: tuple[str, ...]
    kernels: str
    items: tuple[MemoryItem, ...]
    phases: tuple[PhasePeak, ...]
    simulated_peak_allocated_bytes: int
    reserved: Reserved | None
    num_events: int
    simulate_s: float


def simulate_inference(job: InferenceJob, cluster: Cluster) -> InferenceSimulation:
    """Run prefill and, where a token is to be written, the last decode on the pretend GPU.

    Exact for the tensors of eager PyTorch; kernels' workspaces are of a table. Loading holds one
    full weight at a time beside the quantised ones.

    ``job``: what is loaded, and how much text it holds. Raises UnsupportedError: the format has no
    kernels here.
    """
    start = time.perf_counter()
    recording = trace_inference(job, cluster.device)
    seconds = time.perf_counter() - start
    return read_inference(recording, cluster, simulate_s=seconds)


def read_inference(
    recording: Recording, cluster: Cluster, *, simulate_s: float, allocator: str = ""
) -> InferenceSimulation:
    """Sum up a recording of ``trace_inference``.

    ``cluster``: its device says how much the allocator can have. ``allocator``: settings as
    ``PYTORCH_CUDA_ALLOC_CONF`` spells them; empty: PyTorch's defaults. Raises InputError: an
    allocator setting is unknown.
    """
    live = recording.live_bytes()
    peak_event = int(live.argmax())
    return InferenceSimulation(
        schema=SCHEMA,
        versions=versions(),
        kernels=cluster.device.kernels,
        items=_items(recording, peak_event),
        phases=_phases(recording),
        simulated_peak_allocated_bytes=int(live[peak_event]),
        reserved=reserve_for(recording, cluster, allocator=allocator),
        num_events=len(live),
        simulate_s=simulate_s,
    )


def trace_inference(job: InferenceJob, spec: Device) -> Recording:
    """Record loading, prefill and the last decode on a device's kernels."""
    if why := why_not_simulated(job, spec):
        served = job.weights_format in SERVED
        raise UnsupportedError(why, nearest={"weights_format": "bf16"} if served else None)
    device.register()
    skeleton = inference_skeleton(job)
    tape = Tape()
    imitation = (
        kernels.imitate("cuda", capability=version_of(spec.capability))
        if spec.kernels == "cuda"
        else kernels.imitate("cpu")
    )
    with (
        device.there(),
        imitation,
        FakeMode(allow_non_fake_inputs=True) as fake,
        modules_move(fake),
        tape,
        torch.no_grad(),
    ):
        tape.begin_phase(LOAD)
        place = torch.device("gpu:0")
        plain = plain_job(job.model, precision=job.compute)
        model = materialize(skeleton, device=place, job=plain).eval()
        _name(tape, model)
        with guard.errors_come_through():
            _write(tape, model, job, place)
    return tape.finish()


def _name(tape: Tape, model: Any) -> None:
    tape.name_modules(model)
    tape.tag(model.parameters(), PARAMETERS)
    for module in model.modules():
        made = hasattr(module, "brimful_format")  # by ``quantize.swap``
        tape.tag(module.buffers(recurse=False), CONSTANTS if made else BUFFERS)
        tape.tag(constants_of(module), CONSTANTS)


def _write(tape: Tape, model: Any, job: InferenceJob, place: torch.device) -> None:
    """Read the prompts, and write the token that makes the cache as long as it will be."""
    tape.begin_phase(_FIRST)
    next_token(model, prompts(1, 1, place), new_cache(model))
    tape.begin_phase(PREFILL)
    cache = new_cache(model)
    token = next_token(model, prompts(job.num_sequences, job.prompt_len, place), cache)
    _tag(tape, cache)
    if job.seq_len > job.prompt_len:
        tape.begin_phase(_GROWING)
        grow(cache, num_tokens=job.seq_len - 1)
        _tag(tape, cache)
        tape.begin_phase(DECODE)
        next_token(model, token, cache)
        _tag(tape, cache)
    tape.begin_phase(_DONE)


def _tag(tape: Tape, cache: Any) -> None:
    tape.tag(cache_tensors(cache), KV_CACHE)


def _items(recording: Recording, event: int) -> tuple[MemoryItem, ...]:
    """List what is alive right after ``event``, by class; what has no tag is a transient.

    So are keys and values that are being replaced: they do not outlive the phase.
    """
    rows = recording.alive_at(event)
    index = int(np.searchsorted(recording.phase_starts, event, "right"))
    ends = [*recording.phase_starts.tolist(), len(recording.events)][index]
    names = np.array([name or TRANSIENTS for name in recording.items])[recording.item[rows]]
    died = recording.died[rows]
    names[(names == KV_CACHE) & (died > event) & (died < ends)] = TRANSIENTS
    totals = {name: int(recording.num_bytes[rows][names == name].sum()) for name in set(names)}
    phase = recording.phases[index - 1]
    return tuple(
        MemoryItem(name=name, phase=phase, num_bytes=totals[name], where="device", why=WHY[name])
        for name in INFERENCE_ITEMS
        if totals.get(name)
    )


def _phases(recording: Recording) -> tuple[PhasePeak, ...]:
    live = recording.live_bytes()
    ends = np.append(recording.phase_starts[1:], len(live))
    return tuple(
        PhasePeak(phase=name, num_bytes=int(live[start:end].max(initial=0)), where=name)
        for name, start, end in zip(recording.phases, recording.phase_starts, ends, strict=True)
        if end > start and name in {LOAD, PREFILL, DECODE}
    )
