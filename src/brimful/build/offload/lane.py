"""Copies between host and device that run beside the kernels.

Two streams, one each way, as the link has two directions. Memory is always taken on the compute
stream and let go of after that stream was told to wait for the copy, so that what is alive when
does not hang on timing. A CPU has no streams: there a copy is done when it is asked for.
"""

from typing import Any

import torch

from brimful.build.own import own_memory


class Lane:
    """One direction of copies."""

    def __init__(self, device: torch.device) -> None:
        """Make its stream."""
        self.device = device
        self._module: Any = torch.get_device_module(device)
        self._stream: Any = self._module.Stream()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Any:
        """Begin to copy, behind all that the device was given so far; of shards each its own.

        Returns an event: let ``wait`` wait for it before either tensor is used or dropped.
        """
        self._stream.wait_stream(self._module.current_stream())
        with torch.no_grad(), self._module.stream(self._stream):
            own_memory(target).copy_(own_memory(source), non_blocking=True)
            event = self._module.Event()
            event.record(self._stream)
        return event

    def wait(self, event: Any) -> None:
        """Let later kernels wait for a copy; the host goes on."""
        self._module.current_stream().wait_event(event)

    @staticmethod
    def finish(event: Any) -> None:
        """Let the host wait for a copy."""
        event.synchronize()
