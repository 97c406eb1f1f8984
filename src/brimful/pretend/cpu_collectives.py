"""What gloo takes from the allocator while processes of CPUs tell each other tensors.

An all-gather goes through a second buffer of all pieces, a reduce-scatter is an all-reduce of a
copy; all-reduces work in place. NCCL takes nothing from the allocator.

Source: ``AsyncAllgatherWork`` and ``reduce_scatter_tensor_coalesced`` in
``torch/csrc/distributed/c10d/ProcessGroupGloo.cpp``. Named from memory; the sizes were measured
(``tests/pretend/test_cpu_collectives.py``).
"""

from typing import Any

import torch
import torch.distributed as dist

from brimful.pretend.workspace_call import Call, Rule, Workspaces, size

_WHY = "gloo's copy"
_OUTPUT, _INPUT = "output_tensor", "input_tensor"


def _whole(argument: str) -> Rule:
    def rule(call: Call) -> Workspaces:
        tensor: torch.Tensor = call.arg(argument)
        return size(tensor.numel() * tensor.element_size(), _WHY)

    return rule


def _result(call: Call) -> Workspaces:
    return size(call.out.numel() * call.out.element_size(), _WHY)


def _rules() -> dict[Any, Rule]:
    if not dist.is_available():
        return {}
    ops, of_graphs = torch.ops.c10d, torch.ops._c10d_functional  # noqa: SLF001
    return {
        ops._allgather_base_.default: _whole(_OUTPUT),
        ops._reduce_scatter_base_.default: _whole(_INPUT),
        of_graphs.all_gather_into_tensor.default: _result,
        of_graphs.all_gather_into_tensor_out.default: _result,
        of_graphs.reduce_scatter_tensor.default: _whole("input"),
        of_graphs.reduce_scatter_tensor_out.default: _whole("input"),
    }


RULES: dict[Any, Rule] = _rules()
