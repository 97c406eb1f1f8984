"""A model's body that is given again what it was given: it does on the tape what it did then.

What comes behind the blocks differs between micro-batches of one shape (the chunks of a loss), and
what is before the loss does not. Where blocks hand each other more than hidden states (keys and
values of another block, inputs of each block that are made before the first) none can repeat what
it did by itself; all of them together can.
"""

import inspect
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import nn

from brimful.pretend.block_runs import At, Seen, StandIn, Watched, told_to
from brimful.pretend.repeats import shared_in
from brimful.pretend.tape import Tape

_TOKENS = "input_ids"


def repeat_body(tape: Tape, path: str, body: nn.Module, is_wanted: Callable[[], bool]) -> None:
    """Let a body do again what it did.

    ``body``: all of a model that is before its head. ``is_wanted``: whether it is to, asked behind
    its first run: where all blocks repeat what they did it is not.
    """
    body.forward = _Body(At(tape, body, path), body.forward, is_wanted).forward


class _Body:
    """What a body did, by the shape of what it was given.

    With the first shape it has to do the same twice; with others it is believed to.
    """

    def __init__(self, at: At, call: Callable[..., Any], is_wanted: Callable[[], bool]) -> None:
        self._at, self._call, self._is_wanted = at, call, is_wanted
        self._names = tuple(inspect.signature(call).parameters)
        self._seen: dict[Hashable, Seen] = {}
        self._put: Callable[[torch.Tensor], Any] = _as_it_is
        """Puts hidden states where the body puts its own."""

    def forward(self, *unnamed: Any, **named: Any) -> Any:  # a body's own arguments
        """Run it, or repeat on the tape what it did."""
        given = {**dict(zip(self._names, unnamed, strict=False)), **named}
        tokens = given.get(_TOKENS)
        if tokens is None or not torch.is_grad_enabled():
            return self._call(**given)
        seen = self._seen.setdefault(tokens.shape, Seen())
        first = next(iter(self._seen.values()))
        is_first_run = seen is first and not sum(seen.num_seen)
        if first.is_odd or seen.is_odd or not (is_first_run or self._is_wanted()):
            return self._call(**given)
        with told_to(self._at.tape):
            if first.is_known and min(seen.num_seen):
                shared = list(shared_in(given, tokens))
                return self._put(StandIn(self._at, seen, keeps=seen.keeps).run(tokens, shared))
            return self._watched(seen, tokens, given)

    def _watched(self, seen: Seen, tokens: torch.Tensor, given: dict[str, Any]) -> Any:
        handed: list[Any] = []

        def run() -> Any:
            handed.append(self._call(**given))
            return _alone(handed[0])

        out = Watched(self._at, seen).run(run, tokens, list(shared_in(given, tokens)))
        if seen.is_odd:
            return handed[0]
        self._put = _putting(handed[0])
        return self._put(out)


def _alone(handed: Any) -> Any:
    """Return the hidden states that a body hands on by name, as classes of ``transformers`` do."""
    if not isinstance(handed, dict):
        return handed
    every = list(handed.values())
    return every[0] if len(every) == 1 else None


def _putting(handed: Any) -> Callable[[torch.Tensor], Any]:
    if not isinstance(handed, dict):
        return _as_it_is
    (name,), kind = handed, type(handed)
    return lambda hidden: kind(**{name: hidden})


def _as_it_is(hidden: torch.Tensor) -> torch.Tensor:
    return hidden
