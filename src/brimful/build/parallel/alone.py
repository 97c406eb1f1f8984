"""A process group of one, for what asks for a group where a process trains alone.

FSDP2 on one device is such, and DeepSpeed.
"""

import atexit

import torch.distributed as dist

_BACKENDS = {"cuda": "nccl"}
_made: list[dist.ProcessGroup] = []
"""The group that was made here, while there is one."""


def join_alone(device_type: str) -> None:
    """Make a process group of one; nothing where there is a group already.

    ``device_type``: ``cpu`` or ``cuda``.
    """
    if dist.is_initialized():
        return
    backend = _BACKENDS.get(device_type, "gloo")
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    _made.append(dist.group.WORLD)
    atexit.register(leave_alone)


def leave_alone() -> None:
    """End the group that ``join_alone`` made; nothing where it made none.

    What was built in it must not run any more.
    """
    if _made and dist.is_initialized() and dist.group.WORLD is _made[0]:
        dist.destroy_process_group()
    _made.clear()
