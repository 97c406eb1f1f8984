"""One run of a block: watched as it does it, or done on the tape as one like it did.

Who decides which block runs is elsewhere (``stand_ins``, ``repeats``).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from brimful.pretend import autocast
from brimful.pretend.block_moves import (
    GRADIENT,
    INCOMING,
    NOTHING,
    SHARED,
    Accumulate,
    Aside,
    Ask,
    Cast,
    Done,
    Free,
    Like,
    Make,
    Move,
    Stretch,
    Work,
    check_kept,
    owner_in,
    read_moves,
)
from brimful.pretend.blocks import UnlikeBlocksError
from brimful.pretend.fake_mode import alias, made
from brimful.pretend.recording_builder import Spot
from brimful.pretend.tape import Tape

NUM_SEEN = 2
"""Runs that have to be the same before others are believed to be."""


@dataclass(slots=True)
class Seen:
    """What a block did.

    Attributes:
        may_be_odd: Whether a block that does something else is run each time, and is no error.
        forward: None until it was seen.
        backward: Likewise.
        parameters: Numbers of those that train, in the order in which gradients come.
        keeps: Whether it is the last to keep what it is given, for its backward.
        frees: What of that which others are given too its backward lets go of.
        is_odd: Whether it does what no stand-in can, or not always the same.
        num_seen: How many forwards and backwards were seen.
        casts: Rows of the copies of weights that the last one seen left to autocast, by name.
        last_node: Name of the autograd node that made what they hand on.
        empty: How many empty places stand behind what it hands on, in a tuple; -1: it is no tuple.
    """

    may_be_odd: ClassVar[bool] = True
    forward: Done | None = None
    backward: Done | None = None
    parameters: tuple[int, ...] = ()
    keeps: bool = False
    frees: frozenset[int] = frozenset()
    is_odd: bool = False
    num_seen: tuple[int, int] = (0, 0)
    casts: dict[int, int] = field(default_factory=dict)
    last_node: str = ""
    empty: int = -1

    @property
    def is_known(self) -> bool:
        """Whether several were seen that did the same."""
        return min(self.num_seen) >= NUM_SEEN and not self.is_odd


class At(NamedTuple):
    """A block and where it is."""

    tape: Tape
    block: nn.Module
    path: str


class Watched:
    """A block that runs, and is compared with what was seen before, if anything was."""

    def __init__(self, at: At, seen: Seen) -> None:
        """Prepare to compare a run with what was seen."""
        self.tape, self._block, self._path = at
        self.seen = seen
        self.last_node = ""
        self._names: dict[int, int] = {}
        self._asides: list[Aside] = []
        self._handles: list[Any] = []
        self._start: Spot | None = None

    def run(
        self, call: Callable[[], Any], x: torch.Tensor, shared: Sequence[torch.Tensor] = ()
    ) -> Any:
        """Run it forward, and see to it that its backward is seen.

        ``shared``: what it is given beside that, as other blocks are too.
        """
        builder = self.tape.main
        for name, tensor in enumerate(shared):
            self._names |= dict.fromkeys(self.tape.rows_of((tensor,)), SHARED - name)
        self._names |= dict.fromkeys(self.tape.rows_of((x,)), INCOMING)
        start, before, num_casts = builder.spot(), self._interruptions(), autocast.num_cached()
        handed = call()
        with self._odd_if_unlike():
            self._check(self._interruptions() == before, "does more than allocate and free")
            out, empty = _alone(handed)
            self._read_forward(out, x, start, num_casts)
            self._check(empty == self.seen.empty or self.seen.num_seen[0] == 1, "hands on others")
            self.seen.empty = empty
            return _with_empty(_Begin.apply(out, self), empty)
        return handed

    def _read_forward(self, out: Any, x: torch.Tensor, start: Spot, num_casts: int) -> None:
        """Read what its forward did, and prepare to see its backward."""
        numbers, seen = _numbers(self._block), self.seen
        self._check(isinstance(out, torch.Tensor), "hands on more than hidden states")
        self._check(out.grad_fn is not None, "trains nothing")
        casts = {
            self._row(low): (numbers.get(id(weight), -1), _like(low))
            for weight, low in autocast.cached_since(num_casts)
        }
        stretch = Stretch(start, self.tape.main.spot(), self._path, casts=casts)
        moves = read_moves(self.tape.main, stretch, self._names)
        done = Done(moves, self._names.get(self._row(out), INCOMING), _like(out))
        nodes = list(_accumulating(out, x))
        order = tuple(numbers.get(id(node.variable), -1) for node in nodes)
        is_own = done.name >= 0 and all(move.name >= 0 for move in moves if isinstance(move, Free))
        self._check(is_own, "hands on or frees what it is given")
        self._check(
            min((*order, *(n for n, _ in casts.values())), default=0) >= 0, "trains others'"
        )
        if seen.forward is None:
            seen.forward, seen.parameters = done, order
        self._check((done, order) == (seen.forward, seen.parameters), "has another forward")
        self.last_node = out.grad_fn.name()
        seen.num_seen, seen.last_node = (seen.num_seen[0] + 1, seen.num_seen[1]), self.last_node
        seen.casts = {self._names[row]: row for row in casts}
        self._watch(nodes, order, x)

    def _check(self, is_so: bool, otherwise: str) -> None:  # noqa: FBT001
        if not is_so:
            raise UnlikeBlocksError(f"{self._path} {otherwise}")

    @contextmanager
    def _odd_if_unlike(self) -> Iterator[None]:
        """Let a block at an end of a series be unlike others."""
        try:
            yield
        except UnlikeBlocksError:
            if not self.seen.may_be_odd:
                raise
            self.seen.is_odd = True

    def _watch(self, nodes: Sequence[Any], order: Sequence[int], x: torch.Tensor) -> None:
        for node, number in zip(nodes, order, strict=True):
            before: list[Any] = []
            self._handles += [
                node.register_prehook(partial(self._before, before)),
                node.register_hook(partial(self._after, before, number)),
            ]
        self._is_alone = not x.requires_grad
        if not self._is_alone:
            self._handles.append(x.register_hook(self._end))

    def begin(self, gradient: torch.Tensor) -> None:
        """Begin its backward, the last there is where nothing is handed on."""
        if self._is_alone:
            _when_all_is_back(self._end)
        self._names |= dict.fromkeys(self.tape.rows_of((gradient,)), GRADIENT)
        self._start, self._found = self.tape.main.spot(), self._interruptions()

    def _before(self, before: list[Any], gradients: Sequence[torch.Tensor]) -> None:
        if self._start is None:
            return  # in the backward of another micro-batch
        gradient = gradients[0]
        before[:] = self.tape.main.spot(), self._row(gradient), _like(gradient)

    def _after(self, before: list[Any], number: int, *_: Any) -> None:
        if self._start is None:
            return
        start, row, like = before
        self._asides.append(Aside(start, self.tape.main.spot(), row, number, like))

    def _end(self, gradient: torch.Tensor | None = None) -> None:
        """Read what its backward did; it hands on a gradient, or nothing."""
        for handle in self._handles:
            handle.remove()
        with told_to(self.tape), self._odd_if_unlike():
            self._read_backward(gradient)

    def _read_backward(self, gradient: torch.Tensor | None) -> None:
        seen, start = self.seen, self._start
        if start is None or self._interruptions() != self._found or seen.forward is None:
            raise UnlikeBlocksError(f"{self._path} does more than allocate and free")
        stretch = Stretch(start, self.tape.main.spot(), self._path, self._asides)
        moves = read_moves(self.tape.main, stretch, self._names)
        done = Done(moves, NOTHING, seen.forward.like)
        if gradient is not None:
            name = self._names.get(self._row(gradient), INCOMING)
            done = Done(moves, name, _like(gradient))
            self._check(GRADIENT <= name != INCOMING, "hands on what it was given")
        order = tuple(move.parameter for move in moves if isinstance(move, Accumulate))
        self._check(order == seen.parameters, "has gradients in another order")
        check_kept((seen.forward, done))
        self._check(done == (seen.backward or done), "has another backward")
        seen.backward, keeps = done, Free(INCOMING) in moves
        frees = (move.name for move in moves if isinstance(move, Free))
        seen.frees = frozenset(name for name in frees if name <= SHARED)
        self._check(seen.may_be_odd or seen.keeps == keeps, "frees what it did not keep")
        seen.num_seen = seen.num_seen[0], seen.num_seen[1] + 1
        seen.keeps = keeps

    def _row(self, tensor: torch.Tensor) -> int:
        is_tensor = isinstance(tensor, torch.Tensor) and not tensor.storage_offset()
        rows = self.tape.rows_of((tensor,)) if is_tensor else ()
        self._check(len(rows) == 1, "has a tensor that is not one allocation")
        return rows[0]

    def _interruptions(self) -> tuple[int, ...]:
        return *self.tape.main.interruptions(), self.tape.host_events()


class StandIn:
    """A block that does on the tape what others of its kind did."""

    def __init__(self, at: At, model: Seen, *, keeps: bool) -> None:
        """Prepare to do what a model did, which keeps what it is given or not."""
        if model.forward is None:
            raise UnlikeBlocksError("no block of its kind ran before a stand-in")
        self.tape, self._block, self._path = at
        self.model, self._forward, self.last_node = model, model.forward, model.last_node
        self._rows: dict[int, int] = {}
        self._owners: dict[str, str] = {}
        self._keeps = keeps
        self._moves: Iterator[Move] = iter(())
        self._begun = False

    def run(self, x: torch.Tensor, shared: Sequence[torch.Tensor] = ()) -> Any:
        """Play its forward; see ``Watched.run``."""
        self._device, self._is_alone = x.device, not x.requires_grad
        names = (SHARED - name for name in range(len(shared)))
        self._kept = {
            name: each for name, each in zip(names, shared, strict=True) if name in self.model.frees
        }
        if self._keeps:
            self._kept[INCOMING] = x
        parameters = list(self._block.parameters())
        for move in self._forward.moves:
            if isinstance(move, Cast):
                self._cast(move, parameters[move.parameter])
            else:
                self._play(move)
        out = _Enter.apply(x, self)
        for number in reversed(self.model.parameters):
            out = _Link.apply(out, parameters[number], self)
        return _with_empty(out, self.model.empty)

    def handed_on(self) -> torch.Tensor:
        """Return what it hands on."""
        out = self._made(self._forward.like)
        self.tape.let_be(out, self._rows.pop(self._forward.name))
        return out

    def gradient(self, incoming: torch.Tensor) -> torch.Tensor:
        """Play its backward until a gradient is handed over; return that."""
        self._begin(incoming)
        for move in self._moves:
            if isinstance(move, Accumulate):
                found = self._made(move.like)
                self.tape.let_be(found, self._rows.pop(move.name))
                return found
            self._play(move)
        raise UnlikeBlocksError("a block has more gradients than it hands over")

    def ended(self, incoming: torch.Tensor) -> torch.Tensor:
        """Play the rest of its backward; return the gradient of what it was given."""
        self._begin(incoming)
        assert self.model.backward is not None
        name, like = self.model.backward[1:]
        for move in self._moves:
            self._play(move)
        found = incoming if name == GRADIENT else self._made(like)
        self.tape.let_be(found, self._rows.pop(name))
        self._check_gone()
        return found

    def _end_alone(self) -> None:
        """Play the rest of a backward that hands nothing on."""
        with told_to(self.tape):
            for move in self._moves:
                self._play(move)
            self._check_gone()

    def _check_gone(self) -> None:
        if self._rows or self._kept:
            raise UnlikeBlocksError("a stand-in keeps something behind its backward")

    def _begin(self, incoming: torch.Tensor) -> None:
        if self._begun:
            return
        self._begun = True
        if self.model.backward is None:
            raise UnlikeBlocksError("no backward was seen before that of a stand-in")
        if self._is_alone:
            _when_all_is_back(self._end_alone)
        self._moves = iter(self.model.backward.moves)
        (self._rows[GRADIENT],) = self.tape.rows_of((incoming,))
        self.tape.let_go(incoming)

    def _play(self, move: Move) -> None:
        builder = self.tape.main
        if isinstance(move, Work):  # as most are
            builder.cost(*move)
        elif isinstance(move, Make):
            self._rows[move.name] = builder.allocate_like(move.facts, self._owner(move.facts.owner))
        elif isinstance(move, Ask):
            builder.ask(move.handle)
            self.tape.make_handle(move.handle)
        elif move.name == INCOMING or move.name <= SHARED:
            self._let_go_of_what_was_given(move.name)
        elif move.name not in self._rows:
            raise UnlikeBlocksError("a stand-in frees what is gone")
        else:
            builder.free(self._rows.pop(move.name))

    def _owner(self, told: str) -> str:
        if told not in self._owners:
            self._owners[told] = owner_in(self._path, told)
        return self._owners[told]

    def _let_go_of_what_was_given(self, name: int) -> None:
        event, was_kept = self.tape.main.spot().event, self._kept.pop(name, None) is not None
        if name <= SHARED and not was_kept:
            raise UnlikeBlocksError("a stand-in frees what it did not keep")
        if was_kept and self.tape.main.spot().event != event + 1:
            raise UnlikeBlocksError("what a stand-in was given is kept by others")

    def _cast(self, move: Cast, weight: torch.Tensor) -> None:
        """Let autocast keep a weight's copy; of the kind one knows whether it is saved too."""
        low, is_freed = self._made(move.like), self.tape.main.is_freed
        backward, last = self.model.backward, self.model.casts[move.name]

        def frees() -> bool:
            is_saved = Free(move.name) in backward.moves if backward else not is_freed(last)
            if not is_saved:
                del self._rows[move.name]
            return not is_saved

        self.tape.let_be(low, self._rows[move.name], frees)
        autocast.keep(weight, low)

    def _made(self, like: Like) -> torch.Tensor:
        shape, stride, dtype, spec = like
        own = made(shape, stride, dtype, self._device)
        return own if spec is None else DTensor(own, spec, requires_grad=False)


class _Begin(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped to mypy
    """Tells where the backward of a block that runs begins."""

    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, watched: Watched) -> torch.Tensor:
        ctx.watched, ctx.stands_for = watched, watched.last_node
        return alias(out)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        with told_to(ctx.watched.tape):
            ctx.watched.begin(gradient)
        return gradient, None


class _Enter(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped to mypy
    """Makes what a stand-in hands on; the last of its backward."""

    @staticmethod
    def forward(ctx: Any, _x: torch.Tensor, by: StandIn) -> torch.Tensor:
        ctx.by, ctx.stands_for = by, by.last_node
        return by.handed_on()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        with told_to(ctx.by.tape):
            return ctx.by.ended(gradient), None


class _Link(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped to mypy
    """Hands over one gradient of a stand-in."""

    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, _parameter: torch.Tensor, by: StandIn) -> Any:
        ctx.by, ctx.stands_for = by, by.last_node
        return alias(out)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        with told_to(ctx.by.tape):
            return gradient, ctx.by.gradient(gradient), None


def _when_all_is_back(call: Callable[[], None]) -> None:
    """Call something at the end of the backward pass that runs."""
    torch.autograd.Variable._execution_engine.queue_callback(call)  # noqa: SLF001 - as DDP does


def _accumulating(out: torch.Tensor, x: torch.Tensor) -> Iterator[Any]:
    """Yield what accumulates gradients between two tensors, in the order in which it will.

    The engine takes of the nodes that are ready the one that was made last, and what accumulates
    before all others; a node is made behind those that it is fed by.
    """
    inner, waiting = {out.grad_fn: None}, [out.grad_fn]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None or node is x.grad_fn or node in inner or _leaf(node) is not None:
                continue
            inner[node] = None
            waiting.append(node)
    seen: set[Any] = set()
    for node in sorted(inner, key=lambda node: -node._sequence_nr()):  # noqa: SLF001
        for following, _ in node.next_functions:
            leaf = None if following is None else _leaf(following)
            if leaf is None or leaf is x:
                continue
            if following in seen:
                raise UnlikeBlocksError("a parameter of a block is used more than once")
            seen.add(following)
            yield following


@contextmanager
def told_to(tape: Tape) -> Iterator[None]:
    """Let the tape know what ended it: PyTorch's engine may lose it on its way."""
    try:
        yield
    except UnlikeBlocksError as error:
        tape.ended_by = error
        raise


def _alone(handed: Any) -> tuple[Any, int]:
    """Return what a block hands on, and behind it how many empty places; -1: in no tuple."""
    if type(handed) is tuple and handed and all(each is None for each in handed[1:]):
        return handed[0], len(handed) - 1
    return handed, -1


def _with_empty(out: torch.Tensor, empty: int) -> Any:
    return out if empty < 0 else (out, *[None] * empty)


def _leaf(node: Any) -> torch.Tensor | None:
    return getattr(node, "variable", None)


def _numbers(block: nn.Module) -> dict[int, int]:
    return dict(zip(map(id, block.parameters()), count()))


def _like(tensor: torch.Tensor) -> Like:
    spec = tensor._spec if isinstance(tensor, DTensor) else None  # noqa: SLF001
    own = tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # noqa: SLF001
    return Like(tuple(own.shape), own.stride(), own.dtype, spec)
