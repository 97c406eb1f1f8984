"""How fast a model can write text at most: no token is written before its weights were read.

Every token of a text reads all weights that it uses, and the cache of its text; several texts that
are written at once share the reading of the weights. A GPU's memory cannot be read faster than its
data sheet says, nor its units multiply faster. What engines reach of that is not known here.
Source: Pope et al. 2022, "Efficiently Scaling Transformer Inference", arXiv:2211.05102, section 2.
"""

from typing import NamedTuple

from brimful.cost.formats import COMPUTE_BYTES
from brimful.cost.held import held_bytes, pack_experts
from brimful.cost.inference import InferenceJob
from brimful.cost.kv_cache import cache_layers, prefilled_bytes
from brimful.hardware.cluster import Cluster, matrix_rate
from brimful.models.config import active_parameters, parameter_count

_FLOPS_PER_PARAMETER = 2
"""Of a token: a multiplication and an addition."""


class Decoding(NamedTuple):
    """Bounds of writing text.

    Attributes:
        read_bytes: What a token reads at least of each GPU's memory: its share of the weights that
            one token uses, and of the cache behind the prompts.
        memory_bytes_per_s: Of a GPU, by its data sheet.
        most_tokens_per_s: Of all texts together.
        first_token_s: Seconds at least until the prompts are read.
    """

    read_bytes: int
    memory_bytes_per_s: float
    most_tokens_per_s: float
    first_token_s: float


def decoding_of(job: InferenceJob, cluster: Cluster) -> Decoding | None:
    """Bound how fast text is written; None where a device's rates are not known.

    Args:
        job: What is loaded, and how much text it holds.
        cluster: On what; several devices share weights and cache evenly.

    Raises:
        UnsupportedError: The architecture has no layout or no cache that is known.
    """
    device, num_devices = cluster.device, cluster.num_devices
    rate, speed = matrix_rate(device, job.compute), device.memory_bytes_per_s
    if not rate or not speed:
        return None
    active = active_parameters(job.model)
    read_bytes = -(-(_weights_bytes(job, active) + _cache_bytes(job)) // num_devices)
    flops = _FLOPS_PER_PARAMETER * active * job.num_sequences
    step_s = max(read_bytes / speed, flops / (rate * num_devices))
    return Decoding(
        read_bytes=read_bytes,
        memory_bytes_per_s=speed,
        most_tokens_per_s=job.num_sequences / step_s,
        first_token_s=flops * job.prompt_len / (rate * num_devices),
    )


def _weights_bytes(job: InferenceJob, active: int) -> int:
    """Return what one token reads of the weights: of experts its own, of an embedding a row.

    Packed experts are taken for as large a share of the bytes as of the parameters.
    """
    model, count = job.model, parameter_count(job.model)
    held = held_bytes(model, job.weights_format, job.compute).total
    packed = held - pack_experts(model, job.weights_format, job.compute)
    rows = 0 if model.tied_embeddings else count.embedding * COMPUTE_BYTES[job.compute]
    return max(0, int(packed * active / count.total) - rows)


def _cache_bytes(job: InferenceJob) -> int:
    return prefilled_bytes(
        cache_layers(job.model),
        num_tokens=job.prompt_len,
        num_sequences=job.num_sequences,
        element_bytes=COMPUTE_BYTES[job.compute],
    )
