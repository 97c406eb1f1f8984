"""Programs: which of the traced programs a job runs.

Many jobs run the same operations on tensors of other sizes. A program names what makes operations
differ: the code of the block, tied or not, what is trained, in which types, which kernels. It has
one profile (``profiles.py``).
"""

from typing import Literal, NamedTuple

from brimful.hardware.cluster import AMPERE, Device
from brimful.models.architecture import ONE_KERNEL_GELU
from brimful.models.architectures import record_of
from brimful.models.attention_source import asked_packages
from brimful.models.kernels import left_out
from brimful.models.module_paths import names_block
from brimful.models.spec import ModelSpec
from brimful.techniques.fused_kernels import FusedKernels
from brimful.values.job import (
    ALL_LINEAR,
    FP8,
    IN_FP32,
    QUANTIZED,
    Adapter,
    Base,
    Job,
    Precision,
    Upcast,
)
from brimful.values.strategy import RECOMPUTES, Attention, Recompute

IMPLEMENTATION = "hf"
"""Whose code was traced: ``transformers`` modules under ``build/``."""
Kernels = Literal[
    "cpu", "cuda", "cuda7",
    "liger80", "liger86", "liger89", "liger90", "liger100", "liger120",
    "plain", "plain7",
]  # fmt: skip
"""``liger90``: CUDA's of capability 9.0 with Liger's beside them, which make a buffer for each of
a card's multiprocessors. ``cuda7``: what cards before Ampere, of capability 7 or less, run where it
is not as ``cuda``. They have no flash attention; ``sdpa`` is written out for grouped heads and for
bf16, and runs the memory-efficient kernel in fp16 otherwise (``pretend/attention_choice.py``).
``plain`` and ``plain7``: the same where a class that asks packages for its layers runs its own."""

WITHOUT_PACKAGES: dict[Kernels, Kernels] = {"cuda": "plain", "cuda7": "plain7"}
"""What kernels are where no package of layers is installed."""
_WITH = {plain: kernels for kernels, plain in WITHOUT_PACKAGES.items()}
SHIPPED_KERNELS: tuple[Kernels, ...] = ("cpu", "cuda", "cuda7")
"""Whose kernels shipped profiles are of."""
WITH_LIGER: dict[float, Kernels] = {
    8.0: "liger80", 8.6: "liger86", 8.9: "liger89", 9.0: "liger90", 10.0: "liger100",
    12.0: "liger120",
}  # fmt: skip
"""By compute capability; of others a strategy with Liger's kernels is simulated."""

TRACED_AS: dict[Precision, Precision] = {
    "fp32": "fp32",
    "tf32": "fp32",
    "bf16": "bf16",
    "fp16": "bf16",
    "bf16-master": "bf16",
    "fp16-master": "bf16",
    "bf16-mixed": "bf16-mixed",
    "fp16-mixed": "bf16-mixed",
}
"""By whose profile a recipe is predicted: the same allocations but for the name of a type. Products
in fp8 were not traced."""
TRACED_PRECISIONS: tuple[Precision, ...] = tuple(dict.fromkeys(TRACED_AS.values()))
TRACED_ATTENTIONS: tuple[Attention, ...] = ("eager", "sdpa")
HALF: frozenset[Precision] = frozenset({"bf16-mixed", "fp16-mixed", FP8})
"""Recipes that compute in 16 bits on fp32 parameters, so that a frozen base may be half as wide."""
WIDE: frozenset[Precision] = HALF | {"fp32", "tf32"}
"""Recipes whose parameters are fp32, as adapters of theirs are."""
PURE_HALF: frozenset[Precision] = frozenset({"bf16", "fp16"})
"""Recipes in 16 bits throughout, without masters."""

Tuning = Literal[
    "", "lora", "lora-half", "nf4-double",
    "lora-fp32", "lora-fp32-qkvo", "lora-qkvo", "lora-qv", "lora-half-qkvo", "lora-half-qv",
    "nf4-double-qkvo", "nf4-double-qkvo-norms", "nf4-double-qv",
    "lora-but-o", "nf4-double-but-o",
]  # fmt: skip
"""What is trained: everything, or low-rank adapters (``ADAPTED``)."""


TracedBase = Literal["same", "half", "nf4", "nf4-double"]
"""How a base is held of which profiles are traced."""


_PACKED: dict[Base, TracedBase] = {"nf4": "nf4", "nf4-double": "nf4-double"}


class Adapted(NamedTuple):
    """Adapters as a trace knows them.

    Attributes:
        base: ``same``: in the recipe's own type; ``half``: in 16 bits where that is fp32;
            ``nf4``: in 4 bits; ``nf4-double``: with double quantisation.
        targets: The layers that have one, sorted by name; ``all-linear``: every one but the head.
        is_wide: Whether they are in fp32 though the recipe's own type has 16 bits.
        upcast: What of the base is held in fp32.
    """

    base: TracedBase
    targets: tuple[str, ...] = (ALL_LINEAR,)
    is_wide: bool = False
    upcast: Upcast = "none"


_QKVO, _QV = ("k_proj", "o_proj", "q_proj", "v_proj"), ("q_proj", "v_proj")
_BUT_O = ("down_proj", "gate_proj", "k_proj", "q_proj", "up_proj", "v_proj")
ADAPTED: dict[Tuning, Adapted] = {
    "lora": Adapted("same"),
    "lora-half": Adapted("half"),
    "nf4-double": Adapted("nf4-double"),
    "lora-fp32": Adapted("same", is_wide=True),
    "lora-fp32-qkvo": Adapted("same", _QKVO, is_wide=True),
    "lora-qkvo": Adapted("same", _QKVO),
    "lora-qv": Adapted("same", _QV),
    "lora-half-qkvo": Adapted("half", _QKVO),
    "lora-half-qv": Adapted("half", _QV),
    "nf4-double-qkvo": Adapted("nf4-double", _QKVO),
    "nf4-double-qkvo-norms": Adapted("nf4-double", _QKVO, upcast="norms"),
    "nf4-double-qv": Adapted("nf4-double", _QV),
    "lora-but-o": Adapted("same", _BUT_O),
    "nf4-double-but-o": Adapted("nf4-double", _BUT_O),
}
"""Every tuning with adapters. ``is_wide`` is what PEFT makes of a 16-bit base without autocast."""
_GATHERED: dict[Tuning, Tuning] = {
    "lora-half": "lora",
    "lora-half-qkvo": "lora-qkvo",
    "lora-half-qv": "lora-qv",
}
"""What runs where adapters are gathered in 16 bits, beside a base that is held so."""

ONE_SEQUENCE = ".one"
"""In the key of a program that runs one sequence at a time: heads stand where they are to be
multiplied already then, and are not copied (``profiles.Profile.of_one``)."""

_KEEPING = tuple(f".{how}" for how in RECOMPUTES[1:])
"""What the key of a program ends in whose checkpointed blocks recompute but part of a block."""

FLASH_MAX_HEAD_DIM = 256
FLASH_HEAD_DIM_MULTIPLE = 8
"""Limits of CUDA flash attention without padding; tested equal to ``pretend.attention``."""


class Program(NamedTuple):
    """A traced program.

    Attributes:
        architecture: Whose block it is, with ``-gelu``, ``-tied`` and ``-mha`` where they make a
            difference, ``-narrow`` where sharding casts what comes into a block, ``-tp`` where
            several devices share every matrix, ``-ep`` where they part the experts.
        tuning: What is trained.
        precision: The recipe that was traced.
        attention: How it attends.
        kernels: Whose kernels.
        recompute: What checkpointed blocks compute again.
        is_one: Whether it runs one sequence at a time, where that may make a difference.
    """

    architecture: str
    tuning: Tuning
    precision: Precision
    attention: Attention
    kernels: Kernels
    recompute: Recompute
    is_one: bool = False

    @property
    def key(self) -> str:
        """The name of its profile, e.g. ``llama-tied+lora.hf.bf16.sdpa.cuda.selective``."""
        code = f"{self.architecture}+{self.tuning}" if self.tuning else self.architecture
        parts = (code, IMPLEMENTATION, self.precision, self.attention, self.kernels)
        one = ONE_SEQUENCE if self.is_one else ""
        return ".".join(parts) + one + ("" if self.recompute == "full" else f".{self.recompute}")


def keeps_products(key: str) -> bool:
    """Whether the checkpointed blocks of a program keep results of products, by its key."""
    return key.endswith(_KEEPING)


def recomputing_all(key: str) -> str:
    """Return the key of the program that recomputes whole blocks where one keeps some of them."""
    return key.rpartition(".")[0] if keeps_products(key) else key


def traced_precision(job: Job, *, gathers: bool) -> Precision:
    """Return the recipe by whose trace a job is predicted."""
    if gathers and job.precision in HALF:
        return "bf16"
    return TRACED_AS.get(job.precision, job.precision)


def program_of(  # noqa: PLR0913 - what makes operations differ
    job: Job,
    attention: Attention,
    kernels: Kernels,
    recompute: Recompute,
    *,
    gathers: bool = False,
    tp: int = 1,
    ep: int = 1,
    is_one: bool = False,
) -> Program:
    """Name the program that a job runs, if it runs one that was traced (``formula.py``).

    Mixed recipes whose parameters are gathered in 16 bits run what pure ones do. Among devices that
    share every matrix, or part the experts, a program is the same however many they are. One
    sequence at a time is another program where attention is written out.
    """
    precision = traced_precision(job, gathers=gathers)
    tuning = tuning_of(job) or ""
    kernels = attending(job.model, precision, attention, kernels)
    is_narrow = gathers and job.precision in HALF and _hands_wide_positions(job.model)
    cut = "-narrow" * is_narrow + "-tp" * (tp > 1) + "-ep" * (ep > 1)
    # Name the code path that a model takes: tied heads and ungrouped attention differ. Grouped
    # heads matter where attention is written out: asked for, or on CUDA where no fused kernel takes
    # them, in fp32 and before Ampere.
    code = code_of(job.model)
    tied = "-tied" if job.model.tied_embeddings else ""
    grouped = job.model.num_kv_heads < job.model.num_heads
    written_out = is_written_out(precision, attention, kernels)
    may_group = not _has_conv1d(job.model)
    ungrouped = "-mha" if written_out and may_group and not grouped else ""
    return Program(
        architecture=f"{code}{tied}{ungrouped}" + cut,
        tuning=_GATHERED.get(tuning, tuning) if gathers else tuning,
        precision=precision,
        attention=attention,
        kernels=kernels,
        recompute=recompute,
        is_one=is_one and is_written_out(precision, attention, kernels),
    )


def kernels_of(device: Device, fused: FusedKernels = "none") -> Kernels:
    """Name whose kernels a device runs."""
    if fused == "liger" and device.capability in WITH_LIGER:
        return WITH_LIGER[device.capability]
    if device.kernels == "cpu":
        return "cpu"
    is_early = 0 < device.capability < AMPERE  # 0: of another maker
    kernels: Kernels = "cuda7" if is_early else "cuda"
    return WITHOUT_PACKAGES[kernels] if fused == "torch" else kernels


def capability_of(kernels: Kernels) -> float | None:
    """Return the compute capability whose kernels a program with Liger's runs; else None."""
    return next((each for each, name in WITH_LIGER.items() if name == kernels), None)


def is_old(kernels: Kernels) -> bool:
    """Whether kernels are those of cards before Ampere."""
    return kernels in {"cuda7", WITHOUT_PACKAGES["cuda7"]}


def runs_packages(spec: ModelSpec, kernels: Kernels) -> bool:
    """Whether layers of a model run what packages have for them."""
    return kernels in WITHOUT_PACKAGES and bool(asked_packages(spec.model_type))


def attending(
    spec: ModelSpec, precision: Precision, attention: Attention, kernels: Kernels
) -> Kernels:
    """Name whose kernels decide: before Ampere fused attention in 16 bits is all that differs."""
    if not asked_packages(spec.model_type):
        kernels = _WITH.get(kernels, kernels)
    if not is_old(kernels) or not (attention == "eager" or precision in IN_FP32):
        return kernels
    return "cuda" if kernels == "cuda7" else "plain"


def tuning_of(job: Job) -> Tuning | None:
    """Name what a job trains; None where that was not traced."""
    if job.adapter is None:
        return ""
    if job.method == "dora":
        return None
    asked = adapted_of(job)
    return next((name for name, adapted in ADAPTED.items() if adapted == asked), None)


def adapted_of(job: Job) -> Adapted | None:
    """Describe the adapters of a job as a trace knows them; None where no trace could."""
    adapter = job.adapter
    base = None if adapter is None else _base_of(job, adapter)
    if adapter is None or base is None:
        return None
    if adapter.input_requires_grad or adapter.trained_modules:
        return None
    if any(map(names_block, adapter.targets)):  # the blocks differ then
        return None
    is_wide = adapter.dtype == "fp32" and job.precision not in WIDE
    if is_wide and job.precision not in PURE_HALF:
        return None
    return Adapted(base, tuple(sorted(adapter.targets)), is_wide, adapter.upcast)


def _base_of(job: Job, adapter: Adapter) -> TracedBase | None:
    if adapter.base in QUANTIZED:
        return _PACKED.get(adapter.base)
    own = adapter.base == "same" or job.precision.startswith(adapter.base)
    if adapter.base == "same" or (own and job.precision not in HALF):
        return "same"
    return "half" if own else None


def code_of(spec: ModelSpec) -> str:
    """Name whose block a model runs, e.g. ``gpt2-gelu`` where a GPT-2 has a GELU of one kernel."""
    code = record_of(spec.model_type).traced_as or spec.model_type
    is_one_kernel = spec.hf_config.get("activation_function") in ONE_KERNEL_GELU
    return f"{code}-gelu" if _has_conv1d(spec) and is_one_kernel else code


def _has_conv1d(spec: ModelSpec) -> bool:
    return record_of(spec.model_type).block.matrices == "conv1d"


def _hands_wide_positions(spec: ModelSpec) -> bool:
    """Whether blocks that compute in 16 bits are handed positions in fp32.

    FSDP2 casts them, which is another program (``cast_forward_inputs`` of
    ``MixedPrecisionPolicy``).
    """
    return record_of(spec.model_type).block.is_wide


def is_written_out(precision: Precision, attention: Attention, kernels: Kernels) -> bool:
    """Whether grouped heads are attended to by the written-out formula."""
    in_fp32 = precision in IN_FP32 and kernels != "cpu"
    return attention == "eager" or in_fp32 or is_old(kernels)


def untraced_attention(
    spec: ModelSpec, precision: Precision, attention: Attention, kernels: Kernels, *, tp: int = 1
) -> str:
    """Say in one sentence why no trace attends as this model does; empty where one does.

    With one key and value head and one sequence, eager attention repeats the head without a copy.
    Flash attention pads heads to a multiple of 8 and does not exist beyond ``FLASH_MAX_HEAD_DIM``.
    """
    if attention != "eager" and (what := left_out(spec)):
        return (
            f"attention={attention} would leave out the {what} of {spec.name}, which is of type "
            f"{spec.model_type}; use --attention eager"
        )
    grouped = spec.num_kv_heads < spec.num_heads
    repeats = attention == "eager" or (is_old(kernels) and precision not in IN_FP32)
    if repeats and spec.num_kv_heads == tp < spec.num_heads:
        each = f" on each of tp={tp} devices" if tp > 1 else ""
        return (
            f"{spec.name} has num_kv_heads=1 and num_heads={spec.num_heads // tp}{each}, and no "
            f"profile covers that where attention is written out; use --attention sdpa on compute "
            f"capability {AMPERE} or more, or brimful plan, which traces it"
        )
    fused = attention == "sdpa" and precision not in IN_FP32
    if fused and is_old(kernels) and not grouped and not precision.startswith("fp16"):
        return (
            f"sdpa is written out in {precision} before compute capability {AMPERE}, and no "
            f"profile covers that where every head has its own keys; use an fp16 recipe, "
            f"--attention eager, or brimful plan, which traces it"
        )
    flash = fused and (kernels in {"cuda", "plain"} or (is_old(kernels) and not grouped))
    multiple = spec.head_dim % FLASH_HEAD_DIM_MULTIPLE == 0
    if flash and not (multiple and spec.head_dim <= FLASH_MAX_HEAD_DIM):
        return (
            f"{spec.name} has head_dim={spec.head_dim}, and profiles of flash attention cover "
            f"multiples of {FLASH_HEAD_DIM_MULTIPLE} up to {FLASH_MAX_HEAD_DIM}; "
            f"use --attention eager, or brimful plan, which traces it"
        )
    return ""
