"""What of a configuration the shipped profiles were traced with: fields that decide operations."""

from typing import Any, NamedTuple

from brimful.cost.programs import ONE_KERNEL_GELU, SAME_CODE
from brimful.job import Job
from brimful.models.config import experts_of
from brimful.models.spec import ModelSpec


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


def traced_fields(job: Job) -> dict[str, bool]:
    """Say of what decides a block's operations whether shipped profiles were traced with it."""
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
