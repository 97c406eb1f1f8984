"""The pretend GPU: a device that does not exist, on which a PyTorch step runs for its memory.

``pretend.gpu(...)`` is the block in which it exists (``session``). ``device`` registers it with
PyTorch, ``autocast`` and ``attention`` make it choose what real kernels would choose, ``tape``
records every allocation and free, which ``brimful.allocator`` replays.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brimful.pretend.session import Run, gpu

__all__ = ["Run", "gpu"]


def __getattr__(name: str) -> Any:
    """Import the session, and PyTorch with it, when it is first asked for."""
    if name in __all__:
        from brimful.pretend import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
