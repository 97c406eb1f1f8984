"""Rules on the memory of full fine-tuning, of adapters and quantisation, and of experts."""

from typing import TYPE_CHECKING

import msgspec

from brimful.cost.recipes import RECIPES
from brimful.cost.states import held_bytes
from brimful.cost.trained import frozen_bytes, num_trained
from brimful.models.config import active_parameters, load_model
from brimful.rules.base import Finding, Rule, compare, gibibytes, percent, stated, times
from brimful.rules.subject import (
    Subject,
    full,
    held,
    low_rank,
    mixed,
    num_parameters,
    other_model,
    peak,
    run,
    seconds,
    sheet_of,
)

if TYPE_CHECKING:
    from brimful.values.job import Precision

FULL, ADAPTERS, MOE = "full fine-tuning", "LoRA, quantisation", "mixtures of experts"
OVERHEAD = 1.5
HALF = 2
RATED_SEQ_LEN = 2048
FEW_TOKENS = 256


def _parts(subject: Subject) -> Finding:
    """2 + 2 + 4 x 2 bytes per parameter, against what a recipe with fp32 masters holds."""
    num = num_parameters(subject.job)
    master, pure = (held_bytes(full(subject, name)) for name in ("bf16-master", "bf16"))
    return compare(
        12 * num,
        master,
        gibibytes,
        why=f"12 B per parameter is no recipe of PyTorch's: moments of 4 B each come with fp32 "
        f"masters of 4 B more (16), and without masters they are of 2 B each (8: "
        f"{gibibytes(pure)})",
        rung="held between steps, bf16-master",
    )


def _formula(subject: Subject) -> Finding:
    """P x (b + b + 4 b) x 1.5 against the predicted peak of pure 16 bits."""
    job = full(subject, "bf16")
    states, made = held_bytes(job), run(subject, job)
    return compare(
        num_parameters(job) * 6 * HALF * OVERHEAD,
        peak(made),
        gibibytes,
        why=f"AdamW in pure 16 bits holds {states / num_parameters(job):.3g} B per parameter, not "
        f"12; and the rest is no constant share: here the peak is {peak(made) / states:.3g} x what "
        f"is held, at micro_batch={subject.strategy.micro_batch}, seq_len={job.seq_len}",
        rung="predicted, bf16",
    )


def _linear(subject: Subject) -> Finding:
    """The ratio of two models' peaks against the ratio of their parameters."""
    small = mixed(subject)
    large = other_model(subject, "llama-2-70b", seq_len=small.seq_len)
    small = msgspec.structs.replace(small, seq_len=large.seq_len)
    ratio = num_parameters(small) / num_parameters(large)
    thirteen = held_bytes(other_model(subject, "llama-2-13b", seq_len=RATED_SEQ_LEN))
    return compare(
        ratio,
        peak(run(subject, small)) / peak(run(subject, large)),
        lambda share: f"{share:.3g} of llama-2-70b",
        why=f"what is held between steps is linear, what a forward saves goes with width x depth "
        f"x tokens. A 13B model holds {gibibytes(thirteen)} in bf16-mixed before any activation, "
        f"not under 200",
    )


def _batch_doubles(subject: Subject) -> Finding:
    """Peaks of the asker's own job at two micro-batches, of which one is twice the other."""
    batch = subject.strategy.micro_batch
    jobs = [msgspec.structs.replace(subject.job, global_batch=num * batch) for num in (1, 2)]
    one, two = (peak(run(subject, job, micro_batch=job.global_batch)) for job in jobs)
    return compare(
        2.0,
        two / one,
        times,
        why=f"{gibibytes(one)} at micro_batch={batch}, {gibibytes(two)} at {2 * batch}: what is "
        f"held whatever the batch, {gibibytes(2 * one - two)} here, is there once",
    )


def _low_bit(subject: Subject) -> Finding:
    """How much smaller a 4-bit base is."""
    quarter = frozen_bytes(low_rank(subject, "bf16", "qlora"))
    whole = num_parameters(subject.job) * HALF
    found = compare(
        4,
        whole / sum(quarter),
        times,
        why="what is no linear layer (embeddings, head, norms, stacks of experts) stays in 16 "
        "bits, and every 64 weights share a scale. The second half is moot: such weights do not "
        "train, so that gradients and optimizer state shrink to the adapters'",
        rung="closed form, nf4-double",
    )
    return msgspec.structs.replace(found, says=f"{found.says} smaller weights in 4 bits")


def _weights(subject: Subject) -> Finding:
    """4 against 2 bytes per parameter."""
    job = subject.job
    num = num_parameters(job)
    ours = [held(full(subject, name)).parameters for name in ("fp32", "bf16")]
    return stated(
        "holds",
        says=f"{gibibytes(4 * num)} against {gibibytes(2 * num)}",
        ours=f"{gibibytes(ours[0])} against {gibibytes(ours[1])}, counted",
        why=f"exact, of {num / 1e9:.2f}e9 parameters; those who write GB mean 1e9 bytes",
    )


def _lora_saves(subject: Subject) -> Finding:
    """1 - peak with adapters / peak of full training."""
    whole = run(subject, mixed(subject))
    adapted = run(subject, low_rank(subject, "bf16-mixed", "lora"))
    return compare(
        0.7,
        1 - peak(adapted) / peak(whole),
        percent,
        why=f"adapters of rank 16 take gradients and optimizer state away, not activations: "
        f"{gibibytes(peak(whole))} becomes {gibibytes(peak(adapted))} at "
        f"micro_batch={subject.strategy.micro_batch}, seq_len={subject.job.seq_len}",
    )


def _lora_sum(subject: Subject) -> Finding:
    """2 B of base, and adapters of 2 % at 2 + 2 + 8 bytes."""
    job = low_rank(subject, "bf16", "lora")
    num = num_parameters(job)
    says = num * HALF + 0.02 * num * (2 + 10)
    return compare(
        says,
        peak(run(subject, job)),
        gibibytes,
        why=f"adapters of rank 16 on every linear layer are {100 * num_trained(job) / num:.2f} % "
        f"of the parameters, and the sum leaves activations out, which flow through the whole base",
        rung="predicted, bf16",
    )


def _qlora_gigabyte(subject: Subject) -> Finding:
    """A byte per parameter, for everything."""
    job = low_rank(subject, "bf16-mixed", "qlora")
    made = run(subject, job, activation_checkpointing="full")
    num, held_now = num_parameters(job), held_bytes(job)
    return compare(
        num * 1.0,
        peak(made),
        gibibytes,
        why=f"what is held is {held_now / num:.2f} B a parameter, {gibibytes(held_now)}: layers in "
        f"4 bits, the rest in 16; with full checkpointing one block's activations and the logits "
        f"come on top, at micro_batch={subject.strategy.micro_batch}, "
        f"seq_len={subject.job.seq_len}",
    )


def _qlora_time(subject: Subject) -> Finding:
    """Step time on a base in 4 bits over that on one in 16, nothing recomputed."""
    few, precision = min(FEW_TOKENS, subject.job.seq_len), mixed(subject).precision
    whole, packed, small, small_packed = (
        run(subject, msgspec.structs.replace(low_rank(subject, precision, method), seq_len=n))
        for n in (subject.job.seq_len, few)
        for method in ("lora", "qlora")
    )
    return compare(
        1.39,
        seconds(packed) / seconds(whole),
        times,
        why=f"every forward and backward widens the weights again, however many tokens there are: "
        f"{times(seconds(small_packed) / seconds(small))} at seq_len={few}. The same products "
        f"follow, so that more tokens at once hide it; what 4 bits save, spent on a larger "
        f"micro-batch or fewer checkpoints, may make it the faster one. The peak is "
        f"{percent(1 - peak(packed) / peak(whole))} less. No published pair of both is carried, so "
        f"that this ratio was never held against a run",
    )


def _int8_compute(subject: Subject) -> Finding:
    sheet = sheet_of(subject)
    rate = sheet.matrix_flops_per_s.int8
    units = "unknown" if rate is None else f"{rate / 1e12:.4g} TOP/s" if rate else "none"
    return stated(
        "holds only when",
        says="most products in int8",
        ours=f"int8 units of {subject.cluster.name}: {units}",
        why="the forward is meant and few inputs reach 6: such columns are multiplied in fp16, "
        "and the backward multiplies with weights that were widened again",
    )


def _qat(subject: Subject) -> Finding:
    job = mixed(subject)
    return stated(
        "wrong",
        says="less memory in training",
        ours=f"at least {gibibytes(held_bytes(job))} held, as without it",
        why="training aware of quantisation rounds on the fly and keeps whole weights, gradients "
        "and moments; what it saves, it saves afterwards, in inference",
    )


def _moe_saves(subject: Subject) -> Finding:
    """Bytes of all parameters against those of the active ones."""
    model = subject.job.model
    if active_parameters(model) == num_parameters(subject.job):
        model = load_model("qwen3-235b-a22b")
    job = msgspec.structs.replace(mixed(subject), model=model)
    total, active = num_parameters(job), active_parameters(model)
    return stated(
        "wrong",
        says="80 % less",
        ours=f"0 %: all of {gibibytes(held_bytes(job))} is held",
        error=0.2 - 1,
        why=f"{model.name} computes with {active / 1e9:.3g} of {total / 1e9:.4g}e9 parameters per "
        f"token ({percent(1 - active / total)} less work), but any token may ask for any expert: "
        f"all are held, with gradients and moments",
    )


def _moe_equivalent(subject: Subject) -> Finding:
    """30e9 dense parameters against 235e9, full training and LoRA."""
    model = load_model("qwen3-235b-a22b")
    job = msgspec.structs.replace(mixed(subject), model=model)
    base = num_parameters(job) * HALF
    return compare(
        500e9,
        held_bytes(job),
        gibibytes,
        why=f"active parameters decide the work, not the memory; and the "
        f"{active_parameters(model) / 1e9:.3g}e9 active ones hold what is shared already. LoRA's "
        f"frozen base alone is {gibibytes(base)} in 16 bits, not 110",
        rung="held between steps, qwen3-235b-a22b",
    )


def _moe_pitfalls(subject: Subject) -> Finding:
    active, total = active_parameters(subject.job.model), num_parameters(subject.job)
    kind = "dense" if active == total else f"{percent(active / total)} of it active"
    return stated(
        "not checkable here",
        says="load varies, links wait",
        ours=f"{subject.job.model.name}: {kind}",
        why="how evenly experts are used is learnt, so that no arithmetic knows it; expert "
        "parallelism is not planned by this version",
    )


def _bytes_per_parameter(subject: Subject) -> str:
    names: tuple[Precision, ...] = ("fp32", "bf16-mixed", "bf16-master", "bf16")
    num = num_parameters(subject.job)
    return ", ".join(f"{n} {held_bytes(full(subject, n)) / num:.3g}" for n in names)


def _sixteen(subject: Subject) -> Finding:
    """2 + 2 + 12 bytes per parameter: Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1."""
    num = num_parameters(subject.job)
    recipe = RECIPES[subject.job.precision]
    ours = held_bytes(full(subject, subject.job.precision)) / num
    return compare(
        16,
        ours,
        lambda x: f"{x:.3g} B per parameter",
        why=f"with AdamW: {_bytes_per_parameter(subject)}; {subject.job.precision} holds "
        f"parameters of {recipe.parameter} B and gradients of {recipe.gradient} B",
        rung=f"held, {subject.job.precision}",
    )


MEMORY_RULES = (
    Rule(
        "full-70b-parts", FULL,
        "In 16 bits parameters take 2 bytes, gradients as much, AdamW four times as much",
        "70B: 130.4 GiB, said as 140 GB; 140; 560; sum 840 GB, about 1 TB in practice", _parts,
        is_of_full=True,
    ),
    Rule(
        "full-formula", FULL,
        "Memory = parameters x (b + b + 4 b) x 1.5, b bytes each; the 1.5 covers all else",
        "18 bytes per parameter in 16 bits", _formula, is_of_full=True,
    ),
    Rule(
        "full-linear", FULL, "Memory is linear in the number of parameters",
        "13B is a fifth of 70B, under 200 GB", _linear, is_of_full=True,
    ),
    Rule("batch-doubles", FULL, "Twice the batch takes twice the memory", "2 x", _batch_doubles),
    Rule(
        "low-bit-partial", FULL,
        "Weights in 8 or 4 bits shrink the parameters only; gradients and optimizer stay",
        "a half, a quarter", _low_bit,
    ),
    Rule("weights-7b", FULL, "Weights: 4 bytes in fp32, 2 in fp16", "7B: 28 and 14 GB", _weights),
    Rule("lora-saves", ADAPTERS, "LoRA reduces memory", "70 %", _lora_saves),
    Rule(
        "lora-70b", ADAPTERS,
        "LoRA = 16-bit base + adapters of 2 % of the parameters with gradients and AdamW",
        "70B: 140 + 2.8 + 14, about 160 GB", _lora_sum,
    ),
    Rule(
        "qlora-gigabyte", ADAPTERS,
        "QLoRA needs about as many gibibytes as the model has billions of parameters",
        "7B: 7 GB", _qlora_gigabyte,
    ),
    Rule(
        "qlora-time", ADAPTERS, "QLoRA is slower than LoRA, in return for memory",
        "39 % more time, 33 % less memory", _qlora_time,
    ),
    Rule("int8-compute", ADAPTERS, "LLM.int8() multiplies mostly in int8", "-", _int8_compute),
    Rule("qat", ADAPTERS, "Quantisation-aware training is a memory technique", "-", _qat),
    Rule("moe-saves", MOE, "Only the active experts use memory", "up to 80 %", _moe_saves),
    Rule(
        "moe-equivalent", MOE, "A mixture needs what a dense model of its active part would",
        "Qwen3-235B-A22B = 22B + 7.8B: 500 GB, LoRA 110 GB", _moe_equivalent,
    ),
    Rule(
        "moe-pitfalls", MOE, "Imbalance wastes compute, all-to-all adds latency", "-",
        _moe_pitfalls,
    ),
    Rule(
        "zero-paper-16", "other calculators",
        "ZeRO's table: 2 + 2 + 12 bytes per parameter with Adam in mixed precision",
        "16 B per parameter", _sixteen, is_of_full=True,
    ),
)  # fmt: skip
