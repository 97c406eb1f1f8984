"""The micro-batches of a program of one's own that are run one after the other, by one build."""

import contextlib
import dataclasses
import dis
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import torch
from torch import nn

from brimful.build import phases
from brimful.build.adapters import NAME, adapted_layers, base_name
from brimful.build.batch import Batch
from brimful.build.blocks import decoder_blocks
from brimful.build.liger import FusedLoss
from brimful.build.loss import TokenLoss
from brimful.build.program import Program as BuiltProgram
from brimful.build.step import forward_alone, micro_step
from brimful.build.tasks import task_of
from brimful.pretend.tape import Tape
from brimful.simulate.own_fit import TokenShape
from brimful.simulate.run import listener
from brimful.simulate.runs import UnlikeShapesError
from brimful.simulate.token_loops import TokenLoopError
from brimful.techniques.fused_kernels import Head, budget_for

_MOST_ONCE = 0.02
"""Share of the operations of a micro-batch that may run for the first of all alone."""
_BETWEEN = "between"
_PROBED = (56, 64, 72)
"""Tokens at which forward passes tell whether a program loops over them: chunks of them, of which
the last is a new one, or each."""


def run_cases(  # noqa: PLR0913 - a program, and what of it is run
    tape: Tape,
    program: BuiltProgram,
    _sample: Batch,
    *,
    cases: Sequence[TokenShape],
    more: Sequence[TokenShape] = (),
    may_loop: bool = False,
    on_silent: Callable[[dict[str, int]], object] = dict,
) -> None:
    """Run two micro-batches of every case: the second adds to the gradients of the first.

    ``more``: run behind them where the last has another number of operations than the first.
    ``may_loop``: whether it may loop over tokens. ``on_silent``: told what the first backward
    brings no gradient to (``_silent``).
    """
    if may_loop and _names_range(program.model):
        _check_alike(_forward_ops(tape, program, _PROBED))
    elif _replaces_buffers(program.model):
        _forward_ops(tape, program, (min(case.S for case in cases),))  # what it does but once
    num_ops: dict[TokenShape, int] = {}
    for number, case in enumerate([*cases, *more], start=1):
        if number > len(cases) and num_ops[cases[0]] == num_ops[cases[-1]]:
            return
        tape.forget_handles()
        here = _at(program, case)
        batch = _blank(task_of(here.job).sample(here.job, here.strategy))
        num_targets = 2 * batch.labels.numel()
        shares = []
        with phases.listening(listener(tape, number)), _as_it_is(program.model):
            for _ in range(2):
                num_before = tape.spot().cost
                shares.append(micro_step(here, batch, num_targets=num_targets))
                if not num_ops:
                    on_silent(_silent(here.model, beside=here.job.adapter is not None))
                num_ops.setdefault(case, tape.spot().cost - num_before)  # the second adds more
                if may_loop and _are_unlike(num_ops):
                    raise UnlikeShapesError(f"operations of a micro-batch: {num_ops}")
        tape.begin_phase(_BETWEEN)
        del shares
        program.optimizer.zero_grad(set_to_none=True)


def _silent(model: nn.Module, *, beside: bool) -> dict[str, int]:
    """Count what trains and no gradient came to: parameters, or the adapters beside them, by name.

    Of blocks as few as any of a list has, with ``*`` in the place of their numbers.
    """
    blocks = set(decoder_blocks(model))
    paths = [path for path, module in model.named_modules() if module in blocks]
    lists = "|".join(sorted({re.escape(path.rpartition(".")[0]) for path in paths}))
    numbered = re.compile(rf"^({lists})\.\d+\.") if lists else None
    few: dict[str, int] = {}
    for name, num in (_of_adapters(model) if beside else _of_parameters(model)).items():
        told = numbered.sub(r"\1.*.", name) if numbered else name
        few[told] = min(few.get(told, num), num)
    return {name: num for name, num in few.items() if num}


def _of_parameters(model: nn.Module) -> dict[str, int]:
    return {name: p.grad is None for name, p in model.named_parameters() if p.requires_grad}


def _of_adapters(model: nn.Module) -> Counter[str]:
    """Count them by the weight that they are beside, which several modules may hold."""
    names = {id(p): name for name, p in model.named_parameters()}
    found = Counter[str]()
    for layer in adapted_layers(model):
        held: Any = layer
        name = base_name(names[id(held.get_base_layer().weight)])
        assert name is not None
        found[name] += held.lora_B[NAME].weight.grad is None
    return found


def _check_alike(num_ops: Sequence[int]) -> None:
    """Check that lengths run the same number of operations, before gradients cost their time.

    Raises TokenLoopError: they run as many more as they have more tokens. Raises UnlikeShapesError:
    they run others.
    """
    more = {after - before for before, after in pairwise(num_ops)}
    if more != {0}:
        error = TokenLoopError if len(more) == 1 and min(more) > 0 else UnlikeShapesError
        raise error(f"operations of forward passes: {list(num_ops)}")


def _names_range(model: nn.Module) -> bool:
    """Whether code of a model's blocks counts: no other loops over tokens.

    ``model``: whose classes, and the functions beside them, are read.
    """
    files = {
        inspect.getmodule(type(each)) for block in decoder_blocks(model) for each in block.modules()
    }
    found = (each for file in files if file for each in vars(file).values())
    return any(map(_counts, found))


def _counts(code: Any) -> bool:
    """Whether a function names a range, or one of a class's own but for what makes it."""
    own = vars(code) if inspect.isclass(code) else {"": code}
    named = (each for name, each in own.items() if name != "__init__")
    told = map(inspect.unwrap, filter(inspect.isfunction, named))
    return any("range" in each.__code__.co_names for each in filter(inspect.isfunction, told))


def _replaces_buffers(model: nn.Module) -> bool:
    """Whether a module's forward pass puts another tensor in the place of one of its buffers.

    As it first runs it may do what it never does again: bring a table to the type of its inputs.
    """
    return any(
        step.opname == "STORE_ATTR" and step.argval in held
        for module in model.modules()
        if (held := {name for name, _ in module.named_buffers(recurse=False)})
        if inspect.isfunction(forward := inspect.unwrap(type(module).forward))
        for step in dis.get_instructions(forward)
    )


@contextlib.contextmanager
def _as_it_is(model: nn.Module) -> Iterator[None]:
    """Leave a model as it was: some go over to other attention at a first text that is short."""
    before = [
        (module, dict(module._modules), {n: v for n, v in vars(module).items() if _is_plain(v)})  # noqa: SLF001
        for module in model.modules()
    ]
    try:
        yield
    finally:
        for module, parts, values in before:
            vars(module).update(values)
            module._modules.update(parts)  # noqa: SLF001


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | str)


def _forward_ops(tape: Tape, program: BuiltProgram, lengths: Sequence[int]) -> list[int]:
    """Count the operations of one sequence's forward pass without gradients, at some lengths."""
    found = []
    for length in lengths:
        here = _at(program, TokenShape(1, length))
        batch = _blank(task_of(here.job).sample(here.job, here.strategy))
        before = tape.spot().cost
        with _as_it_is(program.model):
            forward_alone(here, batch, num_targets=batch.labels.numel())
        found.append(tape.spot().cost - before)
    return found


def _are_unlike(num_ops: Mapping[TokenShape, int]) -> bool:
    """Whether a second length runs another number of operations, as a loop over tokens does."""
    is_second = len(num_ops) == len({case.S for case in num_ops}) == 2  # noqa: PLR2004 - a pair
    most, losses = max(num_ops.values()), {case.num_chunks for case in num_ops}
    return is_second and len(losses) == 1 and most - min(num_ops.values()) > _MOST_ONCE * most


def _at(program: BuiltProgram, case: TokenShape) -> BuiltProgram:
    """Return a program that runs micro-batches of one case."""
    if isinstance(program.loss, TokenLoss):
        program.loss.num_chunks = case.num_chunks
    if isinstance(program.loss, FusedLoss):
        head = Head(*program.loss.head.weight.shape)
        budget = budget_for(case.B * case.S, head, num_chunks=case.num_chunks)
        assert budget is not None  # ``shapes_of`` chose it
        program.loss.budget = budget
    job = msgspec.structs.replace(program.job, seq_len=case.S, global_batch=2 * case.B)
    strategy = msgspec.structs.replace(
        program.strategy, micro_batch=case.B, loss_chunks=case.num_chunks
    )
    return dataclasses.replace(program, job=job, strategy=strategy)


def _blank(sample: Batch) -> Batch:
    blank = (None if x is None else torch.zeros(x.shape, dtype=x.dtype) for x in sample)
    return Batch(*blank)
