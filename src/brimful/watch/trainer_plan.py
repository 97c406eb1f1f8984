"""What Brimful's own loop would take with a Trainer's settings: the first rung, by arithmetic.

It is another program than the Trainer's, by a few percent of the peak at most where it has been
compared, and the page says which is which.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from brimful.cost.estimate import estimate
from brimful.errors import BrimfulError
from brimful.hardware.cluster import Cluster
from brimful.models.config import read_config
from brimful.models.dropout import DROPS
from brimful.techniques.fused_kernels import FusedKernels
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Job, LossScale, Precision
from brimful.values.plan import Estimate
from brimful.values.strategy import Attention, Strategy

_OPTIMIZERS = {
    rule.transformers.name: name
    for name, rule in OPTIMIZERS.items()
    if rule.transformers is not None and rule.transformers.is_same
}
"""What updates there as ours does."""
_ATTENTION: dict[str, Attention] = {"eager": "eager", "sdpa": "sdpa"}
_RECIPES: dict[tuple[str, torch.dtype], Precision] = {
    ("", torch.float32): "fp32",
    ("bf16", torch.float32): "bf16-mixed",
    ("fp16", torch.float32): "fp16-mixed",
    ("", torch.bfloat16): "bf16",
    ("", torch.float16): "fp16",
}
"""By what is autocast and the type of the parameters."""


_TORCH_SCALE = LossScale(
    initial_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
)
"""Source: defaults of ``torch.amp.GradScaler``, which ``accelerate`` leaves alone."""


class Predicted(NamedTuple):
    """What came of it.

    Attributes:
        estimate: The first rung, or None.
        why_not: Why there is none; empty where there is one.
    """

    estimate: Estimate | None
    why_not: str


class _Unlike(Exception):  # noqa: N818 - no error: the two cannot be compared
    """A setting that Brimful's own loop does not have."""


def predict(trainer: Any, batches: Sequence[Any], cluster: Cluster) -> Predicted:
    """Estimate a Trainer's settings, on one device.

    Args:
        trainer: It has trained.
        batches: What its metered steps were given.
        cluster: On what: one device.
    """
    try:
        job = _job(trainer, batches)
        strategy = check_strategy(job, _strategy(trainer))
        return Predicted(estimate(job, cluster, strategy), "")
    except (_Unlike, BrimfulError) as error:
        return Predicted(None, str(error))


def _job(trainer: Any, batches: Sequence[Any]) -> Job:
    args, model = trainer.args, trainer.model
    if hasattr(model, "peft_config"):
        raise _Unlike("adapters of a watched Trainer are not expressed as a job by this version")
    if not type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")):
        raise _Unlike(f"{type(model).__name__} is no causal language model")
    if dropped := _unknown_dropout(model.config):
        raise _Unlike(f"{dropped} is on, of which Brimful does not know what it drops")
    precision = _precision(args, model)
    return Job(
        model=read_config(type(model).__name__, model.config.to_dict()),
        weights=None,
        task="causal-lm",
        method="full",
        adapter=None,
        precision=precision,
        loss_scale=_TORCH_SCALE if precision == "fp16-mixed" else None,
        optimizer=_known(_OPTIMIZERS, _text(args.optim), "optim"),
        beta1=args.adam_beta1,
        beta2=args.adam_beta2,
        epsilon=args.adam_epsilon,
        seq_len=_longest(batches),
        packing="none",
        global_batch=args.per_device_train_batch_size * args.gradient_accumulation_steps,
        num_steps=max(1, trainer.state.max_steps),
        learning_rate=args.learning_rate,
        schedule="constant",
        warmup_steps=0,
        weight_decay=args.weight_decay,
        clip=args.max_grad_norm,
        seed=args.seed,
        dropout="model",
    )


def _strategy(trainer: Any) -> Strategy:
    args = trainer.args
    kernel = getattr(trainer.model.config, "_attn_implementation", "")
    checkpoints = any(getattr(m, "gradient_checkpointing", False) for m in trainer.model.modules())
    return Strategy(
        micro_batch=args.per_device_train_batch_size,
        activation_checkpointing="full" if checkpoints else "none",
        loss_chunks=1,
        attention=_known(_ATTENTION, str(kernel), "attention"),
        fused_kernels=_fused(args),
    )


def _fused(args: Any) -> FusedKernels:
    """Return whose kernels run: Liger's, all that it applies by itself, or PyTorch's."""
    if not getattr(args, "use_liger_kernel", False):
        return "none"
    if config := getattr(args, "liger_kernel_config", None):
        raise _Unlike(f"liger_kernel_config={config} chooses among Liger's kernels")
    return "liger"


def _unknown_dropout(config: Any) -> str:
    """Name a kind of dropout that a model has and nobody knows here; empty: there is none."""
    on = (k for k, v in config.to_dict().items() if "drop" in k and isinstance(v, float) and v > 0)
    return next((field for field in on if not DROPS.search(field)), "")


def _precision(args: Any, model: torch.nn.Module) -> Precision:
    lowered = "bf16" if args.bf16 else "fp16" if args.fp16 else ""
    dtypes = {p.dtype for p in model.parameters()}
    if len(dtypes) > 1:
        raise _Unlike(f"parameters are of {len(dtypes)} types")
    recipe: Precision = _known(_RECIPES, (lowered, dtypes.pop()), "precision")
    return recipe


def _longest(batches: Sequence[Any]) -> int:
    shapes = [batch["input_ids"].shape for batch in batches if "input_ids" in batch]
    if not shapes:
        raise _Unlike("its batches have no input_ids")
    return int(max(shape[1] for shape in shapes))


def _known(table: dict[Any, Any], key: Any, name: str) -> Any:
    if key not in table:
        raise _Unlike(f"{name} {key} has no counterpart in Brimful's own loop")
    return table[key]


def _text(value: Any) -> str:
    return str(getattr(value, "value", value))
