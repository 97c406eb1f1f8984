"""What every update rule is given, and the groups that all share."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from brimful.build.blocks import decoder_blocks
from brimful.build.managed import paged
from brimful.build.own import piecewise, range_of, share_of
from brimful.errors import UnsupportedError
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS, Settings, Updated
from brimful.techniques.optimizers.base import FP32_BYTES, STEP, State, StateType
from brimful.values.job import Job

Group = dict[str, Any]
JobRule = Callable[[list[Group], Job], torch.optim.Optimizer]
"""Makes an optimizer over groups of parameters with the job's rates; one file each."""
Rule = Callable[[list[Group]], torch.optim.Optimizer]
"""The same of one job."""
TYPES: dict[StateType, torch.dtype] = {
    "fp32": torch.float32,
    "uint8": torch.uint8,
    "fp8": torch.float8_e4m3fn,
}
"""Of what is kept of a parameter in another type than its own."""
HIDDEN = "is_hidden"
"""Key of the group whose parameters are matrices of blocks."""
NO_SETTINGS = Settings(num_bytes=FP32_BYTES, kernels="cpu", momentum=0.0, decay=0.0)
Parted = Callable[[list[Group], Rule, float], torch.optim.Optimizer]
"""Makes the optimizer of which each device keeps a part: from groups of parameters, the rule that
updates one part, and its first rate."""


def parameter_groups(job: Job, model: nn.Module) -> list[Group]:
    """List the parameters that train: those that decay (matrices), then those that do not.

    Rules that tell matrices of blocks from others get those first, marked as ``HIDDEN``. A frozen
    parameter is in no group, so that it gets no state. Parameters that are sharded
    over other devices than the first ones are, as experts can be, come in groups of their own:
    kernels that update many at once take those of one mesh.

    Raises UnsupportedError: the rule updates matrices alone, and a block trains a convolution.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    decays = {"weight_decay": job.weight_decay, "lr": job.learning_rate}
    rule, groups, hidden = OPTIMIZERS[job.optimizer], list[Group](), set[nn.Parameter]()
    if rule.tells_hidden:
        hidden = set(_hidden(job, model))
        groups.append({**decays, "params": [p for p in trained if p in hidden], HIDDEN: True})
    # Part parameters by the devices that share them, in the order of their first ones.
    parameters = [p for p in trained if p not in hidden]
    found: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        found.setdefault(mesh, []).append(parameter)
    for alike in list(found.values()) or [[]]:
        groups.append({**decays, "params": [p for p in alike if _num_dims(p) > 1]})
        ones = [p for p in alike if _num_dims(p) <= 1]
        groups.append({**decays, "params": ones, "weight_decay": 0.0})
    return groups


def _num_dims(parameter: nn.Parameter) -> int:
    """Count the dimensions that a parameter has as a whole."""
    found = range_of(parameter)
    return parameter.ndim if found is None else len(found.shape)


def _hidden(job: Job, model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the matrices of blocks that train, and stacks of them; a table of embeddings is none.

    Nor are the biases of experts, which are stacks of vectors.
    """
    modules = [each for block in decoder_blocks(model) for each in block.modules()]
    for module in modules:
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or _num_dims(parameter) <= 1:
                continue
            if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
                raise UnsupportedError(
                    f"optimizer={job.optimizer} updates matrices, and {name} of "
                    f"{type(module).__name__} is a kernel of {parameter.ndim} dimensions; use "
                    f"optimizer={DEFAULT}"
                )
            if not isinstance(module, nn.Embedding) and not name.endswith("bias"):
                yield parameter


def rule_named(name: str) -> JobRule:
    """Import what makes an optimizer: ``build`` in the file that is called as its record's is."""
    module = import_module(f"brimful.build.optimizers.{name.replace('-', '_')}")
    rule: JobRule = module.build
    return rule


def first_state(
    state: State,
    parameter: torch.Tensor,
    settings: Settings = NO_SETTINGS,
    *,
    is_hidden: bool = False,
) -> dict[str, torch.Tensor]:
    """Return what a record says is kept of a parameter: zeros, where they belong.

    Of a sharded one it is asked what is kept of the largest shard, so that all devices keep alike.

    ``settings``: of the job; of a state that depends on none they may be left out. ``is_hidden``:
    whether it is a matrix of a block.
    """
    found, share = {}, share_of(parameter)
    for kept in state(Updated(share, is_hidden), settings):
        dtype = TYPES.get(kept.type, parameter.dtype)
        device = "cpu" if kept.on_host else parameter.device
        if kept.key == STEP:
            found[kept.key] = torch.tensor(0.0, dtype=dtype, device=device)
        elif kept.is_paged and parameter.device.type != "cpu":
            found[kept.key] = paged(parameter, dtype)
        elif kept.shape == share:  # in its order of dimensions, and sharded as it is
            found[kept.key] = torch.zeros_like(parameter, dtype=dtype)
        else:
            found[kept.key] = piecewise(parameter, kept.shape, dtype=dtype, device=device)
    return found


def compiled_in(optimizer: torch.optim.Optimizer) -> tuple[int, float]:
    """Return how many updates an optimizer has compiled so far, and in how many seconds."""
    return getattr(optimizer, "num_compiled", 0), getattr(optimizer, "compile_s", 0.0)
