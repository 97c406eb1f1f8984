"""Watching routers: which experts the tokens of a run choose, and what each device gets of them.

Counts are kept on the device and read once in ``WINDOW`` steps; a forward pass that is recomputed,
or that nothing follows, is not counted.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from brimful.build.batch import IGNORE_INDEX, Batch
from brimful.build.experts import expert_modules
from brimful.build.parallel.experts import RECEIVED
from brimful.build.phases import in_backward
from brimful.build.program import Program
from brimful.build.switch import HEARD, FixedCapacityMLP
from brimful.errors import BrimfulError
from brimful.models.architectures import MIXTURES
from brimful.models.config import experts_of
from brimful.techniques.runnable import check_strategy
from brimful.train.expert_load import Trouble, alarm_of, loads_of
from brimful.train.world import is_spread, of_all
from brimful.values.job import Job, check_job
from brimful.values.run_files import ExpertRow
from brimful.values.strategy import Strategy

WINDOW = 10
"""Steps that are counted together; ten times as many after the first ``MANY`` steps: the rows of a
large mixture are long."""
MANY = 1000


Rows = tuple[tuple[int, ...], ...]
"""[blocks][passes]."""


class Received:
    """The rows that this device's experts got when they got most; see ``ExpertRow.received``."""

    def __init__(self, num_blocks: int, *, keeps_step: bool) -> None:
        """Have heard nothing.

        ``keeps_step``: whether all passes of a step are kept, or one.
        """
        self._step: list[list[int]] = [[] for _ in range(num_blocks)]
        self._heaviest: Rows = ((),) * num_blocks
        self._keeps_step = keeps_step

    def hear(self, place: int, num_rows: int) -> None:
        """Take note of a forward pass of a block."""
        self._step[place].append(num_rows)

    def end_step(self) -> None:
        """Compare the step's passes with the heaviest so far."""
        passes = max((len(rows) for rows in self._step), default=0)
        each = [tuple(tuple(rows[n : n + 1]) for rows in self._step) for n in range(passes)]
        found = [tuple(map(tuple, self._step))] if self._keeps_step else each
        self._heaviest = max([*found, self._heaviest], key=_num_rows)
        self._step = [[] for _ in self._step]

    def taken(self) -> Rows:
        """Return the heaviest, and begin anew."""
        heaviest, self._heaviest = self._heaviest, ((),) * len(self._step)
        return heaviest


def _num_rows(received: Rows) -> int:
    return sum(map(sum, received))


class ExpertWatch:
    """Counts the choices of every router of a program.

    Memory: 8 bytes for each expert of each block, and for each choice of a micro-batch for as long
    as it is counted.
    """

    def __init__(self, program: Program) -> None:
        """Hook into every block with experts that this process has."""
        experts, strategy = experts_of(program.job.model), program.strategy
        self._experts, self._strategy = experts, strategy
        self._advice = _advice(program.job, strategy)
        num_blocks = len(experts.sparse_blocks)
        zeros = partial(torch.zeros, dtype=torch.int64, device=program.device)
        self._load = zeros((num_blocks, experts.num_experts))
        self._dropped = zeros(num_blocks)
        self._received = Received(num_blocks, keeps_step=strategy.pp > 1)
        self._is_token: torch.Tensor | None = None
        self._is_answer: torch.Tensor | None = None
        self._num_steps = self._total = 0
        self._has_capacity = False
        self._troubled: frozenset[tuple[int, Trouble]] = frozenset()
        roots = [program.root] if program.pipeline is None else list(program.root.children())
        for root in roots:
            root.register_forward_pre_hook(self._see, with_kwargs=True)
        stacks = _stacks(program.model)
        for place, module in _sparse(program, experts.sparse_blocks):
            self._attach(place, module, is_decoder=module in stacks)

    def _attach(self, place: int, module: Any, *, is_decoder: bool) -> None:
        if isinstance(module, FixedCapacityMLP):
            self._has_capacity = True

            def serve(chosen: torch.Tensor, fits: torch.Tensor) -> None:
                self._served(place, chosen, fits, self._is_answer if is_decoder else self._is_token)

            setattr(module, HEARD, serve)
            return
        module.register_forward_pre_hook(
            lambda _module, args: self._chosen(place, args[1], self._is_token)
        )
        setattr(module, RECEIVED, lambda _block, num_rows: self._received.hear(place, num_rows))

    def _see(self, _root: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Note which of a micro-batch's tokens are no padding."""
        batch = next((arg for arg in args if isinstance(arg, Batch)), None)
        segments = kwargs.get("segments") if batch is None else batch.segments
        if batch is not None and self._has_capacity:
            self._is_answer = (batch.labels != IGNORE_INDEX).flatten().to(torch.int64)
        if segments is None:
            self._is_token = None
            return
        tokens, tp = (segments != 0).flatten(), self._strategy.tp
        own = dist.get_rank() % tp if tp > 1 else 0
        self._is_token = tokens.chunk(tp)[own].to(torch.int64)

    def _chosen(self, place: int, experts: torch.Tensor, is_token: torch.Tensor | None) -> None:
        """Count choices [..., k] of every token, those of padding as nothing."""
        if not torch.is_grad_enabled() or in_backward():
            return
        flat = experts.flatten()
        if is_token is None:
            counts = torch.ones(1, dtype=torch.int64, device=flat.device).expand(flat.shape)
        else:
            counts = is_token.repeat_interleave(experts.shape[-1])
        self._load[place].scatter_add_(0, flat, counts)

    def _served(
        self,
        place: int,
        experts: torch.Tensor,
        fits: torch.Tensor,
        is_token: torch.Tensor | None,
    ) -> None:
        self._chosen(place, experts, is_token)
        if torch.is_grad_enabled() and not in_backward():
            lost = (~fits).flatten()
            self._dropped[place] += (lost if is_token is None else lost * is_token).sum()

    def after_step(self, *, is_last: bool) -> bool:
        """Count a step; return whether it ends a window. The same in every process.

        ``is_last``: whether the run ends here, or is saved: what goes on counts anew.
        """
        self._received.end_step()
        self._num_steps += 1
        self._total += 1
        window = WINDOW if self._total <= MANY else 10 * WINDOW
        return is_last or self._num_steps >= window

    def row(self, step: int) -> ExpertRow:
        """Add up a window over all processes, and begin the next one; all call this."""
        counts = torch.cat([self._load.flatten(), self._dropped])
        if is_spread():
            dist.all_reduce(counts)
        load, dropped = counts.split([self._load.numel(), self._dropped.numel()])
        made = ExpertRow(
            step=step,
            num_steps=self._num_steps,
            blocks=self._experts.sparse_blocks,
            load=tuple(map(tuple, load.view_as(self._load).tolist())),
            num_choices=self._experts.num_experts_per_token,
            dropped=tuple(dropped.tolist()) if self._has_capacity else (),
            received=tuple(of_all(self._received.taken())) if self._strategy.ep > 1 else (),
        )
        self._load.zero_()
        self._dropped.zero_()
        self._num_steps = 0
        return made

    def alarms(self, row: ExpertRow) -> list[str]:
        """Say what went wrong in a window and had not in the one before."""
        found = {(load.block, load.trouble): load for load in loads_of(row) if load.trouble}
        new = [alarm_of(load, row) for key, load in found.items() if key not in self._troubled]
        self._troubled = frozenset(found)
        return [f"{said}; {self._advice}" for said in new]


def _advice(job: Job, strategy: Strategy) -> str:
    """Say what spreads tokens: a loss of the routers only where this version takes one."""
    balanced = msgspec.structs.replace(job, router_aux_loss=0.01, allow=("batch-statistics",))
    try:
        check_strategy(check_job(balanced), strategy)
    except BrimfulError:
        return "a lower learning rate may spread them"
    return "a lower learning rate, or --router-aux-loss, spreads them"


def watch_experts(program: Program) -> ExpertWatch | None:
    """Watch a program's routers; None where the model has none that this project knows.

    A device of a pipeline without any watches too: the counts of all processes are added up.
    """
    model = program.job.model
    is_mixture = model.model_type in MIXTURES and bool(experts_of(model).sparse_blocks)
    return ExpertWatch(program) if is_mixture else None


def _stacks(model: nn.Module) -> set[nn.Module]:
    """Return the modules of a decoder that has an encoder before it."""
    named = model.named_modules()
    return {module for path, module in named if path.split(".")[0] == "decoder"}


def _sparse_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    experts = set(expert_modules(model))
    for path, module in model.named_modules():
        if module in experts or isinstance(module, FixedCapacityMLP):
            yield path, module


def _sparse(program: Program, blocks: tuple[int, ...]) -> Iterator[tuple[int, nn.Module]]:
    """Yield the modules with experts here, and the place of each among the model's."""
    for place, (path, module) in enumerate(_sparse_modules(program.model)):
        if program.pipeline is None:
            yield place, module
        else:
            number = next(int(part) for part in path.split(".") if part.isdigit())
            yield blocks.index(number), module
