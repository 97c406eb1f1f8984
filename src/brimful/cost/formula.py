"""Which jobs the first rung has a formula for. What it has none for is unknown here, not guessed.

Formulas come from traces (``profiles.py``), so this is a list of the programs that were traced.
"""

from brimful.cost.profiles import TRACED_ATTENTIONS, untraced_attention
from brimful.errors import UnsupportedError
from brimful.hardware.cluster import Device
from brimful.job import Job, Method, Optimizer, Packing, Task
from brimful.strategy import Strategy, is_selective

TASKS: frozenset[Task] = frozenset({"causal-lm", "chat"})
METHODS: frozenset[Method] = frozenset({"full"})
PACKINGS: frozenset[Packing] = frozenset({"wrapped", "none"})
"""Packed documents take another attention kernel, and a map of documents beside the tokens."""
UNTRACED_OPTIMIZERS: dict[str, frozenset[Optimizer]] = {"cuda": frozenset({"adafactor"})}
"""CUDA's norms of columns leave partial results of every block of threads, which can outweigh all
else that Adafactor needs; their size hangs on the card."""
TRACED_FIELDS = {"llama": {"hidden_act": "silu"}, "gpt2": {"activation_function": "gelu_new"}}
"""Architectures, and what of their configuration decides how much a block keeps: with relu a tiny
GPT-2 simulates 14 % below what its profile predicts."""


def missing_formula(job: Job, strategy: Strategy, device: Device) -> str:
    """Say in one sentence why no formula covers a job, and what covers it; empty where one does.

    Args:
        job: What is trained.
        strategy: How; only its attention and its kind of checkpointing matter.
        device: On what; only whose kernels it has matters.
    """
    untraced = UNTRACED_OPTIMIZERS.get(device.kernels, frozenset())
    covered = {
        f"task={job.task}": job.task in TASKS,
        f"method={job.method}": job.method in METHODS,
        f"packing={job.packing}": job.packing in PACKINGS,
        f"attention={strategy.attention}": strategy.attention in TRACED_ATTENTIONS,
        f"activation_checkpointing={strategy.activation_checkpointing}": not is_selective(strategy),
        f"optimizer={job.optimizer} on {device.kernels}": job.optimizer not in untraced,
        **_architecture(job),
    }
    missing = [setting for setting, is_covered in covered.items() if not is_covered]
    if missing:
        return (
            f"{' and '.join(missing)} has no formula to predict from; brimful plan and brimful "
            f"simulate trace it instead"
        )
    return untraced_attention(job.model, job.precision, strategy.attention, device.kernels)


def check_formula(job: Job, strategy: Strategy, device: Device) -> None:
    """Refuse a job that no formula covers.

    Raises:
        UnsupportedError: None does.
    """
    reason = missing_formula(job, strategy, device)
    if reason:
        raise UnsupportedError(reason)


def _architecture(job: Job) -> dict[str, bool]:
    model = job.model
    fields = TRACED_FIELDS.get(model.model_type)
    if fields is None:
        return {f"model_type={model.model_type}": False}
    given = {field: model.hf_config.get(field, traced) for field, traced in fields.items()}
    return {f"{field}={value}": value == fields[field] for field, value in given.items()}
