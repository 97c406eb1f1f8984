"""Rules on mixed precision: bytes, speed, ranges of formats, loss scaling."""

import math
import struct

import msgspec

from brimful.cost.states import held_bytes
from brimful.hardware.abilities import tensor_core_types
from brimful.hardware.cluster import AMPERE
from brimful.hardware.datasheets import Datasheet, datasheets
from brimful.rules.base import (
    Finding,
    Rule,
    compare,
    compare_range,
    gibibytes,
    percent,
    stated,
    times,
)
from brimful.rules.devices import throughput_gain
from brimful.rules.subject import (
    Subject,
    full,
    item_bytes,
    mixed,
    peak,
    run,
    saved_per_sequence,
    seconds,
)
from brimful.values.job import Job
from brimful.values.plan import Estimate
from brimful.values.results import LOGITS, SAVED_ACTIVATIONS

GROUP = "mixed precision"
MAX_MICRO_BATCH = 4096
HALF_OF_IT = 0.5
GROWTH, TORCH_GROWTH_INTERVAL = 1.05, 2000
FP16_TINY, FP16_HALF_ULP = 2.0**-24, 2.0**-11
"""fp16's smallest number above 0, and half the distance from 1 to the next."""


def both(subject: Subject) -> tuple[Estimate, Estimate]:
    """Predict the same strategy in fp32 and in 16-bit mixed precision."""
    return run(subject, full(subject, "fp32")), run(subject, mixed(subject))


def _half(subject: Subject) -> Finding:
    """1 - peak in mixed precision / peak in fp32."""
    whole, half = both(subject)
    saved = [saved_per_sequence(subject, job) for job in (full(subject, "fp32"), mixed(subject))]
    return compare(
        0.5,
        1 - peak(half) / peak(whole),
        percent,
        why=f"autocast keeps fp32 parameters, gradients and moments and adds 16-bit copies of "
        f"weights; what shrinks is what blocks save, {gibibytes(saved[0])} a sequence to "
        f"{gibibytes(saved[1])}. Quality: validation/quality.json has recipes of one "
        f"precision only",
    )


def _saving(subject: Subject) -> Finding:
    """Weights, then all that is held: (4 - (2 + 4)) / 4, and (16 - 16) / 16."""
    whole, master = (held_bytes(full(subject, name)) for name in ("fp32", "fp16-master"))
    ours = 1 - master / whole
    return stated(
        "wrong",
        says="37.5 %",
        ours=f"{percent((4 - (2 + 4)) / 4)} of the weights, {percent(ours)} of all that is held",
        error=None,
        why="the formula's own numbers give (4 - 6) / 4: masters cost more than 16-bit weights "
        "save; with gradients and moments fp32 and fp16 with masters both hold 16 B per parameter",
    )


def _speed(subject: Subject) -> Finding:
    """Step time in fp32, and in TF32, over that in 16 bits."""
    whole, half = both(subject)
    tensor = seconds(run(subject, full(subject, "tf32"))) / seconds(half)
    found = compare_range(
        (1.3, 2.1),
        seconds(whole) / seconds(half),
        times,
        why=f"against true fp32, PyTorch's default, matrix products gain the ratio of two units; "
        f"against TF32 the step is {times(tensor)} faster",
    )
    holds = found.verdict == "wrong" and 1.3 <= tensor <= 2.1  # noqa: PLR2004 - the rule's range
    return found if not holds else _only_when(found, "what one comes from is TF32")


def _only_when(found: Finding, condition: str) -> Finding:
    return stated(
        "holds only when", says=found.says, ours=found.ours, why=f"{condition}; {found.why}"
    )


def _batch(subject: Subject) -> Finding:
    """The largest micro-batches that fit."""
    jobs = (full(subject, "fp32"), mixed(subject))
    largest = [_largest(subject, job) for job in jobs]
    if not largest[0]:
        saved = [saved_per_sequence(subject, job) for job in jobs]
        return stated(
            "not checkable here",
            says="1.5 x",
            ours=f"fp32 fits no sequence, {jobs[1].precision} {largest[1] or 'none either'}",
            why=f"blocks save {times(saved[0] / saved[1])} less a sequence; give a smaller model, "
            f"shorter sequences or a larger GPU",
        )
    found = compare(1.5, largest[1] / largest[0], times, why=_batch_words(largest))
    return found if found.error is None or found.error > 0 else _at_least(found)


def _batch_words(largest: list[int]) -> str:
    return f"the largest micro-batch that fits is {largest[0]} in fp32 and {largest[1]} in 16 bits"


def _at_least(found: Finding) -> Finding:
    """50 % *or more*: a rule that promised less than there is holds."""
    return stated("holds", says=found.says, ours=found.ours, why=found.why)


def _largest(subject: Subject, job: Job) -> int:
    """Find the largest micro-batch that fits, 0 where none does; peaks grow with it."""

    def fits(micro_batch: int) -> bool:
        wider = msgspec.structs.replace(job, global_batch=micro_batch)
        return run(subject, wider, micro_batch=micro_batch).fits

    low, high = 0, 1
    while high <= MAX_MICRO_BATCH and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _traffic(subject: Subject) -> Finding:
    """Time that elementwise kernels spend on memory, which is bytes over one bandwidth."""
    whole, half = (made.predicted_step_time for made in both(subject))
    if whole is None or half is None:
        return stated("unknown", says="-50 %", ours="unknown", why="the device's rates are unknown")
    return compare(
        0.5,
        1 - half.memory_s / whole.memory_s,
        percent,
        why="activations move half the bytes; clip and update still move fp32, and casts are new "
        "traffic. In fp32 grouped heads are attended to without a fused kernel",
    )


def _tensor_cores(_subject: Subject) -> Finding:
    rates = datasheets()["a100-40gb"].matrix_flops_per_s
    fp32, fp16 = (0.0 if rate is None else rate / 1e12 for rate in (rates.fp32, rates.fp16))
    return stated(
        "wrong",
        says="24.5 and 197 TFLOP/s",
        ours=f"{fp32:.4g} and {fp16:.4g} TFLOP/s, datasheet",
        error=197 / fp16 - 1,
        why=f"the A100 gains {fp16 / fp32:.0f} x on paper, not {197 / 24.5:.0f} x",
    )


def _always_twice(subject: Subject) -> Finding:
    whole, half = both(subject)
    rates = subject.cluster.device.matrix_flops_per_s
    known = rates.bf16 and rates.fp32
    units = f"the units differ {times(rates.bf16 / rates.fp32)}; " if known else ""
    parts = half.predicted_step_time
    share = parts.memory_s / parts.total_s if parts is not None and parts.total_s else 0.0
    return compare(
        2.0,
        seconds(whole) / seconds(half),
        times,
        why=f"{units}{percent(share)} of the 16-bit step is no matrix product",
    )


def _any_gpu(subject: Subject) -> Finding:
    without = [name for name, sheet in datasheets().items() if "fp16" not in _types(sheet)]
    sheet = datasheets().get(subject.cluster.name)
    here = "" if sheet is None else f"; {subject.cluster.name} has {_types(sheet) or 'none'}"
    return stated(
        "wrong",
        says="all",
        ours=f"{len(without)} of {len(datasheets())} known GPUs have no units for it",
        why=f"{', '.join(without)}: fp16 saves bytes there and no time{here}",
    )


def _types(sheet: Datasheet) -> str:
    return " ".join(tensor_core_types(sheet))


def _code(_subject: Subject) -> Finding:
    return stated(
        "wrong",
        says="the code must change",
        ours="no line of it",
        why="autocast chooses types per operation around the model's own code: what "
        "validation/techniques.json ran, simulated against measured, is transformers as released",
    )


def _initial_scale(_subject: Subject) -> Finding:
    return stated(
        "holds only when",
        says="2^16; 2^12 to 2^16; halve at 15 % Inf",
        ours=f"2^16, {16 - 12} skipped steps from 2^12",
        why="it may move from there: 2^16 is the default of torch.amp.GradScaler and ours, and "
        "a single Inf, not 15 %, skips the step and halves the scale",
    )


def _dynamics(_subject: Subject) -> Finding:
    doubling = math.log(2) / math.log(GROWTH)
    return stated(
        "holds only when",
        says="growth 1.05, backoff 0.5",
        ours=f"growth 2 every {TORCH_GROWTH_INTERVAL} clean steps, backoff 0.5",
        why=f"it is the backoff that is meant: 1.05 a step doubles in {doubling:.0f} "
        f"steps, so that about one step in {doubling + 1:.0f} overflows and is skipped; as "
        f"PyTorch and Brimful grow, one in {TORCH_GROWTH_INTERVAL}",
    )


def _unscale(subject: Subject) -> Finding:
    clip = subject.job.clip
    return stated(
        "holds",
        says="unscale, then clip",
        ours=f"clip={clip:g} before unscaling by 2^16 is clip={clip / 2**16:.2g}",
        why="the norm of scaled gradients is the scale times the norm; Brimful unscales first",
    )


def _islands(subject: Subject) -> Finding:
    epsilon = subject.job.epsilon
    rounded = fp16(epsilon)
    return stated(
        "holds only when",
        says="norms and softmax in fp32, clamp 50000",
        ours=f"epsilon={epsilon:g} is {rounded:g} in fp16",
        why="everything is in fp16: autocast runs both in fp32 already, and a softmax subtracts "
        "the maximum first, so that a clamp guards scores beyond 65504 only; bf16 reaches 3e38",
    )


def fp16(value: float) -> float:
    """Round a number to fp16 and back."""
    rounded: float = struct.unpack("<e", struct.pack("<e", value))[0]
    return rounded


def _underflow(subject: Subject) -> Finding:
    rate = subject.job.learning_rate
    lost = rate / FP16_HALF_ULP
    return stated(
        "holds",
        says="small gradients vanish; masters needed",
        ours=f"below {FP16_TINY:.2g} gradients are 0 in fp16; with learning_rate={rate:g} no "
        f"weight above {lost:.2g} moves",
        why="an update of AdamW is about the learning rate, and less than half of the distance to "
        "the next fp16 number is rounded away; by how many % quality falls, no arithmetic says",
    )


def largest_number(*, mantissa_bits: int, exponent_bias: int, has_infinity: bool) -> float:
    """Return the largest number of an 8-bit float with ``7 - mantissa_bits`` exponent bits.

    E5M2 keeps its last exponent for Inf and NaN, as IEEE 754 does; E4M3 gives up one number of
    it, all ones, for NaN (Micikevicius et al. 2022, arXiv:2209.05433, table 1).
    """
    top = 2 ** (7 - mantissa_bits) - 1 - exponent_bias - has_infinity
    steps = 1 if has_infinity else 2
    return float((2 - steps * 2.0**-mantissa_bits) * 2.0**top)


def _fp8(subject: Subject) -> Finding:
    e4m3 = largest_number(mantissa_bits=3, exponent_bias=7, has_infinity=False)
    e5m2 = largest_number(mantissa_bits=2, exponent_bias=15, has_infinity=True)
    sheet = datasheets().get(subject.cluster.name)
    units = "unknown" if sheet is None else "yes" if "fp8" in _types(sheet) else "no"
    return stated(
        "wrong",
        says="448 in E5M2; half of fp16's memory",
        ours=f"{e4m3:g} in E4M3, {e5m2:g} in E5M2",
        error=448 / e5m2 - 1,
        why=f"65504 for fp16 is right. fp8 linears keep 16- or 32-bit weights, gradients and "
        f"moments: they save time, hardly memory. Units on {subject.cluster.name}: {units}",
    )


def _bert(_subject: Subject) -> Finding:
    return stated(
        "not checkable here",
        says="mixed keeps quality, fp16-only does not",
        ours="-",
        why="scores and hours come from training on a GPU. The quality measured so far "
        "(validation/quality.json) is of 8-bit AdamW, DoRA and QLoRA; BERT's memory is simulated "
        "against published runs (validation/published.json)",
    )


def _gpt3(subject: Subject) -> Finding:
    """137 / 83 samples per second; ours: 8 devices, TF32 with DDP against mixed with ZeRO-2."""
    return compare(
        137 / 83 - 1,
        throughput_gain(subject, "gpt3-2.7b"),
        percent,
        why="8 devices, one sequence each: TF32 under plain data parallelism against 16-bit "
        "mixed with ZeRO-2; the tensor parallelism of the original is left out",
    )


def _tf32(subject: Subject) -> Finding:
    if subject.cluster.device.kernels == "cuda" and subject.cluster.device.capability < AMPERE:
        return stated("holds only when", says="faster", ours=f"none on {subject.cluster.name}",
                      why="TF32 begins with Ampere")  # fmt: skip
    gain = seconds(run(subject, full(subject, "fp32"))) / seconds(
        run(subject, full(subject, "tf32"))
    )
    return stated(
        "holds" if gain > 1 else "wrong",
        says="faster, no code change",
        ours=f"{times(gain)} faster a step, predicted",
        why="for this model; of convolutions no formula knows, brimful simulate does. PyTorch "
        "leaves TF32 off for matrix products unless told (--precision tf32)",
    )


def _long(subject: Subject) -> Finding:
    """The share of the peak that sharding cannot reach."""
    job = mixed(subject)
    made = run(subject, job)
    share = item_bytes(made, SAVED_ACTIVATIONS, LOGITS) / peak(made)
    kept = saved_per_sequence(subject, job, activation_checkpointing="full")
    left = kept / saved_per_sequence(subject, job)
    return stated(
        "holds only when" if share < HALF_OF_IT else "wrong",
        says="AMP + ZeRO-3",
        ours=f"{percent(share)} of the peak is activations and logits at seq_len={job.seq_len}",
        why=f"what is held between steps is most of the peak, since that is what ZeRO-3 shards; of "
        f"what blocks save, checkpointing leaves {percent(left)}",
    )


PRECISION_RULES = (
    Rule("amp-half", GROUP, "16-bit mixed precision halves memory, practically lossless", "50 %",
         _half),
    Rule("amp-formula", GROUP, "Saving = (fp32 - (fp16 + fp32 master)) / fp32", "37.5 %", _saving),
    Rule("amp-speed", GROUP, "Mixed precision speeds Transformers up",
         "1.3 to 2.1 x; Megatron-LM 1.7 x", _speed),
    Rule("amp-batch", GROUP, "It lets memory-bound models raise the batch", "by 50 % or more",
         _batch),
    Rule("amp-bandwidth", GROUP, "It halves memory traffic", "-50 % (H100)", _traffic),
    Rule("tensor-core-rate", GROUP, "A100: fp32 against fp16 Tensor Cores",
         "24.5 and 197 TFLOP/s", _tensor_cores),
    Rule("always-2x", GROUP, "fp16 is always twice as fast as fp32", "2 x, also told as a myth",
         _always_twice),
    Rule("any-gpu", GROUP, "Every GPU supports fp16", "also told as a myth", _any_gpu),
    Rule("code-change", GROUP, "The model's code must change", "also told as a myth", _code),
    Rule("scale-init", GROUP, "Initial loss scale, its search range, when to halve it",
         "2^16; 2^12 to 2^16; more than 15 % Inf", _initial_scale),
    Rule("scale-dynamics", GROUP, "Grow the scale while clean, back off on Inf or NaN",
         "1.05 and 0.5", _dynamics),
    Rule("unscale-clip", GROUP, "Unscale gradients before clipping", "at norm 1.0", _unscale),
    Rule("fp32-islands", GROUP, "LayerNorm's variance and softmax need fp32, scores a clamp",
         "+-50000", _islands),
    Rule("fp16-underflow", GROUP, "fp16 gradients underflow; masters save quality",
         "more than 2 %", _underflow),
    Rule("fp8-range", GROUP, "Largest numbers of fp16 and fp8; fp8 halves memory against fp16",
         "65504; 448 (E5M2); 2 x", _fp8),
    Rule("bert-table", GROUP, "BERT-base fine-tuned in fp32, mixed, fp16 only",
         "GLUE 84.7, 84.5, 72.3; 5.2, 3.1, 3.0 h; 16, 9.8, 7.2 GB", _bert),
    Rule("gpt3-2.7b", GROUP, "GPT-3 2.7B on 8 A100: mixed + ZeRO-2 + tensor parallel",
         "83 to 137 samples/s, +65 %", _gpt3),
    Rule("cnn-tf32", GROUP, "Compute-bound models: TF32 on Ampere and later", "-", _tf32),
    Rule("long-seq", GROUP, "Memory-bound long sequences: AMP + ZeRO-3", "-", _long),
)  # fmt: skip
