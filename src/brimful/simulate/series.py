"""Which blocks of a program are alike and follow each other, so that a few can run for all.

Where a model is cut into stages, each stage has series of its own; blocks that are checkpointed
are told from those that are not. Blocks of one kind have the same parameters.
"""

from collections.abc import Hashable, Iterator
from itertools import groupby

from torch import nn

from brimful.build.blocks import decoder_blocks
from brimful.build.program import Program
from brimful.job import Job
from brimful.offload import NONE as NO_OFFLOAD
from brimful.pipeline_split import Schedule
from brimful.pretend.blocks import block_of
from brimful.pretend.stand_ins import Series
from brimful.simulate.unrolled import names_blocks, num_prefix, period_of, stack_of
from brimful.strategy import Strategy

WHOLE_BACKWARDS: frozenset[Schedule] = frozenset({"gpipe", "1f1b", "interleaved"})
"""Schedules that compute all gradients of a block at once."""


def may_stand_in(job: Job, strategy: Strategy) -> bool:
    """Whether blocks of a program may stand for each other."""
    is_whole = strategy.pp == 1 or strategy.pp_schedule in WHOLE_BACKWARDS
    is_here = strategy.offload == NO_OFFLOAD and not strategy.optimizer_in_backward
    is_one = strategy.ep == 1 and strategy.engine == "torch"
    return is_whole and is_here and is_one and bool(stack_of(job)) and not names_blocks(job)


def blocks_of(program: Program) -> list[tuple[str, nn.Module]]:
    """List the blocks of a program by their paths."""
    paths = {module: name for name, module in program.model.named_modules()}
    return [(paths[block], block) for block in decoder_blocks(program.model)]


def series_of(program: Program) -> list[Series]:
    """List the series of a program, which may stand in."""
    job = program.job
    stack, num_first = stack_of(job), num_prefix(job.model)
    period = period_of(job.model, num_first)
    paths = {module: name for name, module in program.model.named_modules()}
    stages = _stages(program)

    blocks = [block for block in decoder_blocks(program.model) if paths[block].startswith(stack)]
    numbers = {block: block_of(paths[block], stack) for block in blocks}

    def together(block: nn.Module) -> tuple[int, bool, bool]:
        is_first = numbers[block] < num_first
        return stages.get(block, 0), is_first, bool(block.gradient_checkpointing)

    found = []
    for (_, *what), group in groupby(blocks, together):
        each = list(group)
        kinds = [(*what, numbers[block] % period, *_tensors(block)) for block in each]
        found.append(Series(each, [paths[block] for block in each], kinds, period))
    return found


def _stages(program: Program) -> dict[nn.Module, int]:
    """Return the stage of each module, where there are several."""
    if program.pipeline is None:
        return {}
    return {module: part.index for part in program.pipeline.parts for module in part.own}


def _tensors(block: nn.Module) -> Iterator[Hashable]:
    for name, tensor in (*block.named_parameters(), *block.named_buffers()):
        yield name, type(tensor), tuple(tensor.shape), tensor.dtype, tensor.requires_grad
