"""Which jobs the first rung has a formula for. What it has none for is unknown here, not guessed.

Formulas come from traces (``profiles.py``), so this is a list of the programs that were traced.
"""

from typing import Any, NamedTuple

from brimful.cost.family import family_of
from brimful.cost.preference import missing_reference
from brimful.cost.profiles import is_shipped
from brimful.cost.programs import (
    HALF,
    ONE_KERNEL_GELU,
    SAME_CODE,
    TRACED_AS,
    TRACED_ATTENTIONS,
    kernels_of,
    program_of,
    tuning_of,
    untraced_attention,
)
from brimful.cost.trained import untied_job
from brimful.errors import UnknownMemoryError, UnsupportedError
from brimful.hardware.cluster import Device
from brimful.job import QAT, Job, Optimizer, Packing, Task
from brimful.models.config import experts_of
from brimful.models.spec import ModelSpec
from brimful.offload import NONE as NO_OFFLOAD
from brimful.pipeline_split import Schedule
from brimful.strategy import Strategy, gathers_alone, num_micro_batches

TASKS: frozenset[Task] = frozenset({"causal-lm", "chat", "dpo"})
PREDICTED_SCHEDULES: frozenset[Schedule] = frozenset({"1f1b", "gpipe", "interleaved"})
"""Orders of work that keep a backward whole; what lives between its halves was not derived."""
PACKINGS: frozenset[Packing] = frozenset({"wrapped", "none"})
"""Packed documents take another attention kernel, and a map of documents beside the tokens."""
UNTRACED_OPTIMIZERS: dict[str, frozenset[Optimizer]] = {
    "cuda": frozenset({"adafactor", "adamw-4bit", "adamw-fp8"})
}
"""CUDA's norms of columns leave partial results of every block of threads, which can outweigh all
else that Adafactor needs; their size hangs on the card. What is compiled for a card is not known
before it runs there."""


class Traced(NamedTuple):
    """What was traced of a field of a configuration.

    Attributes:
        default: What the class fills in.
        values: The values that were traced.
    """

    default: Any
    values: tuple[Any, ...]


_SILU = {"hidden_act": Traced("silu", ("silu",))}
_ROUTED = {
    **_SILU,
    "experts_implementation": Traced("grouped_mm", ("grouped_mm",)),
    "output_router_logits": Traced(False, (False,)),
}
TRACED_FIELDS: dict[str, dict[str, Traced]] = {
    "gemma2": {"hidden_activation": Traced("gelu_pytorch_tanh", ONE_KERNEL_GELU)},
    "gpt2": {"activation_function": Traced("gelu_new", ("gelu_new", *ONE_KERNEL_GELU))},
    "mixtral": _ROUTED,
    "phi3": {**_SILU, "partial_rotary_factor": Traced(1.0, (1.0,))},
    "qwen3_moe": _ROUTED,
}
"""What of a configuration decides how much a block keeps, other than in Llama-type blocks: with
relu a tiny GPT-2 simulates 14 % below what the profile of ``gelu_new`` predicts. Qwen3's mixtures
were traced with ``norm_topk_prob``; without it a few bytes per token less are kept, 0.02 % of the
peak of a model of width 1024."""
_CAPS = {"gemma2": ("attn_logit_softcapping", "final_logit_softcapping")}
"""Numbers that scores and logits are capped by; null caps nothing, which was not traced."""
_MASKED_WINDOWS = ("gemma2",)
"""Architectures that write all scores out and mask those beyond a window: it decides no byte."""
_ROW_WEIGHTS = 8
"""What the widths of experts are multiples of: grouped products take rows of 16 bytes."""
_DEFAULT_WINDOWS = {"mistral": 4096}
"""Windows of architectures whose configuration need not name one."""


def missing_formula(job: Job, strategy: Strategy, device: Device) -> str:
    """Say in one sentence why no formula covers a job, and what covers it; empty where one does.

    Args:
        job: What is trained.
        strategy: How; only its attention, its kind of checkpointing, ``zero``, ``tp`` and how its
            pipeline works matter.
        device: On what; only whose kernels it has matters.
    """
    if strategy.engine != "torch":
        return (
            f"engine={strategy.engine} has no formula to predict from, and is not simulated; "
            f"brimful train measures it, and engine=torch is predicted"
        )
    if what := _untraced_switch(strategy):
        return (
            f"{what} has no formula to predict from in this version; brimful plan and brimful "
            f"simulate trace it instead"
        )
    if strategy.pp > 1:
        if reason := _missing_row(job, strategy):
            return reason
        job = untied_job(job)
    if strategy.ep > 1 and (reason := missing_parted(job, strategy)):
        return reason
    untraced = UNTRACED_OPTIMIZERS.get(device.kernels, frozenset())
    covered = {
        f"task={job.task}": job.task in TASKS,
        f"method={job.method} with these adapters": tuning_of(job) is not None,
        f"method={job.method}": job.method != QAT,
        f"packing={job.packing}": job.packing in PACKINGS,
        f"attention={strategy.attention}": strategy.attention in TRACED_ATTENTIONS,
        f"optimizer={job.optimizer} on {device.kernels}": job.optimizer not in untraced,
        f"precision={job.precision}": job.precision in TRACED_AS,
        f"keep_fp32={','.join(job.keep_fp32)}": not job.keep_fp32,
        f"router_aux_loss={job.router_aux_loss}": not job.router_aux_loss,
        f"router_z_loss={job.router_z_loss}": not job.router_z_loss,
        **_architecture(job),
    }
    missing = [setting for setting, is_covered in covered.items() if not is_covered]
    if missing:
        return (
            f"{' and '.join(missing)} has no formula to predict from; brimful plan and brimful "
            f"simulate trace it instead"
        )
    unlike = untraced_attention(
        job.model, job.precision, strategy.attention, kernels_of(device), tp=strategy.tp
    )
    unasked = missing_reference(job, strategy.attention, strategy.reference, device)
    return unlike or _unshipped(job, strategy, device) or unasked


def told_short(reason: str) -> str:
    """Say what ``missing_formula`` says without what to do about it."""
    what, is_named, _ = reason.partition(" has no formula")
    return f"no formula covers {what}" if is_named else reason.partition(";")[0]


def _untraced_switch(strategy: Strategy) -> str:
    """Name a switch that no formula was traced with; empty where there is none."""
    asked = {
        f"offload={strategy.offload}": strategy.offload != NO_OFFLOAD,
        "optimizer_in_backward=True": strategy.optimizer_in_backward,
        # torch leaves out the buffers of a gather there, and of a reduction
        f"zero={strategy.zero} on one device": gathers_alone(strategy),
    }
    return next((what for what, is_asked in asked.items() if is_asked), "")


def missing_parted(job: Job, strategy: Strategy) -> str:
    """Say why no formula covers parted experts; empty where those of their blocks do."""
    covered = {
        f"tp={strategy.tp}": strategy.tp == 1,
        f"pp={strategy.pp}": strategy.pp == 1,
        f"method={job.method}": job.method == "full",
    }
    if missing := [setting for setting, is_covered in covered.items() if not is_covered]:
        return (
            f"ep={strategy.ep} with {' and '.join(missing)} has no formula to predict from; "
            f"brimful simulate traces it, for balanced routing and for the worst"
        )
    return ""


def _missing_row(job: Job, strategy: Strategy) -> str:
    """Say why no formula covers a pipeline; empty where those of its blocks do."""
    num = num_micro_batches(job, strategy)
    covered = {
        f"pp_schedule={strategy.pp_schedule}": strategy.pp_schedule in PREDICTED_SCHEDULES,
        f"zero={strategy.zero}": strategy.zero != 1,
        f"method={job.method}": job.method == "full",
        f"{num} micro-batch": num > 1,
    }
    if missing := [setting for setting, is_covered in covered.items() if not is_covered]:
        return (
            f"pp={strategy.pp} with {' and '.join(missing)} has no formula to predict from; "
            f"brimful simulate traces it, device by device of the row"
        )
    return ""


def _unshipped(job: Job, strategy: Strategy, device: Device) -> str:
    family = family_of(job, strategy)
    if family.gathers and strategy.attention == "eager" and job.precision in HALF:
        return (
            f"zero={strategy.zero} with precision={job.precision} and attention=eager has no "
            f"formula to predict from (its masks are fp32, and were traced in 16 bits); use zero=1 "
            f"or precision={job.precision.removesuffix('-mixed')}, or brimful simulate, which "
            f"traces it"
        )
    recompute, gathers, tp, ep = family.recompute, family.gathers, family.tp, family.ep
    program = program_of(
        job, strategy.attention, kernels_of(device), recompute, gathers=gathers, tp=tp, ep=ep
    )
    if is_shipped(program.key):
        return ""
    checkpointing, cut = strategy.activation_checkpointing, f"tp={tp}, " if tp > 1 else ""
    return (
        f"{job.model.name} with {cut}method={job.method}, attention={strategy.attention} and "
        f"activation_checkpointing={checkpointing} on {device.kernels} has no formula to predict "
        f"from (no profile {program.key}); brimful plan and brimful simulate trace it instead"
    )


def check_formula(job: Job, strategy: Strategy, device: Device) -> None:
    """Refuse a job that no formula covers.

    Raises:
        UnsupportedError: None does.
    """
    reason = missing_formula(job, strategy, device)
    if reason:
        if strategy.engine != "torch":
            raise UnknownMemoryError(reason, nearest={"engine": "torch"})
        raise UnsupportedError(reason)


def _architecture(job: Job) -> dict[str, bool]:
    model = job.model
    if model.model_type not in SAME_CODE:
        return {f"model_type={model.model_type}": False}
    fields = TRACED_FIELDS.get(model.model_type, _SILU)
    rotary = model.hf_config.get("rope_parameters")
    rotary = rotary if isinstance(rotary, dict) else {}
    given = {
        field: model.hf_config.get(field, rotary.get(field, traced.default))
        for field, traced in fields.items()
    }
    covered = {f"{field}={value}": value in fields[field].values for field, value in given.items()}
    caps = _CAPS.get(model.model_type, ())
    covered.update({f"{cap}=null": model.hf_config.get(cap, 1.0) is not None for cap in caps})
    covered.update(_experts(model))
    window = _window(job.model)
    if window is not None:
        covered[f"seq_len={job.seq_len} beyond sliding_window={window}"] = job.seq_len <= window
    return covered


def _experts(model: ModelSpec) -> dict[str, bool]:
    """Say what of a mixture of experts was traced: every block has some, and their rows fit."""
    found = experts_of(model)
    if not found.num_experts:
        return {}
    num_sparse, widths = len(found.sparse_blocks), (model.hidden_size, found.width)
    return {
        f"experts in {num_sparse} of {model.num_layers} blocks": num_sparse == model.num_layers,
        f"experts of {widths[0]} x {widths[1]}, not multiples of {_ROW_WEIGHTS},": not any(
            width % _ROW_WEIGHTS for width in widths
        ),
    }


def _window(model: ModelSpec) -> int | None:
    """Return how far back a token sees; None for all the way, or where that decides no byte."""
    if model.model_type in _MASKED_WINDOWS:
        return None
    window: int | None = model.hf_config.get(
        "sliding_window", _DEFAULT_WINDOWS.get(model.model_type)
    )
    is_off = model.model_type.startswith("qwen") and not model.hf_config.get("use_sliding_window")
    return None if is_off else window
