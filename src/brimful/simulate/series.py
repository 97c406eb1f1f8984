"""Which blocks of a program are alike and follow each other, so that a few can run for all.

Where a model is cut into stages, each stage has series of its own; blocks that are checkpointed
are told from those that are not. Blocks of one kind have the same parameters; where nobody
described the architecture they have the same modules and switches too, and so have the blocks
around them.
"""

from collections.abc import Hashable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

from torch import nn

from brimful.build.blocks import body_of, decoder_blocks
from brimful.build.layout import kinds_of
from brimful.build.program import Program
from brimful.models.architectures import ARCHITECTURES
from brimful.models.sequence import contexts, numbered
from brimful.pretend.blocks import block_of
from brimful.pretend.stand_ins import Series
from brimful.simulate.unrolled import names_blocks, num_prefix, period_of, stack_of
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.techniques.parallel.stages import Schedule
from brimful.values.job import Job
from brimful.values.strategy import Strategy, compiles

WHOLE_BACKWARDS: frozenset[Schedule] = frozenset({"gpipe", "1f1b", "interleaved"})
"""Schedules that compute all gradients of a block at once."""


def may_stand_in(job: Job, strategy: Strategy) -> bool:
    """Whether blocks of a program may stand for each other."""
    is_whole = strategy.pp == 1 or strategy.pp_schedule in WHOLE_BACKWARDS
    is_here = strategy.offload == NO_OFFLOAD and not strategy.optimizer_in_backward
    is_here = is_here and not compiles(strategy)  # whose blocks share one compilation
    is_one = strategy.ep == 1 and strategy.engine == "torch"
    is_told = bool(stack_of(job)) or job.model.model_type not in ARCHITECTURES
    return is_whole and is_here and is_one and is_told and not names_blocks(job)


def blocks_of(program: Program) -> list[tuple[str, nn.Module]]:
    """List the blocks of a program by their paths."""
    paths = {module: name for name, module in program.model.named_modules()}
    return [(paths[block], block) for block in decoder_blocks(program.model)]


def body_in(program: Program) -> tuple[str, nn.Module]:
    """Return the path of what is before a model's head, and that."""
    body = body_of(program.model)
    return next((name, each) for name, each in program.model.named_modules() if each is body)


def series_of(program: Program) -> list[Series]:
    """List the series of a program, which may stand in."""
    stages = _stages(program)
    paths = {block: path for path, block in blocks_of(program)}
    stack, kinds = _kinds(program, paths)

    def together(block: nn.Module) -> tuple[int, int, bool]:
        return stages.get(block, 0), kinds[block][0], bool(block.gradient_checkpointing)

    found = []
    blocks = [block for block in paths if paths[block].startswith(stack)]
    for (_, *what), group in groupby(blocks, together):
        each = list(group)
        told = [(*what, kinds[block][1], *_tensors(block)) for block in each]
        found.append(Series(each, [paths[block] for block in each], told))
    return found


class _Kinds(NamedTuple):
    """What the blocks of a model are.

    Attributes:
        stack: What the paths of those begin with that follow each other.
        kinds: Of each the part of the stack that it belongs to, and its kind in that part.
    """

    stack: str
    kinds: Mapping[nn.Module, tuple[int, Hashable]]


def _kinds(program: Program, paths: dict[nn.Module, str]) -> _Kinds:
    """Tell the blocks apart: as their architecture is described, else by what they are."""
    job = program.job
    if stack := stack_of(job):
        num_first = num_prefix(job.model)
        period = period_of(job.model, num_first)
        numbers = {block: block_of(path, stack) for block, path in paths.items()}
        return _Kinds(stack, {b: (int(n >= num_first), n % period) for b, n in numbers.items()})
    stacks = numbered(path.rpartition(".")[0] for path in paths.values())
    between = contexts(kinds_of(getattr(program.model, "config", None), list(paths)))
    return _Kinds("", dict(zip(paths, zip(stacks, between, strict=True), strict=True)))


def _stages(program: Program) -> dict[nn.Module, int]:
    """Return the stage of each module, where there are several."""
    if program.pipeline is None:
        return {}
    return {module: part.index for part in program.pipeline.parts for module in part.own}


def _tensors(block: nn.Module) -> Iterator[Hashable]:
    for name, tensor in (*block.named_parameters(), *block.named_buffers()):
        yield name, type(tensor), tuple(tensor.shape), tensor.dtype, tensor.requires_grad
