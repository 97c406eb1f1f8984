"""What only the built model can tell of exactness (``techniques.exact``, ``built``)."""

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from brimful.errors import InputError
from brimful.techniques.exact import exactness
from brimful.values.job import Job
from brimful.values.strategy import Strategy


def check_built(job: Job, strategy: Strategy, model: nn.Module) -> nn.Module:
    """Return the model as it is, or say which module of it a switch would change.

    Raises InputError: batches are split, or activations recomputed, and a module normalises over
    its batch.
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            _check_statistics(job, strategy, f"{name} ({type(module).__name__})")
    return model


def _check_statistics(job: Job, strategy: Strategy, module: str) -> None:
    if exactness(job, "micro_batch", strategy.micro_batch).how == "built":
        raise InputError(
            f"micro_batch={strategy.micro_batch} of global_batch={job.global_batch} would change "
            f"what this job learns: {module} takes statistics over the rows that run together; use "
            f"micro_batch={job.global_batch}"
        )
    checkpointing = strategy.activation_checkpointing
    if exactness(job, "activation_checkpointing", checkpointing).how == "built":
        raise InputError(
            f"activation_checkpointing={checkpointing} would change what this job learns: {module} "
            f"updates its running statistics in every forward pass, recomputing included; use none"
        )
