"""Which parameters DeepSpeed's stage 3 has whole, module by module, and what it asks for them.

Before a module runs its parameters are gathered on a stream of their own; behind it they go, as far
as no module that comes soon needs them. From the second micro-batch on the order of modules is
known, and each fetches ahead: a bucket of numbers at least, until as many are whole as may be. One
parameter is gathered in its place; several come together in a buffer, out of which each is copied
when the first of them is needed.

Source: ``runtime/zero/partitioned_param_coordinator.py`` (``fetch_sub_module``,
``release_sub_module``) and ``partition_parameters.py`` (``_all_gather_coalesced``) of DeepSpeed
0.19.8.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

from brimful.cost.additions import is_block
from brimful.cost.asked import Asked
from brimful.cost.deepspeed_pieces import Pieces
from brimful.cost.piece_tensors import COMPUTES, GATHERS
from brimful.cost.profiles import Run
from brimful.cost.trained import modules_of
from brimful.models.config import layout_of
from brimful.models.layout import Parameter
from brimful.techniques.deepspeed_settings import EngineSettings
from brimful.values.job import Job
from brimful.values.strategy import Strategy, world_size

_REDUCED_BY = 6
"""Operations on a gradient: it is copied into the bucket, divided, reduced, and copied again, and
twice it is said that another stream uses it, which takes a place in a queue as a launch does."""
Module = tuple[int, ...]
"""Parameters of a module, by their places among all."""


class Limits(NamedTuple):
    """What decides how many parameters are whole.

    Attributes:
        element: Bytes of a number.
        world_size: Processes that each have a share.
        settings: How many may be whole, are fetched ahead, and stay.
    """

    element: int
    world_size: int
    settings: EngineSettings


class Modules(NamedTuple):
    """Modules that have parameters: before the blocks, of every block, and behind them."""

    before: list[Module]
    blocks: list[list[Module]]
    behind: list[Module]


class PartedModules:
    """Parameters of a model that come and go."""

    def __init__(
        self, asked: Asked, sizes: Sequence[int], modules: Modules, limits: Limits
    ) -> None:
        """Begin with none of them whole.

        ``sizes``: numbers of every parameter.
        """
        self._asked, self._sizes, self._limits = asked, sizes, limits
        self._stream = GATHERS if limits.settings.overlap_comm else COMPUTES
        self._layout = modules
        self._rows: dict[int, int] = {}
        self._coming: dict[int, _Together] = {}
        self._order: list[Module] = []
        self._is_known = False
        self._begin()

    def begin(self) -> None:
        """Begin a micro-batch; from the second on the order of modules is known."""
        self._is_known = bool(self._order)
        self._begin()

    def enter(self, run: Run, num_ops: int) -> None:
        """Let a run's modules come and go, of whose operations each has as many.

        Where in the run they do so does not matter: no other tensors are on their stream.
        """
        modules = self._modules_of(run)
        if run.phase == "backward":
            num_ops += _REDUCED_BY * len({each for module in modules for each in module})
        for module in modules:
            self.fetch(module)
            self._asked.launch(num_ops // len(modules))
            self.release(module)
        if not modules:
            self._asked.launch(num_ops)

    def _modules_of(self, run: Run) -> list[Module]:
        """Return the modules of the next run, in the order in which they run."""
        is_forward = run.phase == "forward"
        if is_block(run):
            self._num_blocks += is_forward
            block = self._layout.blocks[self._num_blocks - 1]
            self._num_blocks -= not is_forward
            again = block if run.group == "checkpointed" else []
            return block if is_forward else [*again, *reversed(block)]
        is_behind = self._num_blocks > 0
        if run.group == "chunk" and run.role != "first":
            return []
        part = self._layout.behind if is_behind else self._layout.before
        return part if is_forward else part[::-1]

    def release_all(self) -> None:
        """Let go of everything, as before an update."""
        self._free([*self._rows.values()])
        self._rows.clear()

    def _begin(self) -> None:
        self._num_blocks = 0
        order = enumerate(self._order) if self._is_known else ()
        self._queue = deque((p, step) for step, module in order for p in sorted({*module}))
        self._needed_at: defaultdict[int, int] = defaultdict(lambda: -1)
        self._step = self._num_whole = 0

    def fetch(self, module: Module) -> None:
        """Gather what a module needs, and fetch ahead."""
        if not self._is_known:
            self._order.append(module)
        self._gather([each for each in module if not self._is_there(each)])
        for each in module:
            self._arrive(each)
        if self._is_known:
            left = {each for each in module if self._needed_at[each] < self._step}
            while left and self._queue:
                each, step = self._queue.popleft()
                self._needed_at[each] = step
                left.discard(each)
            self._fetch_ahead()
        self._step += 1

    def release(self, module: Module) -> None:
        """Let go of what a module needed and none that comes soon needs."""
        kept = self._needed_soon() if self._is_known else frozenset[int]()
        gone = [each for each in module if each in self._rows and each not in kept]
        if self._is_known:
            gone = [
                each
                for each in gone
                if self._sizes[each] > self._limits.settings.stage3_param_persistence_threshold
                and self._needed_at[each] <= self._step
            ]
        self._free([self._rows.pop(each) for each in gone])
        self._asked.launch(len(gone))
        self._num_whole -= sum(self._sizes[each] for each in gone)

    def _free(self, rows: Sequence[int]) -> None:
        """Give rows back, which the stream that computes may still use where it is another."""
        if self._limits.settings.overlap_comm:
            self._asked.free_used(rows)
        else:
            self._asked.free(rows)

    def _needed_soon(self) -> frozenset[int]:
        """Return the parameters of modules that come within as many numbers as stay."""
        found, num = set[int](), 0
        for module in self._order[self._step :]:
            if num >= self._limits.settings.stage3_max_reuse_distance:
                break
            found.update(module)
            num += sum(self._sizes[each] for each in module)
        return frozenset(found)

    def _fetch_ahead(self) -> None:
        settings = self._limits.settings
        left = settings.stage3_max_live_parameters - self._num_whole
        most = min(left, settings.stage3_prefetch_bucket_size)
        ahead, num = list[int](), 0
        while self._queue and num < most:
            each, step = self._queue.popleft()
            self._needed_at[each] = max(self._needed_at[each], step)
            if not self._is_there(each) and each not in ahead:
                ahead.append(each)
                num += self._sizes[each]
        self._gather(ahead)

    def _is_there(self, parameter: int) -> bool:
        return parameter in self._rows or parameter in self._coming

    def _gather(self, parameters: Sequence[int]) -> None:
        parameters = sorted({*parameters})
        if not parameters:
            return
        num = sum(self._padded(each) for each in parameters)
        row = self._asked.allocate(num * self._limits.element, self._stream)
        self._num_whole += sum(self._sizes[each] for each in parameters)
        self._asked.launch(1)
        if len(parameters) == 1:
            self._rows[parameters[0]] = row
            return
        together = _Together(row, tuple(parameters), [*parameters])
        self._coming |= dict.fromkeys(parameters, together)

    def _arrive(self, parameter: int) -> None:
        """Copy what came together out of its buffer, which goes with the last that is needed."""
        together = self._coming.pop(parameter, None)
        if together is None:
            return
        if len(together.left) == len(together.every):
            for each in together.every:
                num_bytes = self._sizes[each] * self._limits.element
                self._rows[each] = self._asked.allocate(num_bytes, self._stream)
            # one copy of each, of as many parts, each of which is said to be used
            self._asked.launch(len(together.every) * (1 + self._limits.world_size))
        together.left.remove(parameter)
        if not together.left:
            self._asked.free([together.row])

    def _padded(self, parameter: int) -> int:
        world_size = self._limits.world_size
        return -(-self._sizes[parameter] // world_size) * world_size


def parted_modules(asked: Asked, job: Job, strategy: Strategy, pieces: Pieces) -> PartedModules:
    """Return the modules of a model whose parameters stage 3 parts.

    ``asked``: what was asked for before. ``pieces``: of the process that asks.
    """
    limits = Limits(pieces.element, world_size(strategy), pieces.settings)
    return PartedModules(asked, pieces.sizes, _modules(job), limits)


def _modules(job: Job) -> Modules:
    layout, numbers = layout_of(job.model), count()

    def told(parameters: Iterable[Parameter]) -> list[Module]:
        return [tuple(next(numbers) for _ in each) for each in modules_of(parameters)]

    before, behind, blocks = told(layout.embedding), list[Module](), list[list[Module]]()
    for run in layout.blocks:
        blocks += [told(run.parameters) for _ in range(run.num_blocks)]
        behind += told(run.after)
    behind += told((*layout.final, *layout.head))
    if job.model.tied_embeddings:  # the head runs with the embedding's
        behind.append(before[0])
    return Modules(before, blocks, behind)


class _Together(NamedTuple):
    """Parameters that come in one buffer: its row, all of them, and those not needed yet."""

    row: int
    every: tuple[int, ...]
    left: list[int]
