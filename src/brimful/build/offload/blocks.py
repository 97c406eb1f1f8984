"""Blocks that keep parameters or activations on the host: how they are called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.attention.flex_attention import BlockMask
from torch.utils import _pytree as pytree

from brimful.build.blocks import decoder_blocks
from brimful.build.offload.activations import AwayActivations, Flight, Ref, View, memory_of, stays
from brimful.build.offload.parameters import AWAY, AwayBlocks, at_home, is_away
from brimful.techniques.offload import NOTHING, Away, num_sent
from brimful.values.job import Job
from brimful.values.strategy import Strategy, what_is_away

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Offloaded:
    """What of a model is on the host between its uses; None: nothing of that kind."""

    parameters: AwayBlocks | None
    activations: AwayActivations | None

    def end_pass(self) -> None:
        """Drop what a forward and its backward pass left on the device."""
        if self.parameters is not None:
            self.parameters.forget()


def offloaded(job: Job, strategy: Strategy) -> Away:
    """Return what our own engine keeps on the host; DeepSpeed sees to its own."""
    return what_is_away(job, strategy) if strategy.engine == "torch" else NOTHING


def mark_away(skeleton: nn.Module, away: Away) -> None:
    """Mark the parameters that are to be allocated on the host; the skeleton is on ``meta``.

    Beside adapters that is what is frozen.
    """
    for block in decoder_blocks(skeleton)[: away.parameters]:
        for parameter in block.parameters():
            if not (away.frozen and parameter.requires_grad):
                setattr(parameter, AWAY, True)


def empty_at_home(tensor: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    """Return empty memory on the host for a marked parameter; None for all others."""
    return at_home(tensor, device) if is_away(tensor) else None


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def sent_home(parameter: torch.Tensor, device: torch.device) -> nn.Parameter:
    """Return a parameter of the host that has the numbers of one on a device."""
    home = at_home(parameter, device)
    home.copy_(parameter)
    return home


def offload_blocks(
    model: nn.Module, away: Away, device: torch.device, *, num_checkpointed: int
) -> Offloaded:
    """Let blocks be called so that what is away is brought, and what they keep is sent.

    ``model``: on its device, but for what is away; its blocks checkpointed as they will be.
    ``num_checkpointed``: blocks that are checkpointed, from the first on.
    """
    blocks = decoder_blocks(model)
    sent = num_sent(away, len(blocks))
    parameters = AwayBlocks(blocks[: away.parameters], device) if away.parameters else None
    activations = AwayActivations(device) if sent else None
    for number, block in enumerate(blocks):
        call = _Call(
            number,
            block,
            parameters if number < away.parameters else None,
            activations if number < sent else None,
        )
        if call.parameters is not None or call.activations is not None:
            _call_through(call, is_checkpointed=number < num_checkpointed)
    if activations is not None:
        blocks[sent].register_forward_hook(lambda *_: activations.past())
    return Offloaded(parameters, activations)


class _Call(NamedTuple):
    """A block, its number, and what of it is away."""

    number: int
    block: nn.Module
    parameters: AwayBlocks | None
    activations: AwayActivations | None


def _call_through(call: _Call, *, is_checkpointed: bool) -> None:
    """Let a block's own forward, or what its checkpoint runs, be called through this file.

    Whether a checkpoint is inside of ``forward`` or around the call of the module hangs on the
    version of transformers, so that each is told apart by what it is given.
    """
    block: Any = call.block
    if is_checkpointed:
        again = block._gradient_checkpointing_func  # noqa: SLF001 - the class's own switch
        block._gradient_checkpointing_func = partial(_checkpointed, call, again)  # noqa: SLF001
        block.forward = partial(_judged, call, block.forward)
    else:
        block.forward = partial(_forward, call, block.forward)


def _forward(call: _Call, forward: Run, *args: Any, **kwargs: Any) -> Any:
    """Run a block whose graph is kept."""
    held = _held(call, args, kwargs)
    if call.parameters is None:
        return _saving(_Saver(call, args[0], held), partial(forward, *args, **kwargs))
    with call.parameters.present(call.number) as copies:
        return _saving(_Saver(call, args[0], held, copies), partial(forward, *args, **kwargs))


def _checkpointed(call: _Call, again: Run, run: Run, *args: Any) -> Any:
    """Checkpoint a block: what the checkpoint keeps is its input."""
    held = _held(call, args, getattr(run, "keywords", {}))
    inner = run if call.parameters is None else partial(_present, call, run)
    return _saving(_Saver(call, args[0], held), partial(again, inner, *args))


def _present(call: _Call, run: Run, *args: Any) -> Any:
    """Run a block, the first time or again, with its parameters on the device."""
    assert call.parameters is not None
    with call.parameters.present(call.number):
        return run(*args)


def _judged(call: _Call, forward: Run, *args: Any, **kwargs: Any) -> Any:
    """Run a checkpointed block where no checkpoint does: while a model is judged."""
    if call.parameters is None or call.block.training:
        return forward(*args, **kwargs)
    with call.parameters.present(call.number):
        return forward(*args, **kwargs)


def _held(call: _Call, args: Any, kwargs: Any) -> frozenset[int]:
    """Name memories that others hold: all that blocks are given but what the last one made."""
    leaves = pytree.tree_leaves((args[1:], kwargs))
    leaves += [x for each in leaves if isinstance(each, BlockMask) for x in _read_of(each)]
    given = [x for x in leaves if isinstance(x, torch.Tensor)]
    own = [*call.block.parameters(), *call.block.buffers()]
    return frozenset(memory_of(tensor) for tensor in (*given, *own))


def _read_of(mask: BlockMask) -> list[Any]:
    """List what FlexAttention reads of a mask: which blocks there are, and what decides in them."""
    decides = [cell.cell_contents for cell in mask.mask_mod.__closure__ or ()]
    return [*mask.as_tuple(), *decides]


def _saving(saver: "_Saver", run: Callable[[], Any]) -> Any:
    """Run a block, with a say in what autograd saves."""
    saver.depart()
    with torch.autograd.graph.saved_tensors_hooks(saver.pack, saver.unpack):
        out = run()
    saver.arrive()
    return out


class _CopyRef(NamedTuple):
    """What stands in the graph for a part of a copied parameter."""

    away: AwayBlocks
    block: int
    place: int
    view: View

    def tensor(self) -> torch.Tensor:
        """Return it, copied again where it is not on the device."""
        return self.view.on(self.away.copies(self.block)[self.place])


class _Saver:
    """Decides what of what autograd saves in a block goes where."""

    def __init__(
        self,
        call: _Call,
        hidden: torch.Tensor,
        held: frozenset[int],
        copies: Sequence[torch.Tensor] = (),
    ) -> None:
        self._call, self._held = call, held
        self._num_tokens = hidden.shape[:-1].numel()
        self._flight: Flight | None = None
        self._places = {memory_of(copy): place for place, copy in enumerate(copies)}

    def depart(self) -> None:
        """Begin with a block."""
        if self._call.activations is not None:
            self._flight = self._call.activations.depart(self._call.number)

    def arrive(self) -> None:
        """End with it: what the block before it kept is let go of."""
        if self._call.activations is not None:
            self._call.activations.arrive(self._flight)

    def pack(self, tensor: torch.Tensor) -> Any:
        """Return the tensor, or what stands for it."""
        place = self._places.get(memory_of(tensor))
        if place is not None and self._call.parameters is not None:
            return _CopyRef(self._call.parameters, self._call.number, place, View.of(tensor))
        if self._flight is None or stays(tensor, self._held, self._num_tokens):
            return tensor
        return self._flight.pack(tensor)

    @staticmethod
    def unpack(packed: Any) -> torch.Tensor:
        """Return the tensor again."""
        tensor: torch.Tensor = packed.tensor() if isinstance(packed, Ref | _CopyRef) else packed
        return tensor
