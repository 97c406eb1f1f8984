"""How fast a model can write text at most: no token is written before its weights were read.

Every token of a text reads all weights that it uses, and the cache of its text; several texts that
are written at once share the reading of the weights, of experts those that any of them chose. A
GPU's memory cannot be read faster than its data sheet says, nor its units multiply faster. What
engines reach of that is not known here, and what they guess ahead (speculative decoding) is not
counted.
Source: Pope et al. 2022, "Efficiently Scaling Transformer Inference", arXiv:2211.05102, section 2.
"""

from typing import NamedTuple

from brimful.cost.formats import COMPUTE_BYTES, DYNAMIC, SERVED, WeightsFormat
from brimful.cost.held import held_bytes, packed_bytes
from brimful.cost.inference import InferenceJob, cache_bytes
from brimful.cost.kv_cache import cache_layers, num_shared_heads
from brimful.hardware.cluster import Cluster, Device, matrix_rate
from brimful.models.config import active_parameters, parameter_count
from brimful.models.mixtures import known_experts

IN_INT8: frozenset[WeightsFormat] = DYNAMIC | {"llm-int8"}
"""Formats that round activations too, and multiply in int8."""
_FLOPS_PER_PARAMETER = 2
"""Of a token: a multiplication and an addition."""


class Decoding(NamedTuple):
    """Bounds of writing text.

    Attributes:
        read_bytes: What a token reads at least of each GPU's memory: its share of the weights that
            one token uses, and of the cache behind the prompts.
        memory_bytes_per_s: Of a GPU, by its data sheet.
        most_tokens_per_s: Of all texts together, behind the prompts.
        last_tokens_per_s: The same at the end of the texts, whose whole cache is read.
        first_token_s: Seconds at least until the prompts are read.
    """

    read_bytes: int
    memory_bytes_per_s: float
    most_tokens_per_s: float
    last_tokens_per_s: float
    first_token_s: float


def decoding_of(job: InferenceJob, cluster: Cluster) -> Decoding | None:
    """Bound how fast text is written; None where a device's rates are not known.

    ``job``: what is loaded, and how much text it holds. ``cluster``: on what; several devices share
    weights evenly, and the cache by its heads. Raises UnsupportedError: the architecture has no
    layout or no cache that is known.
    """
    device, num_devices = cluster.device, cluster.num_devices
    rate, speed = _matrix_rate(job, device), device.memory_bytes_per_s
    if not rate or not speed:
        return None
    active = active_parameters(job.model)
    weights = -(-_weights_bytes(job, active) // num_devices)
    parts = min(num_devices, num_shared_heads(cache_layers(job.model)))
    reads = [weights + -(-cached // parts) for cached in cache_bytes(job)]
    flops = _FLOPS_PER_PARAMETER * active * job.num_sequences
    first_s, last_s = (max(each / speed, flops / (rate * num_devices)) for each in reads)
    return Decoding(
        read_bytes=reads[0],
        memory_bytes_per_s=speed,
        most_tokens_per_s=job.num_sequences / first_s,
        last_tokens_per_s=job.num_sequences / last_s,
        first_token_s=flops * job.prompt_len / (rate * num_devices),
    )


def _matrix_rate(job: InferenceJob, device: Device) -> float:
    """Return the fastest rate of a format's products, in operations a second; 0: unknown."""
    plain = matrix_rate(device, job.compute)
    if job.weights_format not in IN_INT8:
        return plain
    in_int8 = device.matrix_flops_per_s.int8
    return 0.0 if in_int8 is None else max(plain, in_int8)


def _weights_bytes(job: InferenceJob, active: int) -> int:
    """Return what the next tokens of all texts read of the weights: of an embedding no table.

    Packed experts are taken for as large a share of the bytes as of the parameters.
    """
    model, count = job.model, parameter_count(job.model)
    packed = packed_bytes(model, job.weights_format, job.compute)
    rows = 0 if model.tied_embeddings else count.embedding * COMPUTE_BYTES[job.compute]
    if job.weights_format in SERVED:
        return _experts_apart(job, rows)
    used = count.total - (count.total - active) * _share_unused(job)
    return max(0, int(packed * used / count.total) - rows)


def _experts_apart(job: InferenceJob, rows: int) -> int:
    """Return the same where experts alone are packed: the share that is chosen, and all else."""
    held, experts = held_bytes(job.model, job.weights_format, job.compute), known_experts(job.model)
    idle = 1 - experts.num_experts_per_token / experts.num_experts
    packed = held.quantized + held.constants
    return int(held.total - packed - rows + packed * (1 - idle * _share_unused(job)))


def _share_unused(job: InferenceJob) -> float:
    """Return which share of the experts that one token leaves is left by all texts' tokens too.

    If every expert is as likely, k of E chosen, n - 1 others leave (1 - k / E) ^ (n - 1) of them.
    """
    experts = known_experts(job.model)
    if not experts.num_experts:
        return 1.0
    share = experts.num_experts_per_token / experts.num_experts
    return float((1 - share) ** (job.num_sequences - 1))
