"""What one device of a pipeline has of a model: some blocks, and nothing where others are.

The class's own forward pass runs on every device. What a device does not have is replaced by a
module that hands on what it is given, so that names, masks and positions stay the class's. Until
the first weights are drawn the replaced module stays inside, without bytes: its numbers are drawn
and dropped, so that every device's weights are those of one device.
"""

import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from brimful.build.blocks import body_of, decoder_blocks
from brimful.errors import UnsupportedError
from brimful.models.spec import ModelSpec
from brimful.techniques.parallel.stages import Split, blocks_of_stages, stages_of_device

ORIGINAL = "original."
"""In the names of what another device has, as long as it is remembered."""
Share = Callable[["StagePart", torch.Tensor | None, Any], torch.Tensor]
"""Runs a part: given it, what the stage before it hands on (None: it is the first), and the
micro-batch; returns what the next one is given, or the loss."""


class Absent(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """Stands where another device has a module: hands on its first argument.

    Attributes:
        original: What is replaced, without bytes; None once first weights have been drawn.
        dtype: What its parameters are held in.
        twins: Modules of this device, at most one, whose weight is that of what is replaced.
    """

    def __init__(self, original: nn.Module) -> None:
        """Keep what is replaced until first weights have been drawn."""
        super().__init__()
        self.original: nn.Module | None = original
        weight = getattr(original, "weight", None)  # of trained copies the copy's
        self.dtype = (next(original.parameters()) if weight is None else weight).dtype
        self.twins: tuple[nn.Module, ...] = ()
        if hasattr(original, "attention_type"):  # which of several masks a class hands to a block
            self.attention_type = original.attention_type

    def forward(self, x: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        """Return what came in."""
        return x


class Place(NamedTuple):
    """Where a model has a module."""

    parent: nn.Module
    name: str
    module: nn.Module


class StagePart(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """One stage: its own modules, and how a micro-batch runs through them.

    Attributes:
        index: Its place in the row of stages.
        is_first: Whether it has the embedding.
        is_last: Whether it has the head, so that it returns a loss.
        share: How it is run; the pipeline says so before it runs.
        others: Where the model has what this device's other stages run.
    """

    def __init__(self, modules: Sequence[nn.Module], *, index: int, num_stages: int) -> None:
        """Hold the modules, so that their parameters are this part's."""
        super().__init__()
        self.own = nn.ModuleList(modules)
        self.index = index
        self.is_first, self.is_last = index == 0, index == num_stages - 1
        self.share: Share | None = None
        self.others: tuple[Place, ...] = ()

    def forward(self, x: torch.Tensor, **fields: Any) -> torch.Tensor:
        """Run one micro-batch.

        ``x``: tokens of the first stage; what the stage before hands on of others.
        """
        assert self.share is not None, "the pipeline says how parts are run before it runs them"
        with _passed_by(self.others):
            return self.share(self, None if self.is_first else x, fields)


def cut_stages(model: Any, spec: ModelSpec, split: Split, device: int) -> tuple[StagePart, ...]:
    """Leave one device its stages of a model that has no bytes yet, in place.

    ``model``: a decoder on ``meta``. Returns the device's stages, in order; modules that belong to
    none of them are absent in the model. Raises UnsupportedError: adapters leave a stage nothing to
    train, or untie what is tied.
    """
    pieces = _pieces(model, blocks_of_stages(spec, split))
    _check_ends(model, spec)
    _check_trained(pieces)
    own = stages_of_device(split, device)
    for index, modules in enumerate(pieces):
        if index not in own:
            _remove(model, modules)
    _note_twins(model)
    num = split.num_stages
    parts = [StagePart(pieces[index], index=index, num_stages=num) for index in own]
    for part in parts:
        elsewhere = {m for other in parts if other is not part for m in other.own}
        part.others = tuple(_places(model, elsewhere))
    return tuple(parts)


def _is_copied(module: Any) -> bool:
    """Whether PEFT trains a copy of a module; where PEFT, which loads slowly, is not, none is."""
    peft = sys.modules.get("peft.utils.other")
    return peft is not None and isinstance(module, peft.ModulesToSaveWrapper)


def _check_ends(model: Any, spec: ModelSpec) -> None:
    """Refuse copies of a tied weight that train apart: each device has one, and they would not."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    if spec.tied_embeddings and any(map(_is_copied, ends)):
        raise UnsupportedError(
            f"trained_modules with the embedding or the output layer of {spec.name}, which are one "
            f"weight, are not run in a pipeline by this version; leave them out, or use pp=1"
        )


def _check_trained(pieces: Sequence[Sequence[nn.Module]]) -> None:
    for number, modules in enumerate(pieces):
        if not any(p.requires_grad for module in modules for p in module.parameters()):
            raise UnsupportedError(
                f"stage {number} of {len(pieces)} would train nothing: no adapter is in its "
                f"blocks; give targets in every block, or use pp=1"
            )


def _pieces(model: Any, numbers: Sequence[range]) -> list[list[nn.Module]]:
    """List the modules of every stage: its blocks, and what comes before or after all blocks."""
    blocks, embedding = decoder_blocks(model), model.get_input_embeddings()
    ends = [
        module
        for module in body_of(model).children()
        if module is not embedding
        and any(True for _ in module.parameters())
        and not any(block in set(module.modules()) for block in blocks)
    ]
    pieces = [[blocks[number] for number in of_stage] for of_stage in numbers]
    pieces[0].insert(0, embedding)
    pieces[-1] += [*ends, model.get_output_embeddings()]
    return pieces


def _remove(model: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Put ``Absent`` in the place of modules."""
    for place in list(_places(model, set(modules))):
        setattr(place.parent, place.name, Absent(place.module))


def _note_twins(model: Any) -> None:
    """Note where the embedding is here and the head that is tied to it elsewhere, or vice versa."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    for absent, here in (ends, ends[::-1]):
        if isinstance(absent, Absent) and not isinstance(here, Absent):
            original: Any = absent.original
            absent.twins = (here,) if original.weight is here.weight else ()


def tie_absent(model: nn.Module) -> None:
    """Let what is tied to a weight of this device be that weight, until it has been drawn."""
    for absent in model.modules():
        if isinstance(absent, Absent):
            for twin in absent.twins:
                absent.original.weight = twin.weight  # type: ignore[union-attr]


def _places(model: nn.Module, modules: Container[nn.Module]) -> Iterator[Place]:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in modules:
                yield Place(parent, name, child)


@contextmanager
def _passed_by(places: Sequence[Place]) -> Iterator[None]:
    """Let modules hand on what they are given inside the block: another stage runs them."""
    for place in places:
        away = Absent(place.module)
        away.original = None
        setattr(place.parent, place.name, away)
    try:
        yield
    finally:
        for place in places:
            setattr(place.parent, place.name, place.module)


def absent_modules(model: nn.Module) -> set[nn.Module]:
    """Return what other devices have, as long as it is remembered."""
    away = [m.original for m in model.modules() if isinstance(m, Absent) and m.original is not None]
    return {module for original in away for module in original.modules()}


def held_dtype(module: Any) -> torch.dtype:
    """Return the type of a module's weight, whether this device has it or not."""
    dtype: torch.dtype = module.dtype if isinstance(module, Absent) else module.weight.dtype
    return dtype


def forget_absent(model: nn.Module) -> None:
    """Let go of what other devices have, once first weights have been drawn."""
    for module in model.modules():
        if isinstance(module, Absent):
            module.original = None
