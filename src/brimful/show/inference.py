"""The answer to ``--task inference``: whether a model fits to write text, and how much of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from brimful.cost.decoding import Decoding
from brimful.cost.formats import COMPUTE_BYTES, SERVED
from brimful.cost.held import packed_bytes
from brimful.cost.inference import (
    KV_CACHE,
    InferenceEstimate,
    InferenceJob,
    decoding_cache_bytes,
    estimate_inference,
)
from brimful.cost.inference_gpus import smallest_gpu
from brimful.cost.inference_limits import (
    FormatFit,
    InChunks,
    Limits,
    limits,
    most_tokens,
    shorter_prompt,
)
from brimful.cost.inference_shared import SharedInference, SharedMost, share_inference
from brimful.cost.served import SHARE
from brimful.hardware.cluster import Cluster
from brimful.models.mixtures import known_experts
from brimful.show.estimate import largest_facts
from brimful.show.predicted import TENSORS_ALONE, gpu_words, replayed_meter, tight_facts
from brimful.show.simulate import beside_facts, failed_facts
from brimful.show.summary import VERDICTS, Fact, Meter, Summary, Verdict
from brimful.units import format_bytes, format_rate, format_seconds
from brimful.values.plan import Word
from brimful.values.results import BUFFERS, PARAMETERS

if TYPE_CHECKING:
    from brimful.measure.inference import InferenceMeasurement
    from brimful.simulate.inference import InferenceSimulation

_MUCH_LESS = 0.8
"""Of a speed, what is slower is told apart; of a cache, what is smaller."""
_VERDICTS: dict[bool | None, Verdict] = {True: "FITS", False: "NO", None: "UNKNOWN"}


class Beside(NamedTuple):
    """What is said beside whether a model fits.

    Attributes:
        formats: The same text in every format.
        limits: The most that fits; None: unknown.
        decoding: How fast it writes at most; None: unknown.
        forward_bytes: What the forward takes beside weights and cache, simulated with weights as
            they compute; None: there is a formula, or nobody has simulated it.
        together: How fast as many texts as fit are written, all of them; None: unknown.
        chunked: What fits with prompts in chunks; None: that is unknown, or they are short.
    """

    formats: tuple[FormatFit, ...]
    limits: Limits | None
    decoding: Decoding | None
    forward_bytes: int | None = None
    together: Decoding | None = None
    chunked: InChunks | None = None


def fits_beside(estimate: InferenceEstimate, beside: Beside) -> bool | None:
    """Whether a model fits, by a simulated forward where that has no formula; None: unknown."""
    if estimate.fits is not None or beside.forward_bytes is None:
        return estimate.fits
    return estimate.predicted_floor_bytes + beside.forward_bytes <= estimate.usable_bytes


def inference_summary(
    job: InferenceJob,
    cluster: Cluster,
    estimate: InferenceEstimate,
    beside: Beside,
) -> Summary:
    """Say what a prediction says.

    ``job``: what is loaded, and how much text it holds.
    """
    peak = estimate.predicted_peak_allocated_bytes
    counted, what = (
        (peak, "tensors only")
        if peak is not None
        else (estimate.predicted_floor_bytes, "weights and cache alone")
    )
    fits = fits_beside(estimate, beside)
    alone = f" ({what})" if fits or peak is None else ""
    return Summary(
        _VERDICTS[fits],
        _subject(job, cluster),
        Meter(counted, estimate.usable_bytes, f"predicted{alone}"),
        (
            *_forward(job, estimate, beside),
            *_instead(job, cluster, estimate),
            *largest_facts(estimate.items),
            *_windows(job, estimate),
            *_experts(job),
            *_speed(job, beside.decoding),
            *_most(beside),
            *_engine(job, cluster, beside),
            *(_room(job, cluster) if estimate.fits is None else ()),
            *_formats(job, beside.formats, beside.chunked),
        ),
    )


def _room(job: InferenceJob, cluster: Cluster) -> tuple[Fact, ...]:
    """Say how long a text has room beside the weights, where a forward's own bytes are unknown."""
    most = most_tokens(job, cluster)
    whose = "of one text" if job.num_sequences == 1 else f"of each of {job.num_sequences} texts"
    words = f"{most:,} tokens {whose} fit beside the weights, with no room for the forward"
    return (Fact("at most", words),) if most else ()


def _texts_at_once(
    job: InferenceJob, estimate: InferenceEstimate, simulation: "InferenceSimulation"
) -> tuple[Fact, ...]:
    """Say how many texts are held at once, about, as what is no weight grows with their number."""
    held = {PARAMETERS, BUFFERS}
    weights = sum(each.num_bytes for each in simulation.items if each.name in held)
    each = (simulation.simulated_peak_allocated_bytes - weights) / job.num_sequences
    num = int((estimate.usable_bytes - weights) / each) if each > 0 else 0
    if not num:
        return ()
    words = f"about {num:,} texts of {job.seq_len:,} tokens at once, by proportion"
    return (Fact("at once", words),)


def inference_simulation_summary(  # noqa: PLR0913, PLR0917 - all that is known
    job: InferenceJob,
    cluster: Cluster,
    estimate: InferenceEstimate,
    simulation: "InferenceSimulation",
    word: Word,
    beside: Beside | None = None,
) -> Summary:
    """Say what a simulation says.

    ``job``: what is loaded, and how much text it holds. ``beside``: what else is known; None: that
    is not said.
    """
    peak, reserved = simulation.simulated_peak_allocated_bytes, simulation.reserved
    meter = Meter(peak, estimate.usable_bytes, f"simulated{TENSORS_ALONE}")
    if reserved is not None:
        meter = replayed_meter(reserved)
    return Summary(
        VERDICTS[word],
        _subject(job, cluster),
        meter,
        (
            *failed_facts(reserved),
            *tight_facts(reserved),
            *largest_facts(simulation.items),
            *(
                beside_facts(peak, estimate.predicted_peak_allocated_bytes)
                if beside is None
                else (
                    *_speed(job, beside.decoding),
                    *_texts_at_once(job, estimate, simulation),
                    *_room(job, cluster),
                    *_formats(job, beside.formats),
                )
            ),
        ),
    )


def measured_summary(
    job: InferenceJob,
    cluster: Cluster,
    estimate: InferenceEstimate,
    simulation: "InferenceSimulation",
    measurement: "InferenceMeasurement",
) -> Summary:
    """Say what a real run took, and how near the other two came.

    ``job``: what was loaded, and how much text it held.
    """
    peak, predicted = (
        measurement.measured_peak_allocated_bytes,
        estimate.predicted_peak_allocated_bytes,
    )
    told = "not predicted" if predicted is None else f"predicted {format_bytes(predicted)}"
    simulated = format_bytes(simulation.simulated_peak_allocated_bytes)
    process = format_bytes(measurement.measured_process_bytes)
    return Summary(
        "FITS" if peak <= estimate.usable_bytes else "NO",
        _subject(job, cluster),
        Meter(peak, estimate.usable_bytes, f"measured{TENSORS_ALONE}"),
        (
            *_measured_speed(job, measurement),
            Fact("beside", f"{told}, simulated {simulated}"),
            *largest_facts(measurement.items),
            Fact("process", f"{process} at most, with Python, its libraries and the profiler"),
        ),
    )


def _measured_speed(job: InferenceJob, measurement: "InferenceMeasurement") -> tuple[Fact, ...]:
    """Say how fast text was written and read."""
    read_s, token_s = measurement.measured_prefill_s, measurement.measured_token_s
    texts = f" of {job.num_sequences} texts together" if job.num_sequences > 1 else ""
    prompt = f"{job.prompt_len * job.num_sequences:,} tokens of prompt in {format_seconds(read_s)}"
    if token_s is None:
        words = f"nothing is written behind a prompt of all {job.seq_len:,} tokens; {prompt}"
        return (Fact("speed", f"{words}; give a shorter --prompt-len"),)
    rate = f"{job.num_sequences / token_s:,.3g} tokens/s{texts}"
    words = f"{rate} written at {job.seq_len:,} tokens of text ({format_seconds(token_s)} each)"
    return (Fact("speed", f"{words}; {prompt}"),)


def _shared_words(shared: SharedInference) -> str:
    """Say what of a model each GPU has a part of, and what it holds whole."""
    num, weights = shared.num_devices, f"weights {format_bytes(shared.packed_bytes)}"
    cache = f"KV cache {format_bytes(shared.cache_bytes)}"
    if num == 1:
        return f"{weights} and {cache}"
    if shared.num_parts == num:
        return f"{weights} and {cache} evenly over {num} GPUs, as tensor parallel does"
    whole = "whole on each: it is one latent of all heads"
    parts = f"in {shared.num_parts} parts, one of a head of keys and values each"
    words = whole if shared.num_parts == 1 else parts
    return f"{weights} evenly over {num} GPUs, as tensor parallel does; {cache} {words}"


class Beyond(NamedTuple):
    """What is said beside whether several GPUs hold a model.

    Attributes:
        formats: Other formats in which they do, the smallest last.
        decoding: How fast they write at most; None: unknown.
        most: How much text they hold where what was asked for is too much; None: it is not.
        chunked: The same with its prompts read in chunks, of what was simulated and may not fit.
    """

    formats: Sequence[str]
    decoding: Decoding | None
    most: SharedMost | None
    chunked: SharedInference | None = None


def shared_summary(
    job: InferenceJob, cluster: Cluster, shared: SharedInference, beyond: Beyond
) -> Summary:
    """Say what is known of a model that several GPUs hold.

    ``job``: what is loaded, and how much text it holds.
    """
    most, least = shared.most_bytes, shared.least_bytes
    is_most = shared.fits is not False and most is not None
    how = f"predicted, at {'most' if is_most else 'least'}"
    if is_most and shared.simulated_forward_bytes is not None:
        how = "at most"
    meter = Meter(
        most if is_most and most is not None else least,
        shared.usable_bytes,
        how,
        "per GPU" if shared.num_devices > 1 else "memory",
    )
    facts = [Fact("shared" if shared.num_devices > 1 else "holds", _shared_words(shared))]
    if shared.simulated_forward_bytes is not None:
        size = format_bytes(shared.simulated_forward_bytes)
        whose = "of one GPU that had all of it" if shared.num_devices > 1 else "with weights"
        words = f"{size} at most, as {whose} in 16 bits, simulated"
        facts.append(Fact("forward", words, f"{size} at most, simulated as of one GPU in 16 bits"))
    if shared.fits is None and most is None:
        left = format_bytes(shared.usable_bytes - least)
        words = f"what a forward of {job.model.model_type} takes beside these; {left} are left"
        facts.append(Fact("unknown", words))
    facts += _in_chunks(beyond.chunked)
    if beyond.chunked is not None:  # as it is read, so that it is what lacks or not
        most = beyond.chunked.most_bytes
    if shared.fits is not True:
        if shared.fits is None and most is not None and beyond.chunked is None:
            shorter = shorter_prompt(job, lambda other: share_inference(other, cluster).fits)
            if shorter:
                facts.append(Fact("instead", _shorter_words(shorter)))
                less = msgspec.structs.replace(job, prompt_len=shorter)
                most = share_inference(less, cluster).most_bytes
        needed = (beyond.chunked or shared).needed
        needs_more = needed is not None and needed > shared.num_devices
        facts += [Fact("needs", f"{needed} of these GPUs")] if needs_more else []
        formats = ", ".join(beyond.formats)
        how = f" (--prompt-len {beyond.chunked.prompt_len})" if beyond.chunked else ""
        facts += [Fact("formats", f"it fits in {formats}{how}")] if formats else []
    facts += [*_speed(job, beyond.decoding), *_shared_experts(shared)]
    facts += _most_shared(job, beyond.most)
    free = shared.usable_bytes - (least if most is None else most)
    tokens = job.num_sequences * job.seq_len
    room = int(free * shared.num_parts * tokens / shared.cache_bytes) + tokens
    if room > 0 and shared.fits is not False:
        texts = f"{room // job.seq_len:,} texts of {job.seq_len:,}"
        words = f"about {room:,} tokens of text in the cache, {texts}"
        facts.append(Fact("at most", words))
    note = "engines that page their cache, such as vLLM, take what is left of each GPU for it"
    facts.append(Fact("note", note))
    return Summary(_VERDICTS[shared.fits], _subject(job, cluster), meter, tuple(facts))


def _shared_experts(shared: SharedInference) -> tuple[Fact, ...]:
    """Say that experts are counted as packed, where libraries may leave them."""
    if shared.weights_bytes <= shared.packed_bytes:
        return ()
    left = format_bytes(shared.weights_bytes)
    words = (
        f"counted as packed like other weights, as published checkpoints are; libraries that pack "
        f"linear layers only leave them in 16 bits: {left}"
    )
    return (Fact("experts", words, f"counted as packed; left in 16 bits all are {left}"),)


def _in_chunks(chunked: SharedInference | None) -> tuple[Fact, ...]:
    """Say what each GPU holds at most where prompts are read in chunks, as engines read them."""
    if chunked is None or chunked.most_bytes is None:
        return ()
    both = f"{format_bytes(chunked.most_bytes)} of {format_bytes(chunked.usable_bytes)} at most"
    flag = f"--prompt-len {chunked.prompt_len}"
    if chunked.fits:
        return (Fact("instead", f"{flag} would fit (prompts read in chunks): {both}"),)
    short = format_bytes(chunked.most_bytes - chunked.usable_bytes)
    least = format_bytes(chunked.least_bytes)
    words = f"{flag}: {both}, short by {short}; weights and cache alone {least}"
    return (Fact("in chunks", words),)


def _most_shared(job: InferenceJob, most: SharedMost | None) -> tuple[Fact, ...]:
    """Say how much text does fit where what was asked for does not."""
    if most is None:
        return ()
    if not most.seq_len:
        return (Fact("at most", "no text fits in this format, however short"),)
    each = "a text" if job.num_sequences == 1 else f"each of {job.num_sequences} texts"
    parts = [f"{most.seq_len:,} tokens {each}"]
    if most.num_sequences:
        parts.append(f"{_texts(most.num_sequences)} of {most.short_len:,} at once")
    is_cut = job.prompt_len > most.prompt_len
    how = f", prompts read in chunks (--prompt-len {most.prompt_len})" if is_cut else ""
    how += "" if most.counts_forward else ", with no room for the forward"
    return (Fact("at most", f"{', or '.join(parts)}{how}"),)


def _subject(job: InferenceJob, cluster: Cluster) -> str:
    texts = f"{job.num_sequences} x " if job.num_sequences > 1 else ""
    tokens = f"{job.seq_len:,} tokens"
    several = cluster.num_devices > 1
    name = gpu_words(cluster) if several else cluster.device.description
    return f"{job.model.name} in {job.weights_format}, {texts}{tokens} of text, on {name}"


def _forward(job: InferenceJob, estimate: InferenceEstimate, beside: Beside) -> tuple[Fact, ...]:
    """Say what the forward takes where that has no formula, or that nobody knows."""
    if not estimate.unknown or estimate.fits is False:
        return ()
    if beside.forward_bytes is None:
        return (Fact("not known", estimate.unknown),)
    words = f"{format_bytes(beside.forward_bytes)} more while it reads and writes, simulated in"
    return (Fact("forward", f"{words} {job.compute}"),)


def _instead(job: InferenceJob, cluster: Cluster, estimate: InferenceEstimate) -> tuple[Fact, ...]:
    """Name the smallest GPU that holds it, where this one does not."""
    if estimate.fits is not False:
        return ()
    shorter = ""
    if not estimate.unknown and estimate.predicted_floor_bytes <= estimate.usable_bytes:
        shorter = _shorter_words(
            shorter_prompt(job, lambda other: estimate_inference(other, cluster).fits)
        )
    device = smallest_gpu(job, cluster)
    if device is None:
        words = shorter or "no single known GPU holds it in this format"
        return (Fact("instead", words),)
    room = "has room for weights and cache" if estimate.unknown else "would fit"
    words = f"--gpus {device.name} {room} (the smallest that does)"
    return (Fact("instead", f"{shorter}; {words}" if shorter else words),)


def _shorter_words(num_tokens: int) -> str:
    """Say that a prompt which is read in chunks fits; empty: 0 tokens, none does."""
    return f"--prompt-len {num_tokens} would fit (prompts read in chunks)" if num_tokens else ""


def _speed(job: InferenceJob, decoding: Decoding | None) -> tuple[Fact, ...]:
    """Say how fast text is written at most, and why no faster."""
    if decoding is None:
        return (Fact("speed", "not known: the GPU's rates are not"),)
    texts = f", of {job.num_sequences} texts together" if job.num_sequences > 1 else ""
    if texts and known_experts(job.model).num_experts:
        texts += ", if they choose experts evenly"
    read = format_bytes(decoding.read_bytes)
    rate = format_rate(decoding.memory_bytes_per_s, "B")
    first, last = decoding.most_tokens_per_s, decoding.last_tokens_per_s
    end = f", {last:,.0f} at the end of the text" if last < _MUCH_LESS * first else ""
    words = (
        f"at most {first:,.0f} tokens/s{texts}: each reads {read} at {rate}{end}; "
        f"{format_seconds(decoding.first_token_s)} or more for the prompt"
    )
    return (Fact("speed", words, f"at most {first:,.0f} tokens/s{texts}"),)


def _most(beside: Beside) -> tuple[Fact, ...]:
    """Say how much text fits, and how fast as many texts as fit are written."""
    limits = beside.limits
    if limits is None:
        return ()
    cut = _cut(limits, beside.chunked)
    if not limits.seq_len:
        words = "no text fits in this format, however short"
        return (Fact("at most", f"{words}{cut}", words if cut else ""),)
    parts = [f"{limits.seq_len:,} tokens each"]
    if limits.num_sequences:
        parts.append(f"{_texts(limits.num_sequences)} of this length at once")
        if limits.num_in_turn > limits.num_sequences:
            parts[-1] += f" ({limits.num_in_turn:,} if prompts are read one by one)"
        if beside.together is not None:
            rates = beside.together.most_tokens_per_s, beside.together.last_tokens_per_s
            words = " to ".join(dict.fromkeys(f"{rate:,.0f}" for rate in sorted(rates)))
            parts[-1] += f", {words} tokens/s in all"
    words = ", or ".join(parts)
    return (Fact("at most", f"{words}{cut}", words if cut else ""),)


def _cut(limits: Limits, chunked: InChunks | None) -> str:
    """Say how much text fits with prompts in chunks, as servers read them, where that is more."""
    if chunked is None:
        return ""
    most, flag = chunked.limits, f"--prompt-len {chunked.prompt_len}"
    parts = [f"{most.seq_len:,} tokens each"] if most.seq_len > limits.seq_len else []
    if most.num_sequences > max(limits.num_sequences, limits.num_in_turn):
        parts.append(f"{_texts(most.num_sequences)} of this length at once")
    return f"; prompts read in chunks ({flag}): {' or '.join(parts)}" if parts else ""


def _engine(job: InferenceJob, cluster: Cluster, beside: Beside) -> tuple[Fact, ...]:
    """Say how many texts an engine has room for that leaves some of the card, unless told."""
    if job.weights_format not in SERVED or not (beside.limits and beside.limits.num_sequences):
        return ()
    part = int(SHARE * cluster.device.usable_bytes)
    found = limits(job, msgspec.structs.replace(cluster, memory_limit_bytes=part))
    num = found.num_sequences if found else 0
    words = f"vLLM takes {SHARE:g} of a card unless told: {_texts(num)} of {job.seq_len:,} tokens"
    return (Fact("served", words),)


def _texts(count: int) -> str:
    return f"{count:,} text{'s' * (count != 1)}"


def _formats(
    job: InferenceJob, formats: tuple[FormatFit, ...], chunked: InChunks | None = None
) -> tuple[Fact, ...]:
    """Name the formats in which this text fits, and what each takes."""
    fitting = [
        f"{each.weights_format} {format_bytes(each.num_bytes)}"
        for each in formats
        if each.fits and each.weights_format != job.weights_format
    ]
    if not formats or (any(each.fits is None for each in formats) and not fitting):
        return ()
    words = f"with weights in {', '.join(fitting)}" if fitting else "in no other format"
    if chunked is not None and chunked.formats and not fitting:
        each = ", ".join(
            f"{fit.weights_format} {format_bytes(fit.num_bytes)} ({_texts(fit.num_sequences)})"
            for fit in chunked.formats
        )
        flag = f"--prompt-len {chunked.prompt_len}"
        short = f"this text fits in no other format without {flag}"
        return (
            Fact("formats", f"this text fits with its prompt in chunks ({flag}): {each}", short),
        )
    return (Fact("formats", f"this text fits {words}"),)


def _windows(job: InferenceJob, estimate: InferenceEstimate) -> tuple[Fact, ...]:
    """Say what of a cache at the peak blocks with a window let go of once a prompt is read."""
    held = sum(item.num_bytes for item in estimate.items if item.name == KV_CACHE)
    later = decoding_cache_bytes(job)
    if later >= _MUCH_LESS * held:
        return ()
    words = f"of whole prompts while they are read; {format_bytes(later)} from the next token on"
    return (Fact("cache", f"{words}, as blocks with a window then keep no more than that"),)


def _experts(job: InferenceJob) -> tuple[Fact, ...]:
    """Say that experts are not in the format that was asked for: they are no linear layers."""
    is_packed = job.weights_format not in {*COMPUTE_BYTES, *SERVED}
    if not is_packed or not known_experts(job.model).num_experts:
        return ()
    packed = packed_bytes(job.model, job.weights_format, job.compute)
    words = (
        f"left in 16 bits: this format packs linear layers, and stacked experts are none; packed "
        f"too, weights are {format_bytes(packed)}"
    )
    return (Fact("experts", words),)
