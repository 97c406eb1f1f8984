"""What share of a datasheet's rates kernels reach: one table per generation of GPUs.

A matrix product loses to its size: e = share / (1 + w / width + t / tokens + waves), for ``width``
values per token of the residual stream and ``tokens`` rows of a micro-batch; at width w, with many
tokens, half of what the largest reach is left. Of M x K by K x N, 2 (MK + KN + MN) bytes are read
and written for 2 MKN operations, which takes b (1 / M + 1 / K + 1 / N) of the time that they do, b
being the operations that a card does while it moves a byte: w and t are so many b. In its last wave
of tiles half of the chip is idle on average. All of this is of 16-bit types: an operation that is
slower by its type hides what is lost as many times better. Owns ``data/efficiency``, whose files
say to which published runs they were fitted, or that they are assumed, and ``data/products.json``,
what cards reach in products alone. Runs of ``fit`` sources are fitted to
(``validation/efficiency_fit.py``), those of ``test`` sources never looked at
(``data/published/splits.json``).
"""

from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from brimful.cost.trajectory import Array
from brimful.hardware.cluster import Device, matrix_rate
from brimful.hardware.datasheets import datasheets
from brimful.hardware.devices import gpus
from brimful.values.job import FP8, Job, Precision

MatrixType = Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
_TYPES: tuple[MatrixType, ...] = ("fp32", "tf32", "fp16", "bf16")
AttentionKernel = Literal["flash-1", "flash", "cudnn", "other"]
"""FlashAttention 1 in Triton, FlashAttention 2, cuDNN's (which FlashAttention 3 and 4 are as fast
as); all others that are fused."""
_FOLDER, _PRODUCTS = "data/efficiency", "data/products.json"
WIDTH_BALANCES = 1.5
"""w / b: of the weights of a decoder's block a third are width x width (1 / K + 1 / N = 2 / width),
the rest width x 4 width (1.25 / width)."""
TOKENS_BALANCES = 2.5
"""t / b: a weight is read forward and backward, and its gradient written and added to what there
is (5 / 3); fitted, with what else a small micro-batch loses, to llm-foundry's runs."""
_FUSED = 0.85 / 0.7
"""How many times as fast as PyTorch's own operations, one after the other, kernels move bytes that
pass a tensor once: a compiler's, Triton's, fused optimizers', Transformer Engine's. Blocks' norms,
rotary embeddings, gates and residuals in PyTorch's operations reached 3.33 of an H200's 4.8 TB/s
(``brimful calibrate``, ``validation/gpu/nvidia-h200-2026-11.json``)."""
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
        attention: What fused attention reaches, by kernel; ``other`` is there always.
        memory_share: Of the bandwidth, in PyTorch's own elementwise kernels; see ``fused_bytes``.
        engine_half_share: Of the dense rate of 16 bits, in products of Transformer Engine, of any
            size; 0: unknown, and taken as of other programs.
        engine_fp8_share: Of the dense rate of fp8, the same; 0: unknown.
        engine_fp4_share: Of the dense rate of NVFP4, the same; 0: unknown.
        sustained: What chips of the generation reach at a power limit.
        source: To what it was fitted, or that it is assumed.
    """

    capabilities: tuple[float, ...]
    matrix_shares: dict[MatrixType, float]
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


class HalfSizes(NamedTuple):
    """Width, and tokens, at which products in 16 bits are half as fast; 0: all are alike."""

    width: float
    tokens: float


MEASURED = Efficiency(
    capabilities=(),
    matrix_shares={"fp32": 1.0, "tf32": 1.0, "fp16": 1.0, "bf16": 1.0},
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


class Products(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What cards reach in large products alone, by card and type.

    Attributes:
        source: Who measured it, and how.
        tflops_per_s: 1e12 operations a second.
    """

    source: str
    tflops_per_s: dict[str, dict[MatrixType, float]]


@cache
def products() -> Products:
    """Read what cards reach in products alone."""
    content = resources.files("brimful").joinpath(_PRODUCTS).read_bytes()
    return msgspec.json.decode(content, type=Products)


def efficiency_of(device: Device) -> Efficiency:
    """Return what share of its rates a device reaches.

    Of the generation's shares, those in products are the card's own where they were measured. What
    its chip leaves of the share in 16 bits, by that or by its power limit, it leaves in attention.
    """
    if device.calibrated:
        return MEASURED
    if device.kernels != "cuda":
        return _PLAIN
    whole = _generation(device)
    own, left = _own_shares(device), _slower(whole, device)
    if left == 1 and not own:
        return whole
    shares: dict[MatrixType, float] = {}
    for kind, share in whole.matrix_shares.items():
        kept = 1.0 if kind == "fp32" or kind in own else left
        shares[kind] = own.get(kind, share) * kept
    return msgspec.structs.replace(
        whole,
        matrix_shares=shares,
        attention={
            kernel: msgspec.structs.replace(each, share=min(1.0, each.share * left))
            for kernel, each in whole.attention.items()
        },
        engine_half_share=whole.engine_half_share * left,
        engine_fp8_share=whole.engine_fp8_share * left,
        engine_fp4_share=whole.engine_fp4_share * left,
    )


def fused_bytes(num_bytes: Array | float, device: Device) -> Any:
    """Return what kernels that pass each tensor once move, as PyTorch's own would in that time."""
    return num_bytes / _FUSED if device.kernels == "cuda" else num_bytes


def power_limit_w(device: Device) -> int | None:
    """Return the watts that slow a device's Tensor Cores down; None: none do, or it is unknown."""
    if device.calibrated or device.kernels != "cuda" or _measured(device):
        return None
    is_slow = _slower(_generation(device), device) < 1
    return datasheets()[card_of(device).name].tdp_w if is_slow else None


def card_of(device: Device) -> Device:
    """Return the card that a device is, or is a slice of: they clock alike."""
    name, is_slice, _ = device.name.rpartition(_SLICE)
    return gpus().get(name, device) if is_slice else device


def _generation(device: Device) -> Efficiency:
    """Return the table of a GPU's generation."""
    found = (e for e in generations().values() if device.capability in e.capabilities)
    return next(found, _PLAIN)


def _own_shares(device: Device) -> dict[MatrixType, float]:
    """Return the shares of a datasheet's rates that products of a card were measured to reach.

    A card that clocks higher than its datasheet says reaches more than all: it counts as all.
    """
    card = card_of(device)
    rates = ((kind, getattr(card.matrix_flops_per_s, kind) or 0.0) for kind in _TYPES)
    reached = products().tflops_per_s.get(card.name, {})
    return {
        kind: min(1.0, reached[kind] * 1e12 / rate)
        for kind, rate in rates
        if rate and kind in reached
    }


def _measured(device: Device) -> float:
    """Return the share of the rate in 16 bits that was measured of a card; 0: it was not."""
    own = _own_shares(device)
    return own.get("bf16", own.get("fp16", 0.0))


def _slower(whole: Efficiency, device: Device) -> float:
    """Return what a card's chip leaves of its generation's share in 16 bits: more than 1, or less.

    By what was measured of it; else by its power limit.
    """
    card, share = card_of(device), whole.matrix_shares.get("fp16", 0.0)
    if measured := _measured(card):
        return measured / share
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
    at_half = half_sizes(device)
    lost = _lost(at_half.width, size.width) + _lost(at_half.tokens, size.tokens)
    lost = lost + _waves(device, size)
    return np.asarray(reached.matrix_shares.get(kind, 0.0) / (1 + slower * lost))


def half_sizes(device: Device) -> HalfSizes:
    """Return the width and the tokens at which products in 16 bits are half as fast; 0: all are."""
    reached = efficiency_of(device)
    share = max(reached.matrix_shares.get(kind, 0.0) for kind in ("bf16", "fp16"))
    moved = device.memory_bytes_per_s * reached.memory_share * _FUSED
    if device.calibrated or device.kernels != "cuda" or not moved:
        return HalfSizes(0.0, 0.0)
    balance = share * _half_rate(device) / moved
    return HalfSizes(WIDTH_BALANCES * balance, TOKENS_BALANCES * balance)


def _waves(device: Device, size: ProductSize) -> Array:
    """Return what a product loses to its last wave of tiles, of the time of all full ones.

    Half a wave is idle on average. What has few tiles of the large kind takes small ones. A card
    whose multiprocessors are unknown loses nothing.
    """
    card = card_of(device)
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
