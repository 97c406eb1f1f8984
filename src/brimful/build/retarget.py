"""The same model under another strategy: nothing is made, copied or moved.

What of a strategy a program on one device has in it is how its blocks are recomputed, how it
attends, and the module that computes its loss; all three are switches of a model that is there.
The micro-batch is the data's. Whatever lays a model out over devices needs a new program.
"""

import dataclasses
from typing import Any

import msgspec

from brimful.build.attention import IMPLEMENTATION
from brimful.build.blocks import decoder_blocks
from brimful.build.checkpointing import checkpoint_blocks
from brimful.build.decoder_check import check_scores
from brimful.build.exactness import check_built
from brimful.build.program import Program
from brimful.build.tasks import task_of
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.values.strategy import Strategy

SWITCHES = ("micro_batch", "activation_checkpointing", "loss_chunks", "attention")
"""Fields of a strategy in which the two programs may differ."""


def can_retarget(program: Program, strategy: Strategy) -> bool:
    """Whether a program can go on under another strategy as it is."""
    kept = {name: getattr(strategy, name) for name in SWITCHES}
    is_alike = msgspec.structs.replace(program.strategy, **kept) == strategy
    # A compiled block has its checkpoint inside of it.
    # What was written down beforehand is of a model that is no longer there to be asked; blocks of
    # which something is away are called otherwise; an early update has changed some parameters.
    is_plain = strategy.offload == NO_OFFLOAD and program.early is None
    is_plain = is_plain and strategy.compile == "none"
    is_here = program.mesh is None and strategy.reference != "precomputed"
    return is_alike and is_plain and is_here


def retarget(program: Program, strategy: Strategy) -> Program:
    """Return the program under another strategy: the same model, optimizer and loss scaler.

    ``program``: between two steps, without gradients. Not to be used any longer. ``strategy``:
    which ``can_retarget`` allows. Raises InputError: a module takes statistics over its batch,
    which the strategy would split. Raises UnsupportedError: the attention kernel leaves something
    out.
    """
    job, model = program.job, program.model
    check_built(job, strategy, model)
    if strategy.attention != program.strategy.attention:
        check_scores(model, job, strategy)
        second = [] if program.reference is None else [program.reference.model]
        for attending in (model, *second):
            _attend(attending, strategy)
    for block in decoder_blocks(model):
        block.gradient_checkpointing = False
    checkpoint_blocks(model, job, strategy)
    loss = task_of(job).loss(model, job, strategy)
    return dataclasses.replace(program, strategy=strategy, loss=loss)


def _attend(model: Any, strategy: Strategy) -> None:
    model.set_attn_implementation(IMPLEMENTATION[strategy.attention])
