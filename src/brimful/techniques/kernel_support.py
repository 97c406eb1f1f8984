"""Which attention kernel and which recipe runs where: what planner, simulator and trainer read.

Here stands too what becomes of a default that cannot run: the next one that can
(``first_that_runs``). What somebody asked for is refused instead.

Knows the device by whose kernels it has (``cpu`` or ``cuda``) and its compute capability, and no
torch. The rules are the first ones of PyTorch's ``sdp_utils.cpp`` (2.11 to 2.13); what depends on
more than the job, as on the version of cuDNN, PyTorch says itself.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

from brimful.errors import UnsupportedError
from brimful.models.own_task import is_encoder_decoder
from brimful.techniques.dropout import drops
from brimful.techniques.fused_kernels import INTERPRETER
from brimful.techniques.runnable import check_simulated
from brimful.values.job import FP8, Job, Precision
from brimful.values.strategy import Attention, Strategy

Choice = TypeVar("Choice")

HALF: frozenset[Precision] = frozenset({
    "bf16", "fp16", "bf16-mixed", "fp16-mixed", "bf16-master", "fp16-master", "fp8",
})  # fmt: skip
"""Recipes whose queries meet their keys in 16 bits."""
FIRST_OF_AMD = 90.0
"""Capabilities from here on are AMD's targets: gfx90a is 90.0, gfx942 94.2. To PyTorch they are
``cuda`` too: HIP has its names, its caching allocator and autograd, and kernels of its own."""
AMPERE, BLACKWELL = 8.0, 12.1
"""The first and the last compute capability that FlashAttention-2 and cuDNN's kernel know."""
MAXWELL, VOLTA = 5.0, 7.0
FP8_SINCE = 8.9
"""The first compute capability whose Tensor Cores multiply fp8: Ada."""
AMD_WITH_FP8 = frozenset((94.2, 95.0, 120.1))
"""gfx942, gfx950 and gfx1201: CDNA 3 and 4, RDNA 4."""
FLASH_WIDTH, CUDNN_WIDTH, CUDNN_WIDTH_ON_HOPPER = 256, 128, 256
HALF_MULTIPLE, FULL_MULTIPLE = 8, 4
HOPPER = 9.0


class Place(NamedTuple):
    """Where attention is to run.

    Attributes:
        kernels: Whose kernels the device has.
        capability: CUDA compute capability, e.g. 9.0; of no meaning for ``cpu``.
    """

    kernels: Literal["cpu", "cuda"]
    capability: float


def first_that_runs(
    choices: Sequence[Choice], why_not: Callable[[Choice], str | None]
) -> tuple[Choice, str]:
    """Choose among defaults: the first that nothing speaks against.

    ``choices``: the default, then what may stand in for it, the likest first. ``why_not``: says
    what speaks against one of them, if anything does. Returns the choice, and what speaks against
    the default; empty where that is the choice. Where all are refused the default with nothing
    said: whoever runs it refuses it in its own words.
    """
    reasons: list[str] = []
    for choice in choices:
        reason = why_not(choice)
        if reason is None:
            return choice, reasons[0] if reasons else ""
        reasons.append(reason)
    return choices[0], ""


def check_attention(job: Job, attention: Attention, place: Place) -> Attention:
    """Return an attention kernel as it is, or say why it cannot run in a place."""
    reason = why_not(job, attention, place)
    if reason is not None:
        raise UnsupportedError(
            f"attention={attention} cannot run here: {reason}; use "
            f"{' or '.join(runnable(job, place))}",
            nearest={"attention": None},
        )
    return attention


def check_values(job: Job) -> None:
    """Refuse to simulate a class whose sizes hang on the numbers in its tensors."""
    if job.task == "sequence-classification" and is_encoder_decoder(job.model.model_type):
        raise UnsupportedError(
            f"task={job.task} of {job.model.name} looks for the token that ends each text, and on "
            f"the pretend GPU tokens have no values; use task=seq2seq, or an encoder such as bert"
        )


def check_precision(job: Job, place: Place) -> Job:
    """Return the job as it is, or say why its recipe cannot run in a place.

    Source: the capabilities of fp8 Tensor Cores (CUDA C++ Programming Guide); a CPU emulates.
    """
    if job.precision == FP8 and place.kernels == "cuda" and not _has_fp8(place.capability):
        is_amd = place.capability >= FIRST_OF_AMD
        since = "CDNA 3 and RDNA 4" if is_amd else f"compute capability {FP8_SINCE}"
        raise UnsupportedError(
            f"precision={FP8} cannot run here: GPUs have units for it from {since} on, not "
            f"{place.capability}; use bf16-mixed, or fp16-mixed before {AMPERE}",
            nearest={"precision": "bf16-mixed" if place.capability >= AMPERE else "fp16-mixed"},
        )
    return job


def _has_fp8(capability: float) -> bool:
    if capability >= FIRST_OF_AMD:
        return capability in AMD_WITH_FP8
    return capability >= FP8_SINCE


def check_fused(strategy: Strategy, place: Place) -> Strategy:
    """Return the strategy as it is, or say why its fused kernels cannot run in a place."""
    reason = why_not_fused(place) if strategy.fused_kernels == "liger" else ""
    if reason:
        raise UnsupportedError(
            f"fused_kernels={strategy.fused_kernels} cannot run here: {reason}; use "
            f"fused_kernels=none",
            nearest={"fused_kernels": "none"},
        )
    return strategy


def why_not_fused(place: Place) -> str:
    """Say why Liger's kernels cannot run in a place; empty where they can.

    Source: Triton compiles for NVIDIA GPUs from compute capability 7.0 on (its README); its

    interpreter runs kernels in Python, for tests.
    """
    if place.kernels == "cpu":
        interpreted = os.environ.get(INTERPRETER) == "1"
        return "" if interpreted else "Triton compiles them for GPUs, and this device is a CPU"
    if place.capability < VOLTA:
        return f"Triton compiles them from compute capability {VOLTA} on, not {place.capability}"
    return ""


def why_not_simulated(job: Job, strategy: Strategy, place: Place) -> str:
    """Say why ``brimful simulate`` refuses a plan; empty where it takes it."""
    try:
        check_simulated(strategy)
        check_values(job)
        check_precision(job, place)
        check_attention(job, strategy.attention, place)
        check_fused(strategy, place)
    except UnsupportedError as error:
        return str(error)
    return ""


def why_emulated(precision: Precision, place: Place) -> str | None:
    """Return why a recipe has no units in a place, if it has none and is emulated.

    Emulated recipes run, slowly and at a rate that is unknown: they are no default, and whoever
    asks for one gets it.

    Source: Tensor Cores multiply fp16 since Volta and bf16 since Ampere (CUDA C++ Programming

    Guide, "Compute Capabilities").
    """
    kind = precision.partition("-")[0]
    since = {"bf16": AMPERE, "fp16": VOLTA, FP8: FP8_SINCE}.get(kind, 0.0)
    if place.kernels == "cpu" or place.capability >= since:
        return None
    return f"GPUs have units for {kind} from compute capability {since} on, not {place.capability}"


def runnable(job: Job, place: Place) -> tuple[Attention, ...]:
    """List what could run a job in a place; ``eager`` and ``sdpa`` always can."""
    return tuple(name for name in _REASONS if why_not(job, name, place) is None)


def writes_scores(job: Job, place: Place) -> bool:
    """Whether ``sdpa`` finds no fused kernel in a place, and makes a matrix of scores.

    Of those that it looks for flash attention takes grouped heads; the memory-efficient kernel
    refuses them as they are, and takes them repeated, as ``efficient`` hands them over.

    Source: ``check_batch_size_and_num_heads_dense`` of sdp_utils_cpp.h.
    """
    if place.kernels == "cpu" or why_not(job, "flash", place) is None:
        return False
    is_grouped = job.model.num_kv_heads < job.model.num_heads
    return is_grouped or why_not(job, "efficient", place) is not None


def why_not(job: Job, attention: Attention, place: Place) -> str | None:
    """Return the first reason why a kernel cannot run a job in a place, if there is one."""
    if place.kernels == "cpu":
        no_dropout = _NO_DROPOUT if attention == "flash" and drops(job) else None
        return _NOT_ON_CPU.get(attention, no_dropout)
    return next(_REASONS[attention](job, place.capability), None)


_NO_DROPOUT = "a CPU's fused kernel has no dropout, where sdpa writes scores out"
_NOT_ON_CPU: dict[Attention, str] = {
    "efficient": "it has kernels for CUDA only, and a CPU's one fused kernel is flash",
    "cudnn": "cuDNN has kernels for CUDA only, and a CPU's one fused kernel is flash",
    "flex": "FlexAttention has no backward pass on a CPU",
    "varlen": "FlashAttention over packed rows has kernels for CUDA only",
}
"""On a CPU ``sdpa`` and ``flash`` are one kernel, which takes every type and a mask."""


def _flash(job: Job, capability: float) -> Iterator[str]:
    if capability < FIRST_OF_AMD:
        yield from _not_between(AMPERE, BLACKWELL, capability)
    yield from _not_half(job)
    width = job.model.head_dim
    if width > FLASH_WIDTH:
        yield f"it takes heads of at most {FLASH_WIDTH}, not {width}"
    if _is_small(capability) and (192 < width <= 224 or (width > 224 and drops(job))):  # noqa: PLR2004
        yield f"it has no backward for heads of {width} on compute capability {capability}"


def _is_small(capability: float) -> bool:
    """Cards of little shared memory: RTX 30 and 40, A10, A40, L40, RTX 50."""
    return 8.6 <= capability <= 8.9 or 12.0 <= capability <= BLACKWELL  # noqa: PLR2004


def _efficient(job: Job, capability: float) -> Iterator[str]:
    if capability < FIRST_OF_AMD:
        yield from _not_between(MAXWELL, BLACKWELL, capability)
    if job.precision.startswith("bf16") and capability < AMPERE:
        yield f"it takes bf16 from compute capability {AMPERE} on, not {capability}"
    yield from _odd_heads(job, _alignment(job, capability))


def _alignment(job: Job, capability: float) -> int:
    """``minimum_gemm_alignment`` of sdp_utils.cpp, in elements."""
    half = job.precision in HALF
    if capability >= AMPERE or (capability >= VOLTA and half):
        return HALF_MULTIPLE if half else FULL_MULTIPLE
    return 1


def _cudnn(job: Job, capability: float) -> Iterator[str]:
    if capability >= FIRST_OF_AMD:
        yield "AMD's GPUs have no cuDNN"
    yield from _not_between(AMPERE, BLACKWELL, capability)
    yield from _not_half(job)
    widest = CUDNN_WIDTH_ON_HOPPER if capability == HOPPER else CUDNN_WIDTH
    if job.model.head_dim > widest:
        yield f"it takes heads of at most {widest}, not {job.model.head_dim}"
    yield from _odd_heads(job, HALF_MULTIPLE)


def _varlen(job: Job, capability: float) -> Iterator[str]:
    yield from _flash(job, capability)
    yield from _odd_heads(job, HALF_MULTIPLE)


def _flex(_job: Job, capability: float) -> Iterator[str]:
    if capability < VOLTA:
        yield f"Triton compiles it from compute capability {VOLTA} on, not {capability}"


def _nothing(_job: Job, _capability: float) -> Iterator[str]:
    return iter(())


def _not_between(least: float, most: float, capability: float) -> Iterator[str]:
    if not least <= capability <= most:
        yield f"it needs compute capability {least} to {most}, not {capability}"


def _not_half(job: Job) -> Iterator[str]:
    if job.precision not in HALF:
        yield f"it takes bf16 and fp16, and precision={job.precision} computes in fp32"


def _odd_heads(job: Job, multiple: int) -> Iterator[str]:
    if job.model.head_dim % multiple:
        yield f"it takes heads of a multiple of {multiple}, not {job.model.head_dim}"


_REASONS: dict[Attention, Callable[[Job, float], Iterator[str]]] = {
    "eager": _nothing, "sdpa": _nothing, "flash": _flash, "efficient": _efficient,
    "cudnn": _cudnn, "flex": _flex, "varlen": _varlen,
}  # fmt: skip
"""Reasons against each on CUDA, in PyTorch's order."""
