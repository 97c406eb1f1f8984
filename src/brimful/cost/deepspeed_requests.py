"""What DeepSpeed's engine asks of the allocator, request by request.

``deepspeed_engine.py`` adds the same up.

The micro-batch is that of one device; flat pieces, buckets and updates are its own. Stages 1 and 2
run all on one stream. Stage 3 gathers on one of its own and reduces on another, so that parameters
and gradients come back late, when these have done with them. A model is there whole on every device
before it is flattened or parted, as where nobody makes it parted.

Source: ``runtime/zero/{stage_1_and_2,stage3}.py`` of DeepSpeed 0.19.8. Compared with its
own code by ``tests/cost/test_deepspeed_requests.py``.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from brimful.allocator.replay import Requests
from brimful.cost.asked import Asked
from brimful.cost.deepspeed_engine import (
    NORM_BYTES,
    alone_of,
    as_requested,
    fullest_rank,
    share_kind,
)
from brimful.cost.deepspeed_pieces import Pieces, pieces_of, shares_of, sub_groups
from brimful.cost.family import family_of
from brimful.cost.memory import Step, family_steps, profile_for
from brimful.cost.micro_batch import MicroBatch, Work, marked_bytes
from brimful.cost.parted_modules import PartedModules, parted_modules
from brimful.cost.piece_tensors import REDUCES
from brimful.cost.profiles import Mark, Run, alike
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.requests import NUM_STEPS, works_of
from brimful.cost.row_sums import chips_of, row_sums
from brimful.cost.sections import changed
from brimful.cost.trained import constants_of
from brimful.cost.update import settings_of, state_tensors, updater_of
from brimful.hardware.cluster import Device
from brimful.techniques.deepspeed_settings import GATHERS_ALL as PARTED
from brimful.techniques.optimizers import OPTIMIZERS, Updated
from brimful.values.job import Job
from brimful.values.strategy import Strategy, num_micro_batches, world_size


def engine_requests(job: Job, strategy: Strategy, device: Device) -> Requests:
    """Return what the process that holds most asks of its device's allocator, in bytes.

    ``strategy``: how, with ``engine=deepspeed``; it has a formula. ``device``: on what; its kernels
    are CUDA's.
    """
    return engine_asked(job, strategy, device).requests()


def engine_asked(job: Job, strategy: Strategy, device: Device) -> Asked:
    """Follow a process from loading to the end of its second step."""
    asked = Asked()
    pieces = pieces_of(job, strategy, fullest_rank(job, strategy, device))
    engine = _Engine(asked, job, strategy, device, pieces)
    engine.load()
    every, marked = engine.works()
    for step in range(NUM_STEPS):
        for place, each in enumerate(every):
            batch = each._replace(batch=each.batch._replace(marked=marked))
            engine.run(batch, is_last=place == len(every) - 1)
            marked = {"embedding": marked["embedding"]}  # libraries keep what they have
        engine.update(is_first=not step)
    return asked


class _Micro(NamedTuple):
    """A micro-batch: what it is made of, its runs, and what each asks for."""

    batch: MicroBatch
    runs: tuple[Run, ...]
    works: tuple[Work, ...]


class _Engine:
    """A process of DeepSpeed's."""

    def __init__(
        self, asked: Asked, job: Job, strategy: Strategy, device: Device, pieces: Pieces
    ) -> None:
        self._asked, self._job, self._strategy = asked, job, strategy
        self._device, self._pieces = device, pieces
        self._is_parted, self._is_away = strategy.zero == PARTED, strategy.offload != "none"
        self._overlaps = bool(pieces.settings.overlap_comm) and self._is_parted
        self._num = world_size(strategy)
        self._modules: PartedModules | None = None
        self._shares: list[int] = []

    def load(self) -> None:
        """Ask for a whole model, and for what is made of it."""
        asked, pieces = self._asked, self._pieces
        whole = [asked.allocate(num * pieces.element) for num in pieces.sizes]
        for num_bytes in constants_of(self._job):
            asked.allocate(num_bytes)
        if self._is_parted:
            self._part(whole)
            self._modules = parted_modules(asked, self._job, self._strategy, pieces)
            return
        asked.flush()
        asked.allocate(pieces.whole * pieces.element)
        asked.free(whole)
        self._widen(pieces.share)
        asked.pass_by([pieces.share * FP32_BYTES] * (not self._is_away))
        if self._is_away:
            asked.allocate(max(pieces.sizes) * pieces.element)

    def _part(self, whole: Sequence[int]) -> None:
        """Ask for a share of each parameter, then for all shares in one, and for the buffers."""
        asked, pieces, element = self._asked, self._pieces, self._pieces.element
        every, shares = shares_of(pieces, self._num), list[int]()
        for row, num in zip(whole, every, strict=True):
            shares.append(asked.allocate(num * element))
            asked.free([row])
        asked.free(shares)
        asked.flush()
        if self._strategy.offload != "parameters":
            asked.allocate(sum(every) * element)
        groups = sub_groups(pieces, self._num)
        for num in groups:
            self._widen(num)
        if not self._is_away:
            asked.pass_by([max(groups) * FP32_BYTES])
        asked.allocate(self._pieces.bucket * element)
        if not self._is_away:
            asked.allocate(sum(every) * element)
        for num in self._pieces.sizes:
            asked.pass_by([num * element])

    def _widen(self, num: int) -> None:
        """Ask for the fp32 copy of so many numbers; what is copied is there twice meanwhile."""
        first, second = self._pieces.element, FP32_BYTES
        if self._is_parted:
            first = FP32_BYTES
        copy = self._asked.allocate(num * first)
        if self._is_away:
            self._asked.free([copy])
            return
        if first == second and not self._is_parted:
            return  # what was cloned is of that type already
        self._asked.allocate(num * second)
        self._asked.free([copy])

    def works(self) -> tuple[list[_Micro], dict[Mark, int]]:
        """Return what the micro-batches of a step that differ ask for, and what is marked."""
        of_one, alone = alone_of(self._job, self._strategy, num=self._num_alike)
        family = family_of(of_one, alone)
        profile = profile_for(of_one, alone.attention, self._device, family)
        steps = list(self._steps(family_steps(of_one, profile, family)))
        marked = marked_bytes(of_one, family, self._device, profile)
        sums = row_sums(of_one, family, chips_of(of_one, self._device))
        works = works_of(of_one, family, steps, marked, sums, lends=self._overlaps)
        every = zip(steps, works, strict=True)
        return [_Micro(batch, runs, each) for (_, runs), (batch, each) in every], marked

    @property
    def _num_alike(self) -> int:
        return min(2, num_micro_batches(self._job, self._strategy))

    def _steps(self, steps: Sequence[Step]) -> Iterator[Step]:
        """Yield micro-batches: in stages 2 and 3 each makes gradients anew."""
        for place in range(self._num_alike):
            step = steps[place if self._strategy.zero == 1 else 0]
            alter = partial(
                as_requested,
                pieces=self._pieces,
                job=self._job,
                strategy=self._strategy,
                is_first=not place,
                is_last=place == self._num_alike - 1,
            )
            yield changed(step, [alter])

    def run(self, micro: _Micro, *, is_last: bool) -> None:
        """Ask for a micro-batch, and for what comes behind its backward."""
        batch, runs, works = micro
        if self._modules is None:
            batch.ask(self._asked, works)
            if self._strategy.zero == 1 and is_last and not self._is_away:
                self._shares = self._asked.take(alike(share_kind(self._pieces)))
                self._asked.drop_gradients()
            return
        self._modules.begin()
        for run, work in zip(runs, works, strict=True):
            for _ in range(work.times):
                self._modules.enter(run, work.num_ops)
                batch.ask(self._asked, [work._replace(times=1, num_ops=0)])
        if self._overlaps:
            num = min(self._pieces.bucket, sum(self._pieces.sizes))
            self._asked.free([self._asked.allocate(num * self._pieces.element, REDUCES)])
        self._asked.wait()

    def update(self, *, is_first: bool) -> None:
        """Ask for norms, wide gradients, the optimizer's state and what it needs."""
        asked, pieces = self._asked, self._pieces
        if self._modules is not None:
            self._modules.release_all()
        largest = -(-max(pieces.sizes) // self._num) if self._is_parted else pieces.largest
        asked.pass_by([(max(pieces.sizes) if self._is_away else largest) * NORM_BYTES])
        if self._is_away:
            asked.drop_gradients()
            return
        rule = OPTIMIZERS[self._job.optimizer]
        settings = settings_of(self._job, updater_of(self._device, self._num))
        groups = sub_groups(pieces, self._num) if self._is_parted else [pieces.share]
        for num in groups:
            flat = asked.allocate(num * pieces.element)
            wide = flat
            if pieces.element < FP32_BYTES:
                wide = asked.allocate(num * FP32_BYTES)
                asked.free([flat])
            asked.free(self._shares)
            self._shares = []
            asked.drop_gradients()
            own = [Updated((num,))]
            every = chain.from_iterable(state_tensors(self._job, each) for each in own)
            for num_bytes in every if is_first else ():
                asked.allocate(num_bytes)
            for moment in rule.moments(own, settings):
                asked.pass_by(moment.made)
            asked.free([wide])
