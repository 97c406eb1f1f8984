"""What of a configuration the shipped profiles were traced with: fields that decide operations."""

from brimful.cost.kv_cache import window_of
from brimful.models.architectures import record_of
from brimful.models.config import experts_of
from brimful.models.spec import ModelSpec
from brimful.values.job import Job

_ROW_WEIGHTS = 8
"""What the widths of experts are multiples of: grouped products take rows of 16 bytes."""


def traced_fields(job: Job) -> dict[str, bool]:
    """Say of what decides a block's operations whether shipped profiles were traced with it.

    Beyond Llama-type blocks fields decide how much a block keeps: with relu a tiny GPT-2 simulates
    14 % below what the profile of ``gelu_new`` predicts.
    """
    model = job.model
    record = record_of(model.model_type)
    if not record.traced_as:
        return {f"model_type={model.model_type}": False}
    fields = record.traced
    rotary = model.hf_config.get("rope_parameters")
    rotary = rotary if isinstance(rotary, dict) else {}
    given = {
        field: model.hf_config.get(field, rotary.get(field, traced.default))
        for field, traced in fields.items()
    }
    covered = {f"{field}={value}": value in fields[field].values for field, value in given.items()}
    for cap in record.caps:
        covered[f"{cap}=null"] = model.hf_config.get(cap, 1.0) is not None
    covered.update(_experts(model))
    # How far back a token sees; None for all the way, or where that decides no byte. Scores of
    # their own are all written out, and masked beyond a window.
    window = None if record_of(job.model.model_type).own_scores else window_of(job.model)
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
