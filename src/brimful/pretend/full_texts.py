"""Texts that are searched for by beams have their full length: nobody knows when they would end."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from brimful.pretend.known_values import KnownValues

_ENDED = "next_token_hits_stopping_criteria"
"""Whether each beam has come to an end, which is known at the longest that a text may be."""


def beams_go_on(known: KnownValues, library: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield what lets a search go on until all of its beams have surely ended."""
    owner, name = library.GenerationMixin, "_beam_search_has_unfinished_sequences"
    original = getattr(owner, name, None)
    if original is None or _ENDED not in inspect.signature(original).parameters:
        return  # another version's

    def goes_on(*args: Any, **kwargs: Any) -> bool:
        original(*args, **kwargs)  # for what it allocates
        ended = inspect.signature(original).bind(*args, **kwargs).arguments[_ENDED]
        value = known.value(ended)
        with torch._C._DisableTorchDispatch():  # noqa: SLF001
            return value is None or not bool(value.all())

    yield owner, name, staticmethod(goes_on)
