"""Handing a built model over to DeepSpeed.

The model is built whole, as on one device, and then parted, so that its first numbers are the same.
The optimizer is Brimful's own rule over the parameters, which DeepSpeed flattens and parts; with
offload its state is on the host and so is the update, by the same kernel of torch.
"""

import importlib
import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from brimful.build.deepspeed.config import HELD, deepspeed_config
from brimful.build.optimizers.base import parameter_groups, rule_named
from brimful.build.parallel.alone import join_alone
from brimful.build.precision import forward_context
from brimful.errors import UnsupportedError
from brimful.values.job import Job
from brimful.values.strategy import Strategy

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_ACCELERATOR = "DS_ACCELERATOR"
"""The variable by which DeepSpeed is told on what it runs; else it looks for a GPU."""
_SHARED_MEMORY = "deepspeed_shm_comm"
"""A kernel that adds up between processes of one machine without gloo. It is compiled where it is
first used, which takes minutes and a compiler; gloo does it too."""
_RENAMED = r"`torch\.distributed\.\w+` is deprecated"
"""What torch says each time of two collectives whose old names DeepSpeed uses."""


class EngineRoot(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """What DeepSpeed calls: the root in the recipe's context.

    The context is entered here because DeepSpeed switches off an autocast that it did not enter.
    """

    def __init__(self, root: nn.Module, job: Job, device: torch.device) -> None:
        """Keep what is called."""
        super().__init__()
        self.root = root
        self._precision, self._device = job.precision, device

    def forward(self, program: Any, batch: Any, num_targets: int) -> torch.Tensor:
        """Return a micro-batch's share of the step's loss; see ``TaskParts.share``."""
        with forward_context(self._precision, self._device):
            share: torch.Tensor = self.root(program, batch, num_targets)
        return share


def import_deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed for a device."""
    if device.type == "cpu":
        os.environ.setdefault(_ACCELERATOR, "cpu")
    try:
        deepspeed = importlib.import_module("deepspeed")
    except ImportError as error:
        raise UnsupportedError(
            f"engine=deepspeed needs DeepSpeed, which cannot be imported ({error}); "
            f"DS_BUILD_OPS=0 pip install 'brimful[deepspeed]' or use engine=torch"
        ) from error
    warnings.filterwarnings("ignore", message=_RENAMED, category=FutureWarning)
    if device.type == "cpu":
        deepspeed.ops.__compatible_ops__[_SHARED_MEMORY] = False
    return deepspeed


def build_engine(root: nn.Module, job: Job, strategy: Strategy, device: torch.device) -> Any:
    """Part a model, its gradients and its optimizer's state among the processes.

    ``strategy``: says the stage and what is on the host. Returns a ``DeepSpeedEngine``: what a
    micro-batch is called through. Raises UnsupportedError: DeepSpeed is not installed, or would
    hold parameters in another type.
    """
    _check_types(root, job)
    deepspeed = import_deepspeed(device)
    accelerator = deepspeed.accelerator.get_accelerator()
    if HELD[job.precision] == "fp16" and not accelerator.is_fp16_supported():
        raise UnsupportedError(
            f"precision={job.precision} is refused by DeepSpeed on a {accelerator.device_name()} "
            f"without units for fp16; use bf16-master or fp32, or engine=torch"
        )
    # Make a group of one where this process trains alone: DeepSpeed needs one, and its number.
    if not dist.is_initialized():
        join_alone(device.type)
        os.environ.setdefault("LOCAL_RANK", "0")
    optimizer = rule_named(job.optimizer)(parameter_groups(job, root), job)
    engine, *_ = deepspeed.initialize(
        model=EngineRoot(root, job, device),
        optimizer=optimizer,
        config=deepspeed_config(job, strategy),
        dist_init_required=False,
    )
    return engine


def base_optimizer(engine: Any) -> torch.optim.Optimizer:
    """Return the rule that updates this process's part."""
    optimizer: torch.optim.Optimizer = engine.basic_optimizer
    return optimizer


def _check_types(root: nn.Module, job: Job) -> None:
    """Refuse a model that the recipe holds in several types: DeepSpeed casts all to one."""
    held = _DTYPES[HELD[job.precision]]
    odd = next((name for name, p in root.named_parameters() if p.dtype != held), None)
    if odd is not None:
        raise UnsupportedError(
            f"{odd.removeprefix('model.')} is not held in {held} by precision={job.precision}, "
            f"and engine=deepspeed holds all in one type; use precision=fp32, or engine=torch"
        )
