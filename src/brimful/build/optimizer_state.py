"""Loading optimizer state in the types it was saved in."""

from typing import Any

import torch


def restore_types(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Put back what ``Optimizer.load_state_dict`` cast to the type of the parameter.

    fp32 masters of 16-bit parameters would lose half their bits, 8-bit moments would no longer be
    numbers of a table.

    ``optimizer``: has just loaded ``state_dict``. ``state_dict``: as torch's ``state_dict`` returns
    it.

    Source: ``Optimizer._process_value_according_to_param_policy`` in ``torch/optim/optimizer.py``.
    """
    saved = [index for group in state_dict["param_groups"] for index in group["params"]]
    ours = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in zip(saved, ours, strict=True):
        for key, value in state_dict["state"].get(index, {}).items():
            if isinstance(value, torch.Tensor):
                device = optimizer.state[parameter][key].device
                optimizer.state[parameter][key] = value.to(device, copy=True)
