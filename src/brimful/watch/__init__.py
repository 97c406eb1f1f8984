"""Watching a loop that is not ours: its first steps metered, and simulated beside it.

``Loop`` for any PyTorch loop, ``MemoryCallback`` for the Hugging Face Trainer. Both write a verdict
and a page into a folder, and leave the loop alone: what goes wrong in watching is said, not raised.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brimful.watch.hf_trainer import MemoryCallback
    from brimful.watch.loop import Loop

__all__ = ["Loop", "MemoryCallback"]
_HOMES = {"Loop": "brimful.watch.loop", "MemoryCallback": "brimful.watch.hf_trainer"}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and PyTorch with it, when it is first asked for."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
