"""Other calculators, as formulas of ours, beside our own number for the same run."""

from brimful.cost.states import held_bytes
from brimful.models.config import layout_of
from brimful.models.layout import parts
from brimful.rules.base import Finding, Rule, compare, gibibytes
from brimful.rules.subject import (
    DEVICES_PER_NODE,
    Subject,
    full,
    mixed,
    num_parameters,
    peak,
    run,
    run_many,
    saved_per_sequence,
)

GROUP = "other calculators"
OVERHEAD = 1.5


def accelerate_bytes(num_parameters: int) -> int:
    """``accelerate estimate-memory``: training with Adam in fp32 is four times the weights.

    Source: ``estimate_training_usage`` of ``accelerate/commands/estimate.py`` (1.15).
    """
    return 4 * 4 * num_parameters


def deepspeed_zero2_bytes(num_parameters: int, *, num_devices: int) -> int:
    """DeepSpeed's estimator of stage 2 without offload: 2 P + 18 P / N.

    Source: ``estimate_zero2_model_states_mem_needs`` of ``stage_1_and_2.py`` of DeepSpeed 0.19.8;
    earlier versions said 4 P + 16 P / N.
    """
    return 2 * num_parameters + 18 * num_parameters // num_devices


def deepspeed_zero3_bytes(num_parameters: int, *, largest_layer: int, num_devices: int) -> int:
    """DeepSpeed's estimator of stage 3 without offload: 4 x the largest layer + 18 P / N.

    Source: ``estimate_zero3_model_states_mem_needs`` of ``deepspeed/runtime/zero/stage3.py``.
    """
    return 4 * largest_layer + 18 * num_parameters // num_devices


def korthikanti_bytes(
    *, seq_len: int, batch: int, hidden: int, num_heads: int, num_layers: int
) -> float:
    """Activations of all layers in 16 bits: L s b h (34 + 5 a s / h).

    Source: Korthikanti et al. 2022, arXiv:2205.05198, equation 1 (no parallelism, dropout masks
    included, eager attention, an MLP four times as wide).
    """
    per_layer = seq_len * batch * hidden * (34 + 5 * num_heads * seq_len / hidden)
    return num_layers * per_layer


def eleuther_bytes(num_parameters: int, activation_bytes: float) -> float:
    """EleutherAI's "Transformer Math 101": weights 2, gradients 2, AdamW 12 B, activations.

    Source: blog.eleuther.ai/transformer-math, in 16-bit mixed precision without sharding; its
    activation term is that of Korthikanti et al. Named from memory.
    """
    return (2 + 2 + 12) * num_parameters + activation_bytes


def largest_layer(subject: Subject) -> int:
    """Count the parameters of the largest module that has any of its own: here one matrix."""
    layout = layout_of(subject.job.model)
    return max(p.num_elements for group, _ in parts(layout) for p in group)


def _activations_of(subject: Subject) -> float:
    job, model = subject.job, subject.job.model
    return korthikanti_bytes(
        seq_len=job.seq_len,
        batch=subject.strategy.micro_batch,
        hidden=model.hidden_size,
        num_heads=model.num_heads,
        num_layers=model.num_layers,
    )


def _accelerate(subject: Subject) -> Finding:
    job = full(subject, "fp32")
    return compare(
        accelerate_bytes(num_parameters(job)),
        peak(run(subject, job)),
        gibibytes,
        why=f"it counts no activations: {gibibytes(held_bytes(job))} held is exactly its figure",
        rung="predicted, fp32",
    )


def _zero2(subject: Subject) -> Finding:
    job = full(subject, "bf16-master")
    says = deepspeed_zero2_bytes(num_parameters(job), num_devices=DEVICES_PER_NODE)
    made = run_many(subject, job, zero=2, dp_shard=DEVICES_PER_NODE)
    return compare(
        says,
        peak(made),
        gibibytes,
        why=f"model states on {DEVICES_PER_NODE} devices; activations are left out",
    )


def _zero3(subject: Subject) -> Finding:
    job = full(subject, "bf16-master")
    says = deepspeed_zero3_bytes(
        num_parameters(job), largest_layer=largest_layer(subject), num_devices=DEVICES_PER_NODE
    )
    made = run_many(subject, job, zero=3, dp_shard=DEVICES_PER_NODE)
    return compare(
        says,
        peak(made),
        gibibytes,
        why=f"model states on {DEVICES_PER_NODE} devices, one gathered matrix; FSDP gathers a "
        f"whole block and the next one, and activations are left out",
    )


def _eleuther(subject: Subject) -> Finding:
    job = full(subject, "bf16-master")
    return compare(
        eleuther_bytes(num_parameters(job), _activations_of(subject)),
        peak(run(subject, job, attention="eager")),
        gibibytes,
        why="states are exact; logits and their gradients, of vocabulary size, are not in it, and "
        "its activations are those of GPT with dropout and an MLP of 4 x",
        rung="predicted, bf16-master, eager attention",
    )


def _korthikanti(subject: Subject) -> Finding:
    """Saved activations without the logits, with the attention that the formula is of."""
    saved = saved_per_sequence(subject, full(subject, "bf16"), attention="eager")
    return compare(
        _activations_of(subject),
        saved * subject.strategy.micro_batch,
        gibibytes,
        why="it is Megatron's GPT: dropout masks, GELU, four times as wide an MLP; gated MLPs, "
        "RMSNorm in fp32 and grouped heads that are repeated save something else",
        rung="predicted, bf16, eager attention",
    )


def _half_again(subject: Subject) -> Finding:
    job = mixed(subject)
    made = run(subject, job)
    return compare(
        OVERHEAD * held_bytes(job),
        peak(made),
        gibibytes,
        why=f"the factor is {peak(made) / held_bytes(job):.3g} here, at "
        f"micro_batch={subject.strategy.micro_batch} and seq_len={job.seq_len}; it grows with both",
        rung=f"predicted, {job.precision}",
    )


CALCULATOR_RULES = (
    Rule("accelerate-4x", GROUP, "accelerate estimate-memory: four times the weights",
         "16 B per parameter, no activations", _accelerate, is_of_full=True),
    Rule("deepspeed-zero2", GROUP, "DeepSpeed's estimator of ZeRO-2", "2 P + 18 P / N", _zero2,
         is_of_full=True),
    Rule("deepspeed-zero3", GROUP, "DeepSpeed's estimator of ZeRO-3",
         "4 x the largest layer + 18 P / N", _zero3, is_of_full=True),
    Rule("eleuther", GROUP, "EleutherAI's Transformer Math 101: 16 B per parameter + activations",
         "16 P + L s b h (34 + 5 a s / h)", _eleuther, is_of_full=True),
    Rule("korthikanti", GROUP, "Activations of one layer: s b h (34 + 5 a s / h)",
         "Korthikanti et al. 2022", _korthikanti),
    Rule("times-1.5", GROUP, "Whatever is held, times 1.5", "x 1.5", _half_again, is_of_full=True),
)  # fmt: skip
