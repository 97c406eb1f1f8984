"""Bounds on the efficiency of DeepSeek-V3, whose parted experts have no formula, and its report.

Per token and device: products at the rates that the first rung assumes of the largest ones, and the
messages that take each token to its experts and back, once in the forward and once in the backward
pass. Waited for, they give a lower bound of what messages cost; hidden, nothing of them is seen.
Bubbles, recomputation and uneven experts are in neither, so that both are optimistic.
"""

from typing import NamedTuple

from brimful.cost.comm import collective_seconds
from brimful.cost.efficiency import attention_share, efficiency_of
from brimful.hardware.cluster import Cluster, matrix_rate
from brimful.hardware.gpus import load_cluster

MODEL, GPU, EP, SEQ_LEN = "deepseek-v3", "h800-80gb", 64, 4096
LEAST_GPUS = 256
"""Of 671e9 parameters of 16 bytes each then has 42 GB; on 128 GPUs it would be all there is."""
REPORTED_GPUS = 2048
REPORTED_TOKENS, REPORTED_GPU_HOURS = 14.8e12, 2.664e6
"""Of pre-training (arXiv:2412.19437, table 1); in fp8 for the most part."""
_HIDDEN, _HEADS, _QUERY, _VALUE = 7168, 128, 192, 128
_LAYERS, _DENSE, _WIDE, _EXPERT, _CHOSEN, _SHARED = 61, 3, 18432, 2048, 8, 1
_Q_RANK, _KV_RANK, _ROPE, _NOPE, _ROUTED, _VOCAB = 1536, 512, 64, 128, 256, 129280
"""The published configuration; ``models`` reads the same."""
_BYTES = 2
_PASSES = 3
"""Forward, and backward with twice its products."""


class Ceiling(NamedTuple):
    """Bounds for one token on one GPU.

    Attributes:
        product_flops: Of forward and backward; the embedding is a look-up.
        attention_flops: Likewise, not masked.
        sent_bytes: To experts and back, forward and backward.
        compute_s: Products and attention.
        messages_s: The messages.
        mfu_low: Messages waited for.
        mfu_high: Messages hidden.
    """

    product_flops: float
    attention_flops: float
    sent_bytes: float
    compute_s: float
    messages_s: float
    mfu_low: float
    mfu_high: float


def product_weights() -> int:
    """Count the weights that a token is multiplied with."""
    attention = (
        _HIDDEN * (_Q_RANK + _KV_RANK + _ROPE)
        + _Q_RANK * _HEADS * _QUERY
        + _KV_RANK * _HEADS * (_NOPE + _VALUE)
        + _HEADS * _VALUE * _HIDDEN
    )
    sparse = 3 * _HIDDEN * _EXPERT * (_CHOSEN + _SHARED) + _HIDDEN * _ROUTED
    dense = 3 * _HIDDEN * _WIDE
    blocks = _LAYERS * attention + _DENSE * dense + (_LAYERS - _DENSE) * sparse
    return blocks + _VOCAB * _HIDDEN


def sent_bytes(*, num_layers: int = _LAYERS - _DENSE, passes: int = 2) -> int:
    """Count what a token's device sends to experts and back, in 16 bits.

    Args:
        num_layers: Of experts.
        passes: 2: forward and backward; 3: where blocks are computed again.
    """
    return 2 * passes * num_layers * _CHOSEN * _HIDDEN * _BYTES


def flops_per_token(seq_len: int) -> tuple[float, float]:
    """Return the FLOPs of products, and of attention that is not masked, forward and backward."""
    attention = 2.0 * _PASSES * _LAYERS * seq_len * _HEADS * (_QUERY + _VALUE)
    return 2.0 * _PASSES * product_weights(), attention


def ceiling() -> Ceiling:
    """Return the bounds."""
    cluster = cluster_of_reported()
    products, attention = flops_per_token(SEQ_LEN)
    rate = matrix_rate(cluster.device, "bf16-mixed")
    reached = efficiency_of(cluster.device)
    compute = products / (rate * reached.matrix_shares["bf16"])
    share = attention_share(cluster.device, "cudnn", SEQ_LEN, _QUERY)
    compute += attention / (rate * float(share))
    sent = sent_bytes()
    messages = messages_seconds(cluster, sent)
    ideal = (products + attention) / rate
    return Ceiling(
        products, attention, sent, compute, messages, ideal / (compute + messages), ideal / compute
    )


def messages_seconds(cluster: Cluster, num_bytes: float) -> float:
    """Return what one token's share of large all-to-alls over the experts' devices takes."""
    many = 1e6  # tokens at once, so that nothing of it is latency
    return float(collective_seconds("all-to-all", many * num_bytes, EP, cluster)) / many


def cluster_of_reported() -> Cluster:
    """Return the GPUs of the report."""
    return load_cluster(f"{REPORTED_GPUS // 8}x8x{GPU}", memory_limit_bytes=None)


def reported_mfu() -> float:
    """Return what the report's GPU hours are of the rate in bf16."""
    tokens_per_s = REPORTED_TOKENS / (REPORTED_GPU_HOURS * 3600)
    bounds = ceiling()
    flops = bounds.product_flops + bounds.attention_flops
    return tokens_per_s * flops / matrix_rate(cluster_of_reported().device, "bf16-mixed")
