"""Memory that CUDA manages: tensors of the host that kernels of a GPU read and write.

Its pages are on the GPU as long as there is room beside what PyTorch's allocator takes, and on the
host where that asks for more. Whoever listens for memory of the host is told of it
(``offload.host``). A pretend device has none: there it is plain memory of the host.

Source: ``get_paged`` of ``bitsandbytes/functional.py`` (0.50), which is what makes it.
"""

import importlib

import torch

from brimful.build.offload.host import HOST, on_host
from brimful.build.own import own_memory, sharded_as
from brimful.values.results import PAGED_STATE


def paged(parameter: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros in managed memory of the shape of a parameter, and sharded as that is."""
    own = own_memory(parameter.detach())
    with on_host(PAGED_STATE):
        memory = _taken(own, dtype)
    return sharded_as(parameter, memory)


def paged_like(parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return values of such a tensor in managed memory."""
    found = paged(parameter, values.dtype)
    own_memory(found).copy_(own_memory(values))
    return found


def mark_paged(memory: torch.Tensor, device: torch.device) -> None:
    """Say of a tensor what bitsandbytes asks: that it is managed memory, and of which device."""
    memory.is_paged, memory.page_deviceid = True, device.index or 0


def _taken(own: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not own.is_cuda:
        return torch.zeros_like(own, dtype=dtype, device=HOST)
    functional = importlib.import_module("bitsandbytes.functional")
    memory: torch.Tensor = functional.get_paged(*own.shape, dtype=dtype, device=own.device)
    functional.fill(memory, 0)
    return memory
