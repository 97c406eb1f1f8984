"""What share of a datasheet's rates kernels reach: one table per generation of GPUs.

A matrix product loses to its size: e = share / (1 + w / width + t / tokens + waves), for ``width``
values per token of the residual stream and ``tokens`` rows of a micro-batch; at width w, with many
tokens, half of what the largest reach is left. In its last wave of tiles half of the chip is idle
on average. All of this is of 16-bit types: an operation that is slower by its type hides what is
lost as many times better. Owns ``data/efficiency``; each
file says to which published runs it was fitted, or that it is assumed. Runs of ``fit`` sources are
fitted to (``validation/efficiency_fit.py``), those of ``test`` sources never looked at
(``data/published/splits.json``).
"""

from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from brimful.cost.trajectory import Array
from brimful.hardware.cluster import Device, matrix_rate
from brimful.hardware.datasheets import datasheets
from brimful.hardware.devices import gpus
from brimful.values.job import FP8, Job, Precision

MatrixType = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
AttentionKernel = Literal["flash-1", "flash", "cudnn", "other"]
"""FlashAttention 1 in Triton, FlashAttention 2, cuDNN's (which FlashAttention 3 and 4 are as fast
as); all others that are fused."""
_FOLDER = "data/efficiency"
POWER_EXPONENT = 0.6
"""By which what is reached grows with the power limit: a chip that is given fewer watts clocks
lower, at a lower voltage, and so does more for each of them. Fitted to three of Lambda's rows: an
A10 of 150 W (BERT large) beside an A6000 of 300 (BERT base), 0.53; an A100 PCIe of 250 W (BERT
large) beside the share that stands for SXM modules of 400, of which no row was looked at, 0.67."""
TILE, SMALL_TILE = 128 * 256, 64 * 64
"""Results that a multiprocessor computes at once, in the tiles that reach most, and in small ones,
assumed to reach half of it (NVIDIA, Matrix Multiplication Background: tile and wave quantization;
https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication)."""
_SLICE = "-mig-"
"""Between a card and a profile in the name of a slice."""


class Sustained(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What large 16-bit products reach for hours at a power limit; others by ``POWER_EXPONENT``.

    Attributes:
        capability: Of the chips that it is of; others of a generation are made otherwise.
        flops_per_s: Reached.
        watts: At which limit.
    """

    capability: float
    flops_per_s: float
    watts: float


class Attending(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a fused kernel of attention reaches: share / (1 + length / tokens) / (1 + head / width).

    Attributes:
        share: Of the dense rate, in endless rows and heads.
        half_length: Tokens of a causal row in which it is half as fast; 0: all are alike.
        half_head: Width of a head at which it is half as fast; 0: all are alike.
    """

    share: float
    half_length: float = 0.0
    half_head: float = 0.0


class Efficiency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares of a device's rates, 0 to 1.

    Attributes:
        capabilities: CUDA compute capabilities of the generation.
        matrix_shares: Of the dense rate of a type, in the largest products; a type that is not
            there has no units, or was fitted to no run (fp8 on most).
        half_width: Width at which wide and many products are half as fast; 0: all are alike.
        half_tokens: The same for tokens.
        attention: What fused attention reaches, by kernel; ``other`` is there always.
        memory_share: Of the bandwidth, in elementwise kernels.
        engine_half_share: Of the dense rate of 16 bits, in products of Transformer Engine, of any
            size; 0: unknown, and taken as of other programs.
        engine_fp8_share: Of the dense rate of fp8, the same; 0: unknown.
        engine_fp4_share: Of the dense rate of NVFP4, the same; 0: unknown.
        sustained: What chips of the generation reach at a power limit.
        source: To what it was fitted, or that it is assumed.
    """

    capabilities: tuple[float, ...]
    matrix_shares: dict[MatrixType, float]
    half_width: float
    half_tokens: float
    attention: dict[AttentionKernel, Attending]
    memory_share: float
    engine_half_share: float = 0.0
    engine_fp8_share: float = 0.0
    engine_fp4_share: float = 0.0
    sustained: tuple[Sustained, ...] = ()
    source: str


class ProductSize(NamedTuple):
    """How large the matrix products of a step are: [strategies] each, or one number.

    Attributes:
        tokens: Of one micro-batch; 0: unknown, and then not a reason to be slow.
        width: Of the residual stream, over the devices that share a matrix; 0: unknown.
    """

    tokens: Array | float
    width: Array | float


MEASURED = Efficiency(
    capabilities=(),
    matrix_shares={"fp32": 1.0, "tf32": 1.0, "fp16": 1.0, "bf16": 1.0},
    half_width=0.0,
    half_tokens=0.0,
    attention={"other": Attending(share=1.0)},
    memory_share=1.0,
    source="measured on this machine",
)
"""Of a calibrated device: its rates are those that blocks of a model reached."""
_PLAIN = msgspec.structs.replace(
    MEASURED,
    matrix_shares={"fp32": 0.6, "tf32": 0.6, "fp16": 0.6, "bf16": 0.6},
    attention={"other": Attending(share=0.6)},
    memory_share=0.8,
    source="assumed, for a device of no generation that is in the table",
)


@cache
def generations() -> dict[str, Efficiency]:
    """Read the shipped tables: generation to shares."""
    files = resources.files("brimful").joinpath(_FOLDER).iterdir()
    return {
        file.name.removesuffix(".json"): msgspec.json.decode(file.read_bytes(), type=Efficiency)
        for file in sorted(files, key=lambda file: file.name)
        if file.name.endswith(".json")
    }


def efficiency_of(device: Device) -> Efficiency:
    """Return what share of its rates a device reaches."""
    if device.calibrated:
        return MEASURED
    if device.kernels != "cuda":
        return _PLAIN
    # The shares that a device's power limit leaves of a generation's.
    whole = _generation(device)
    left = _slower(whole, device)
    if left >= 1:
        return whole
    shares = whole.matrix_shares.items()
    return msgspec.structs.replace(
        whole,
        matrix_shares={kind: share * (1.0 if kind == "fp32" else left) for kind, share in shares},
        attention={
            kernel: msgspec.structs.replace(each, share=each.share * left)
            for kernel, each in whole.attention.items()
        },
        engine_half_share=whole.engine_half_share * left,
        engine_fp8_share=whole.engine_fp8_share * left,
        engine_fp4_share=whole.engine_fp4_share * left,
    )


def power_limit_w(device: Device) -> int | None:
    """Return the watts that slow a device's Tensor Cores down; None: none do, or it is unknown."""
    if device.calibrated or device.kernels != "cuda" or _slower(_generation(device), device) == 1:
        return None
    return datasheets()[_card(device).name].tdp_w


def _card(device: Device) -> Device:
    """Return the card that a device is, or is a slice of: they clock alike."""
    name, is_slice, _ = device.name.rpartition(_SLICE)
    return gpus().get(name, device) if is_slice else device


def _generation(device: Device) -> Efficiency:
    """Return the table of a GPU's generation."""
    found = (e for e in generations().values() if device.capability in e.capabilities)
    return next(found, _PLAIN)


def _slower(whole: Efficiency, device: Device) -> float:
    """Return which part of a generation's share is left at a device's power limit."""
    card, share = _card(device), whole.matrix_shares.get("fp16", 0.0)
    sheet = datasheets().get(card.name)
    known = next((each for each in whole.sustained if each.capability == card.capability), None)
    rate = share * _half_rate(card)
    if known is None or sheet is None or sheet.tdp_w is None or not rate:
        return 1.0
    reached = known.flops_per_s * float(sheet.tdp_w / known.watts) ** POWER_EXPONENT
    return min(1.0, float(reached / rate))


def size_of(job: Job, micro_batch: Array | float, *, tp: Array | float = 1) -> ProductSize:
    """Return how large the products of a job are; of a module that is unknown."""
    if not job.model.hidden_size:
        return ProductSize(0.0, 0.0)
    return ProductSize(
        np.asarray(micro_batch) * (job.rows_per_sample * job.seq_len),
        job.model.hidden_size / np.asarray(tp),
    )


def matrix_type(device: Device, precision: Precision) -> MatrixType:
    """Return the type in which a recipe's products run on a device."""
    if precision == "fp32" or matrix_rate(device, precision) == device.matrix_flops_per_s.fp32:
        return "fp32"
    if precision == "tf32":
        return "tf32"
    if precision == FP8:
        return "fp8"
    return "fp16" if precision.startswith("fp16") else "bf16"


def product_share(device: Device, precision: Precision, size: ProductSize) -> Array:
    """Return the share of ``matrix_rate`` that matrix products reach.

    Source: the formula of the module's docstring. Ignores that a block's products are of several
    shapes, narrower ones with grouped keys and values, and that multiples of tiles are faster.
    """
    reached, kind = efficiency_of(device), matrix_type(device, precision)
    rate = matrix_rate(device, precision)
    half_rate = _half_rate(device)
    slower = rate / half_rate if half_rate else 1.0
    lost = _lost(reached.half_width, size.width) + _lost(reached.half_tokens, size.tokens)
    lost = lost + _waves(device, size)
    return np.asarray(reached.matrix_shares.get(kind, 0.0) / (1 + slower * lost))


def _waves(device: Device, size: ProductSize) -> Array:
    """Return what a product loses to its last wave of tiles, of the time of all full ones.

    Half a wave is idle on average. What has few tiles of the large kind takes small ones. A card
    whose multiprocessors are unknown loses nothing.
    """
    card = _card(device)
    sheet = datasheets().get(card.name)
    if device.calibrated or sheet is None or not sheet.num_multiprocessors or not _half_rate(card):
        return np.asarray(0.0)
    units = sheet.num_multiprocessors * _half_rate(device) / _half_rate(card)
    results = np.asarray(size.tokens, dtype=np.float64) * size.width
    large = _lost(units * TILE / 2, results)
    return np.minimum(large, 1 + 2 * _lost(units * SMALL_TILE / 2, results))


def attention_share(
    device: Device, kernel: AttentionKernel, length: Array | float, head: float
) -> Array:
    """Return the share of ``matrix_rate`` that fused attention reaches.

    Source: the formula of ``Attending``. Ignores how many rows and heads there are: those of a
    training step fill a device.

    ``length``: tokens of a causal row; twice those of one that looks both ways. ``head``: width of
    a head; 0: unknown, and then not a reason to be slow, as ``length``.
    """
    known = efficiency_of(device).attention
    reached = known.get(kernel, known["other"])
    lost = 1 + _lost(reached.half_length, length)
    return np.asarray(reached.share / lost / (1 + _lost(reached.half_head, head)))


def _half_rate(device: Device) -> float:
    """Return the dense rate of 16-bit types."""
    return max(device.matrix_flops_per_s.bf16, device.matrix_flops_per_s.fp16 or 0.0)


def _lost(half: float, size: Array | float) -> Array:
    number = np.asarray(size, dtype=np.float64)
    return np.where(number > 0, half / np.where(number > 0, number, 1.0), 0.0)
