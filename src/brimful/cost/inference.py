"""Does a model fit that is loaded to write text: weights, cache and forward, by item and phase.

Phases: ``load``, in which weights are quantised one at a time; ``prefill``, one forward over whole
prompts; ``decode``, the forward that makes the cache as long as it will be. Without gradients
nothing outlives a block but the cache.
"""

from typing import NamedTuple

import msgspec

from brimful.cost.assumptions import assumptions_for
from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.formats import COMPUTE_BYTES, FORMATS, SERVED, Compute, WeightsFormat
from brimful.cost.held import Held, held_bytes
from brimful.cost.kv_cache import cache_layers, grown_bytes, prefilled_bytes
from brimful.cost.loading import has_load_formula, largest_load
from brimful.cost.reading import (
    Sizes,
    decode_transient,
    fuses_groups,
    missing_reading,
    prefill_transient,
    workspace_bytes,
)
from brimful.cost.served import FORWARD_WORDS, check_served
from brimful.errors import InputError
from brimful.hardware.cluster import Cluster, Device
from brimful.models.spec import ModelSpec
from brimful.values.job import MAX_COUNT
from brimful.values.plan import Band, MemoryItem, PhasePeak
from brimful.values.results import BUFFERS, PARAMETERS, TRANSIENTS, WORKSPACES

LOAD, PREFILL, DECODE = "load", "prefill", "decode"
CONSTANTS, KV_CACHE = "quantisation constants", "KV cache"
INFERENCE_ITEMS = (PARAMETERS, CONSTANTS, BUFFERS, KV_CACHE, TRANSIENTS, WORKSPACES)
"""Every class of bytes, in the order in which people ask for them."""
WHY = {
    PARAMETERS: "weights as they are held",
    CONSTANTS: "scales, zero points and tables of quantised weights",
    BUFFERS: "rotary frequencies and other buffers",
    KV_CACHE: "keys and values of every token, in every block",
    TRANSIENTS: "what one block's forward holds at once, without gradients",
    WORKSPACES: "taken by kernels beside their outputs; see the table of workspaces",
}


_FORWARD_WORDS = (
    "a dynamic cache of transformers, in the type of the activations",
    "prompts of equal length, read in one forward; logits of their last tokens, as in generate",
)


class InferenceJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that is loaded to write text.

    Attributes:
        model: Which.
        weights_format: How the weights of its blocks' linear layers are held (``formats.FORMATS``).
        compute: Type of all other weights, of activations and of the cache.
        num_sequences: Sequences that are there at once.
        seq_len: Tokens of each in the end, prompt included.
        prompt_len: Tokens of each that are read in one forward.
    """

    model: ModelSpec
    weights_format: WeightsFormat
    compute: Compute
    num_sequences: int
    seq_len: int
    prompt_len: int


class InferenceEstimate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first rung of inference: what arithmetic says.

    Attributes:
        items: What is alive at the highest peak; without a formula for the forward, weights and
            cache. Their sum is that peak.
        phases: The peak of every phase that has a formula, loading included.
        predicted_floor_bytes: Weights and cache: no way of running the model needs less.
        predicted_peak_allocated_bytes: The largest of the phases; None where the forward of the
            architecture has no formula.
        predicted_process_bytes: Band for the whole process; None on a CPU or without a peak.
        usable_bytes: What the device offers to tensors.
        fits: Whether the peak stays within that; None where only the floor is known, and does.
        unknown: Why there is no peak; empty where there is one.
        assumptions: What the numbers above rest on.
    """

    items: tuple[MemoryItem, ...]
    phases: tuple[PhasePeak, ...]
    predicted_floor_bytes: int
    predicted_peak_allocated_bytes: int | None
    predicted_process_bytes: Band | None
    usable_bytes: int
    fits: bool | None
    unknown: str
    assumptions: tuple[str, ...]


class Phase(NamedTuple):
    """Bytes of one phase at its peak: of the model, and beside it."""

    name: str
    held: Held
    cache: int
    transient: int
    workspaces: int
    where: str

    @property
    def total(self) -> int:
        """Of all."""
        return self.held.total + self.cache + self.transient + self.workspaces


def check_inference(job: InferenceJob) -> InferenceJob:
    """Return the job as it is, or say what is wrong with it.

    Raises UnsupportedError: the model writes no text, or its cache has no formula.
    """
    cache_layers(job.model)
    for field in ("num_sequences", "seq_len", "prompt_len"):
        if not 1 <= getattr(job, field) <= MAX_COUNT:
            raise InputError(
                f"{field}={getattr(job, field)} is out of range; give 1 to {MAX_COUNT}"
            )
    if job.seq_len > job.model.max_seq_len:
        raise InputError(
            f"seq_len={job.seq_len} is longer than {job.model.name}'s {job.model.max_seq_len} "
            f"positions; use {job.model.max_seq_len} or less",
            nearest={"seq_len": job.model.max_seq_len, "prompt_len": None},
        )
    if job.prompt_len > job.seq_len:
        raise InputError(
            f"prompt_len={job.prompt_len} is more than seq_len={job.seq_len}, which it is part "
            f"of; give {job.seq_len} or less"
        )
    check_served(job.model, job.weights_format)
    if job.weights_format in COMPUTE_BYTES and job.weights_format != job.compute:
        raise InputError(
            f"weights_format={job.weights_format} computes in {job.weights_format}, not in "
            f"{job.compute}; leave --precision out or give the same"
        )
    return job


def compute_of(weights_format: WeightsFormat) -> Compute:
    """Return what is computed in where nobody says: a plain format itself, else bf16."""
    return weights_format if weights_format in COMPUTE_BYTES else "bf16"


def estimate_inference(job: InferenceJob, cluster: Cluster) -> InferenceEstimate:
    """Predict what a model takes that writes text.

    ``job``: what is loaded, and how much text it holds. ``cluster``: on what; one device. Raises
    UnsupportedError: the architecture has no layout or no cache that is known.
    """
    device = cluster.device
    held = held_bytes(job.model, job.weights_format, job.compute)
    usable = tensor_limit_bytes(cluster)
    unknown = missing_reading(job.model, sizes_of(job, device), device)
    load = _load(job, device)
    phases = (load,) if unknown else (load, *_forwards(held, job, device))
    floor = held.total + max(cache_bytes(job))
    peak = None if unknown else max(phase.total for phase in phases)
    return InferenceEstimate(
        items=_floor_items(held, job) if unknown else _items(max(phases, key=_total), held, job),
        phases=tuple(PhasePeak(phase=p.name, num_bytes=p.total, where=p.where) for p in phases),
        predicted_floor_bytes=floor,
        predicted_peak_allocated_bytes=peak,
        predicted_process_bytes=_process(peak, device),
        usable_bytes=usable,
        fits=_fits(max(floor, load.total), peak, usable),
        unknown=unknown,
        assumptions=_assumptions(job, device),
    )


def why_not_simulated(job: InferenceJob, device: Device) -> str:
    """Say why ``brimful simulate --task inference`` refuses a job; empty where it takes it."""
    if job.weights_format in SERVED:
        return (
            f"weights_format={job.weights_format} is predicted and not simulated by this version, "
            f"as its kernels are not transformers' own; use brimful estimate, or bf16"
        )
    if job.weights_format == "int4" and device.kernels == "cuda":
        return (
            "weights_format=int4 on CUDA kernels is predicted and not simulated by this version: "
            "its kernels are mslk's, which is not here; use --gpus local, int8, nf4 or nf4-double"
        )
    if job.weights_format == "llm-int8" and device.kernels == "cpu":
        return (
            "weights_format=llm-int8 on CPU kernels takes memory by how many inputs are outliers, "
            "which a pretend tensor does not have; use nf4, nf4-double, or a GPU"
        )
    return ""


def _fits(least: int, peak: int | None, usable: int) -> bool | None:
    if peak is not None:
        return peak <= usable
    return False if least > usable else None


def sizes_of(job: InferenceJob, device: Device) -> Sizes:
    """Return the sizes that the forward's formulas take."""
    element = COMPUTE_BYTES[job.compute]
    return Sizes(
        num_sequences=job.num_sequences,
        prompt_len=job.prompt_len,
        seq_len=job.seq_len,
        element_bytes=element,
        compute=job.compute,
        weights_format=job.weights_format,
        fuses_groups=fuses_groups(device, element_bytes=element),
    )


def cache_bytes(job: InferenceJob) -> tuple[int, int]:
    """Return the cache's bytes after prefill and in the end; without decode the first twice."""
    grown = decoding_cache_bytes(job)
    if job.weights_format in SERVED:  # pages of a window are given back while a prompt is read
        return grown, grown
    filled = prefilled_bytes(
        cache_layers(job.model),
        num_sequences=job.num_sequences,
        num_tokens=job.prompt_len,
        element_bytes=COMPUTE_BYTES[job.compute],
    )
    return filled, filled if job.seq_len == job.prompt_len else grown


def decoding_cache_bytes(job: InferenceJob) -> int:
    """Return the cache's bytes of texts as long as they will be, of which a token was written."""
    return grown_bytes(
        cache_layers(job.model),
        num_sequences=job.num_sequences,
        num_tokens=job.seq_len,
        element_bytes=COMPUTE_BYTES[job.compute],
    )


def _load(job: InferenceJob, device: Device) -> Phase:
    found = largest_load(job.model, job.weights_format, job.compute, kernels=device.kernels)
    return Phase(LOAD, found.held, 0, found.transient, 0, found.where)


def _forwards(held: Held, job: InferenceJob, device: Device) -> tuple[Phase, ...]:
    filled, grown = cache_bytes(job)
    kernels = workspace_bytes(job.model, job.weights_format, device)
    sizes = sizes_of(job, device)
    found = [(PREFILL, filled, prefill_transient(job.model, sizes))]
    if job.seq_len > job.prompt_len:
        found.append((DECODE, grown, decode_transient(job.model, sizes)))
    return tuple(
        Phase(name, held, cache, most.num_bytes, kernels, most.where) for name, cache, most in found
    )


def _total(phase: Phase) -> int:
    return phase.total


def _floor_items(held: Held, job: InferenceJob) -> tuple[MemoryItem, ...]:
    """List weights and cache, where the forward has no formula."""
    return _items(Phase(LOAD, held, max(cache_bytes(job)), 0, 0, ""), held, job)


def _items(top: Phase, loaded: Held, job: InferenceJob) -> tuple[MemoryItem, ...]:
    held = top.held
    totals = {
        PARAMETERS: held.quantized + held.whole,
        CONSTANTS: held.constants,
        BUFFERS: held.buffers,
        KV_CACHE: top.cache,
        TRANSIENTS: top.transient,
        WORKSPACES: top.workspaces,
    }
    why = {**WHY, PARAMETERS: _weights_words(loaded, job), TRANSIENTS: top.where}
    return tuple(
        MemoryItem(name=name, phase=top.name, num_bytes=size, where="device", why=why[name])
        for name, size in totals.items()
        if size
    )


def _weights_words(held: Held, job: InferenceJob) -> str:
    if not held.quantized:
        return (
            f"all in {job.compute}"
            if job.weights_format in COMPUTE_BYTES
            else (
                f"all in {job.compute}: {job.weights_format} quantises none of this model's layers"
            )
        )
    if job.weights_format in SERVED:
        return f"{job.weights_format} in experts; all else stays {job.compute}"
    share = held.whole / (held.quantized + held.whole)
    return (
        f"{job.weights_format} in blocks; embedding, output layer, norms"
        f"{' and experts' if share > 0.5 else ''} stay {job.compute}"  # noqa: PLR2004 - most of it
    )


def _process(peak: int | None, device: Device) -> Band | None:
    if peak is None or device.kernels != "cuda":
        return None
    assumed = assumptions_for(device)
    return Band(
        low=peak * assumed.reserved_low + assumed.context_low_bytes,
        high=peak * assumed.reserved_high + assumed.context_high_bytes,
    )


def _assumptions(job: InferenceJob, device: Device) -> tuple[str, ...]:
    lines = [
        f"{job.weights_format}: {FORMATS[job.weights_format]}",
        *(FORWARD_WORDS if job.weights_format in SERVED else _FORWARD_WORDS),
        _load_words(job, device),
    ]
    if device.kernels == "cuda":
        assumed = assumptions_for(device)
        lines.append(
            f"CUDA context {assumed.context_low_bytes / 1e9:.1f} to "
            f"{assumed.context_high_bytes / 1e9:.1f} GB outside the allocator, and reserved = "
            f"{assumed.reserved_low} to {assumed.reserved_high} x allocated (published runs of "
            f"training)"
        )
    return tuple(lines)


def _load_words(job: InferenceJob, device: Device) -> str:
    if job.weights_format in SERVED:
        return "weights are loaded as they are published"
    if has_load_formula(job.weights_format, kernels=device.kernels):
        return "weights are made on the device, those that are quantised one after the other"
    return f"what quantising to {job.weights_format} takes while loading is not counted"
