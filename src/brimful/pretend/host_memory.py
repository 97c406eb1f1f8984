"""The host's memory, as Accelerate asks for it to place what a GPU does not hold.

With ``device_map="auto"`` a model's layers go to the GPU until it is full, the next to the host
and, when that is full too, to a disk. What this machine has is not what the host of a card has,
and layers on a host take no memory of the GPU: so it has as much as is wanted.

Source: ``get_max_memory`` in ``utils/modeling.py`` of Accelerate 1.15.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from brimful.pretend.when_imported import Changes

_PLENTY = 2**50
"""More than any model takes."""
_HOST = "cpu"
_ASKING = {
    "accelerate.utils.modeling": "get_max_memory",
    "accelerate.utils": "get_max_memory",
    "transformers.integrations.accelerate": "accelerate_max_memory",
}
"""By what name modules know the function."""


def changes(assumptions: set[str]) -> dict[str, Changes]:
    """Return what is changed in libraries so that a host has memory enough.

    ``assumptions``: where it is noted what a run rests on.
    """
    return dict.fromkeys(_ASKING, functools.partial(_asking, assumptions))


def _asking(assumptions: set[str], module: Any) -> Iterator[tuple[Any, str, Any]]:
    name = _ASKING[module.__name__]
    if name in vars(module):
        yield module, name, _enough(assumptions, vars(module)[name])


def _enough(assumptions: set[str], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_max_memory(max_memory: Any = None) -> Any:
        found = original(max_memory)
        if max_memory is None and _HOST in found:
            found[_HOST] = _PLENTY
            assumptions.add(
                "device_map places on the host what the GPU does not hold, never on disk"
            )
        return found

    return get_max_memory
