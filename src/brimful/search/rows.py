"""Pipelines in a search: those that could be the best are looked at, and no others.

A pipeline's step takes at least a device's share of all work for every micro-batch, and a share of
one more for every other device while the row fills (``_bound``): chunks, checkpoints and
collectives add to that, and stages are never evener. Pipelines are taken in the order of this
bound, and left when it is beyond the best step that fits, so that none that is left out could have
won. What a device holds whatever its micro-batches is a bound on memory in the same way.

Where nothing fits, or least memory is asked for, only pipelines whose blocks are all recomputed are
looked at, in the order of the second bound, and none whose stages are interleaved unless that was
asked for: what those have sent lives until the end of a step.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import count, product
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.formula import PREDICTED_SCHEDULES, missing_formula
from brimful.cost.outside import num_groups, room_of
from brimful.cost.stage_memory import device_states, held_bytes
from brimful.cost.stage_peaks import fullest, peak_of
from brimful.cost.stage_site import Site, classes_of, site_of
from brimful.cost.stage_time import (
    Rates,
    behind,
    device_seconds,
    rates_of,
    row_seconds,
    total_seconds,
    way_of,
)
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.pins import Pins, micro_batches
from brimful.search.space import recomputes_of
from brimful.search.spreads import expert_degrees, tensor_degrees
from brimful.search.table import TIE, Objective
from brimful.techniques.parallel.stages import ONE_STAGE, Schedule
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Job
from brimful.values.strategy import (
    Attention,
    Recompute,
    Strategy,
    Zero,
    num_checkpointed,
    num_micro_batches,
    recompute_of,
    spell_checkpointing,
)

NUM_FITTING = 8
"""Pipelines that may hold by their live bytes and are looked for at a time: the fastest of them may
not when it is replayed, and then the next ones are."""
CLOSE = 1.05
"""Of a tiny model a block that is recomputed may take more than one that is not."""
STAGES = (2, 4)
"""Stages on each device that are tried where a schedule takes several."""
PIECES = (1, 4, 16)
"""Pieces of the loss that are tried: in a pipeline one stage of many has the logits."""
QUARTERS = 4
"""Shares of the fullest device's blocks that are tried as checkpointed, beside all of them."""
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "gpipe", "interleaved")
_ZEROS: tuple[Zero, ...] = (0, 1, 2, 3)


class Found(NamedTuple):
    """A strategy that was looked at: its peak in bytes, its seconds per step (NaN: unknown)."""

    strategy: Strategy
    peak_bytes: float
    step_s: float


class Bar(NamedTuple):
    """What a pipeline has to be as good as: the place of a time among ties, and a peak."""

    place: float
    peak_bytes: float


class Rows:
    """The pipelines of a job on a cluster, and what is known of their parts."""

    def __init__(self, job: Job, cluster: Cluster, attention: Attention, pins: Pins) -> None:
        """Say what is searched."""
        self.job, self.cluster, self.attention, self.pins = job, cluster, attention, pins
        self._limit = tensor_limit_bytes(cluster)
        self._beyond: float = self._limit
        self._rates: dict[tuple[object, ...], Rates | None] = {}
        self._least: dict[tuple[object, ...], float] = {}
        self._known: dict[tuple[object, ...], object] = {}
        self._told: dict[tuple[object, ...], bool] = {}
        self._number = count()

    def search(self, bar: Bar, *, objective: Objective) -> list[Found]:
        """Look at every pipeline that may be better than what is known.

        ``bar``: the best that fits so far; infinite where nothing does.
        """
        if bar.place == -math.inf:
            return []  # what fits has no known time, which nothing could be better than
        looked = [] if objective == "memory" else self.faster(bar.place)
        found = [each for each in looked if each.peak_bytes <= self._limit]
        if objective == "memory" or (math.isinf(bar.place) and not found):
            found = list(self._smallest(bar.peak_bytes, looked))
            found += self._between(found)
            found = list({each.strategy: each for each in found}.values())
        return found

    # -- fastest first --

    def faster(
        self, place: float, is_hopeless: Callable[[Found], bool] = lambda _: False
    ) -> list[Found]:
        """Look at the next pipelines, fastest first, until some of them may hold.

        Each is returned once, by the first call that comes to it.

        ``place``: None that takes longer is looked at. ``is_hopeless``: whether one that fits by
        its live bytes is known not to hold. Returns them, the last ``NUM_FITTING`` of which may
        hold or none faster than ``place`` is left.
        """
        found: list[Found] = []
        num_fitting = 0
        waiting = self._waiting
        while waiting and waiting[0][0] <= place:
            here, _, strategy, step_s = heappop(waiting)
            if step_s is None:
                for other, seconds in self._members(strategy):
                    heappush(waiting, (place_of(seconds), next(self._number), other, seconds))
                continue
            one = self._look(strategy, step_s)
            found.append(one)
            num_fitting += one.peak_bytes <= self._firm_bytes(strategy) and not is_hopeless(one)
            place = min(place, here) if num_fitting == NUM_FITTING else place
        return found

    @cached_property
    def _waiting(self) -> list[tuple[float, int, Strategy, float | None]]:
        """Return layouts by the bound of their times; members of those taken up by their times."""
        unknown: float | None = None
        every = [
            (place_of(self._bound(one)), next(self._number), one, unknown) for one in self._plain()
        ]
        heapify(every)
        return every

    def _firm_bytes(self, strategy: Strategy) -> int:
        """Return what tensors may take whatever lies outside the allocator."""
        room = room_of(self.cluster.device, num_groups=num_groups(strategy))
        return min(self._limit, room.firm_bytes)

    def _look(self, strategy: Strategy, step_s: float) -> Found:
        """Predict a peak; of what does not fit it is that of the first device beyond the limit."""
        found = fullest(self._site(strategy), limit_bytes=self._beyond)
        return Found(strategy, float(peak_of(found)), step_s)

    def _site(self, strategy: Strategy) -> Site:
        return site_of(self.job, strategy, self.cluster.device, self._known)

    def _bound(self, plain: Strategy) -> float:
        """Return a time that no member of ``_members`` is below; 0 where a rate is unknown."""
        rates = self._rates_of(plain)
        if rates is None:
            return 0.0
        layers = self.job.model.num_layers
        parts = rates.embedding + rates.plain.sum(0) + rates.head
        each = parts.sum() + layers * rates.waited.sum() + rates.waited_ends.sum()
        num = self.job.global_batch // (plain.micro_batch * plain.dp_replicate * plain.dp_shard)
        more = (plain.pp - 1) / plain.stages_per_device
        seconds = float(each / plain.pp * (num + more))
        return 0.0 if math.isnan(seconds) else seconds

    def _rates_of(self, strategy: Strategy) -> Rates | None:
        key = (
            strategy.zero >= 2 and strategy.dp_shard > 1,  # noqa: PLR2004 - gathered parameters
            strategy.tp, strategy.ep, recompute_of(strategy), strategy.micro_batch,
            strategy.loss_chunks,
        )  # fmt: skip
        if key not in self._rates:
            self._rates[key] = rates_of(self._site(strategy), self.cluster)
        return self._rates[key]

    def _members(
        self, plain: Strategy, *, whatever_fits: bool = False
    ) -> Iterator[tuple[Strategy, float]]:
        """Yield strategies that are laid out alike, where they may fit, and their seconds."""
        if not whatever_fits and not self._may_fit(plain):
            return
        site = self._site(plain)
        way, after = way_of(site, self.cluster), behind(site, self.cluster)
        for chunks, recompute in product(self._chunks(plain), recomputes_of(self.pins)):
            asked = self._counts(plain, recompute)
            told = [(k, self._with(plain, chunks, int(k), recompute)) for k in asked]
            told = [(k, one) for k, one in told if self._is_told(one)]
            if not told:
                continue
            counts, every = np.array([k for k, _ in told]), [one for _, one in told]
            rates = self._rates_of(every[-1])
            if rates is None:
                times = np.full(len(counts), np.nan)
            else:
                work, waited = device_seconds(rates, way, counts.astype(float))
                times = total_seconds(row_seconds(way, work.sum(2) + waited), after)
            yield from zip(every, times.tolist(), strict=True)

    def _may_fit(self, plain: Strategy) -> bool:
        """Whether any that is laid out alike may fit.

        Where all is recomputed in full next to nothing is kept; if that takes more than ``CLOSE``
        times the limit, nothing fits.
        """
        if self._least_bytes(plain) > self._limit:
            return False
        if self.pins.activation_checkpointing is not None:
            return True
        layers = self.job.model.num_layers
        whole = [self._with(plain, n, layers, "full") for n in sorted(self._chunks(plain))[::-1]]
        if not all(map(self._is_told, whole)):
            return True
        return any(self._look(one, math.nan).peak_bytes <= CLOSE * self._limit for one in whole)

    def _chunks(self, plain: Strategy) -> Sequence[int]:
        if self.pins.loss_chunks is not None:
            return (self.pins.loss_chunks,)
        tokens = plain.micro_batch * self.job.rows_per_sample * self.job.seq_len
        return [n for n in PIECES if tokens % n == 0]

    def _counts(self, plain: Strategy, recompute: Recompute) -> NDArray[np.int64]:
        """Return how many of each device's blocks may be checkpointed: quarters, or all.

        None is ``full`` by convention.
        """
        layers = self.job.model.num_layers
        pinned = self.pins.activation_checkpointing
        if pinned is not None:
            asked = replace(plain, activation_checkpointing=pinned)
            again = num_checkpointed(asked, num_layers=layers)
            is_mine = recompute == (recompute_of(asked) if again else "full")
            return np.array([again] if is_mine else [], dtype=np.int64)
        most = max(sum(s.num_blocks for s in stages) for stages in classes_of(self._site(plain)))
        shares = {-(-most * n // QUARTERS) for n in range(1, QUARTERS)} - {most}
        none = {0} if recompute == "full" else set()
        return np.array(sorted(none | shares | {layers}))

    def _is_told(self, strategy: Strategy) -> bool:
        """Whether a formula covers it: of what is traced not every variant may have been."""
        key = (
            strategy.zero >= 2,  # noqa: PLR2004 - gathered parameters
            strategy.tp, strategy.ep, strategy.pp, strategy.stages_per_device,
            strategy.activation_checkpointing, strategy.loss_chunks,
        )  # fmt: skip
        if key not in self._told:
            self._told[key] = not missing_formula(self.job, strategy, self.cluster.device)
        return self._told[key]

    def _with(self, plain: Strategy, chunks: int, again: int, recompute: Recompute) -> Strategy:
        layers = self.job.model.num_layers
        kind = spell_checkpointing(again, num_layers=layers, recompute=recompute)
        return replace(plain, loss_chunks=chunks, activation_checkpointing=kind)

    # -- smallest first --

    def _smallest(self, peak: float, looked: Sequence[Found]) -> Iterator[Found]:
        """Yield pipelines that keep least until all that are left hold more."""
        self._beyond = math.inf
        only = None if self.pins.pp_schedule or self.pins.stages_per_device else ONE_STAGE
        every = [one for one in self._plain() if only is None or one.pp_schedule in only]
        for plain in sorted(every, key=self._least_bytes):
            if self._least_bytes(plain) >= peak:
                break
            for strategy, step_s in self._recomputed(plain):
                found = self._look(strategy, step_s)
                peak = min(peak, found.peak_bytes)
                yield found
        for each in sorted(looked, key=lambda one: one.peak_bytes):
            if each.peak_bytes >= peak:
                return  # which is that of one device, so that the row's is no less
            found = self._look(each.strategy, each.step_s)
            peak = min(peak, found.peak_bytes)
            yield found

    def _between(self, found: Sequence[Found]) -> Iterator[Found]:
        """Yield all of what is spread like one that takes hardly more than the least, in any order.

        Of a tiny model recomputing some blocks may take less than all or none, and so may stages
        that are cut finer.
        """
        most = CLOSE * min((each.peak_bytes for each in found), default=0.0)
        near = {_spread(each.strategy) for each in found if each.peak_bytes <= most}
        for plain in self._plain():
            if _spread(plain) in near:
                for strategy, step_s in self._members(plain, whatever_fits=True):
                    yield self._look(strategy, step_s)

    def _recomputed(self, plain: Strategy) -> Iterator[tuple[Strategy, float]]:
        is_pinned = self.pins.activation_checkpointing is not None
        for strategy, step_s in self._members(plain, whatever_fits=True):
            if is_pinned or strategy.activation_checkpointing in {"full", "none"}:
                yield strategy, step_s

    def _least_bytes(self, plain: Strategy) -> float:
        """Return what the fullest device holds throughout, whatever its micro-batches keep."""
        key = tuple(getattr(plain, name) for name in _HOLDING)
        if key not in self._least:
            site = self._site(plain)
            self._least[key] = max(
                held_bytes(site, stages, device_states(site, stages)[0])
                for stages in classes_of(site)
            )
        return self._least[key]

    # -- what there is --

    def _plain(self) -> Iterator[Strategy]:
        """Yield every layout with every micro-batch; nothing checkpointed, the loss whole."""
        for pp, tp in product(self._degrees(), self._tensor()):
            num_groups, left = divmod(self.cluster.num_devices, pp * tp)
            if left or self.job.global_batch % num_groups:
                continue
            shared = list(self._parted(num_groups, tp))
            sizes = micro_batches(self.job, self.pins, num_groups)
            for (schedule, stages), ways, size in product(self._orders(pp), shared, sizes):
                zero, shards, ep = ways
                strategy = Strategy(
                    micro_batch=size, activation_checkpointing="none",
                    loss_chunks=self.pins.loss_chunks or 1, attention=self.attention, zero=zero,
                    dp_replicate=num_groups // shards, dp_shard=shards, tp=tp, ep=ep, pp=pp,
                    pp_schedule=schedule, stages_per_device=stages,
                    accumulate=self.pins.accumulate or "hold",
                )  # fmt: skip
                if self._is_wanted(strategy) and self._runs(strategy):
                    yield strategy

    def _is_wanted(self, strategy: Strategy) -> bool:
        """Whether an order is tried: GPipe where 1F1B has too few micro-batches, or if asked for.

        1F1B keeps no more, and takes longer for nothing but messages.
        """
        if strategy.pp_schedule != "gpipe" or self.pins.pp_schedule:
            return True
        return num_micro_batches(self.job, strategy) < strategy.pp

    def _runs(self, strategy: Strategy) -> bool:
        try:
            check_strategy(self.job, strategy)
        except (InputError, UnsupportedError):
            return False
        return not missing_formula(self.job, strategy, self.cluster.device)

    def _degrees(self) -> Sequence[int]:
        if self.pins.pp is not None:
            return (self.pins.pp,) if self.pins.pp > 1 else ()
        most = min(self.cluster.num_devices, self.job.model.num_layers)
        return [n for n in range(2, most + 1) if self.cluster.num_devices % n == 0]

    def _tensor(self) -> Sequence[int]:
        return tensor_degrees(self.job, self.pins._replace(pp=None), self.cluster)

    def _orders(self, pp: int) -> Iterator[tuple[Schedule, int]]:
        """Yield orders of work with stages of each device."""
        pins = self.pins
        for schedule in (pins.pp_schedule,) if pins.pp_schedule else SCHEDULES:
            several = (1,) if schedule in ONE_STAGE else STAGES
            for stages in (pins.stages_per_device,) if pins.stages_per_device else several:
                if schedule in PREDICTED_SCHEDULES and pp * stages <= self.job.model.num_layers:
                    yield schedule, stages

    def _parted(self, num_groups: int, tp: int) -> Iterator[tuple[Zero, int, int]]:
        """Yield stages of ZeRO with numbers of shards, and among how many experts are parted."""
        degrees = expert_degrees(self.job, self.pins, self.attention, self.cluster)
        for (zero, shards), ep in product(self._shared(num_groups, tp), degrees):
            if ep == 1 or (zero >= 2 and shards * tp % ep == 0):  # noqa: PLR2004 - which shards all
                yield zero, shards, ep

    def _shared(self, num_groups: int, tp: int) -> Iterator[tuple[Zero, int]]:
        """Yield stages of ZeRO with numbers of shards: a node's devices, or all that there are."""
        pins = self.pins
        near = pins.dp_shard or self.cluster.devices_per_node // tp
        for zero, shards in product(_ZEROS, sorted({1, near, num_groups})):
            is_whole = zero == 0
            if shards < 1 or num_groups % shards or is_whole != (shards == 1):
                continue
            is_mine = pins.zero in {None, zero} and pins.dp_shard in {None, shards}
            if is_mine and pins.dp_replicate in {None, num_groups // shards}:
                yield zero, shards


_HOLDING = (
    "micro_batch", "zero", "dp_replicate", "dp_shard", "tp", "ep", "pp", "stages_per_device",
)  # fmt: skip
"""Fields that decide what a device holds whatever is kept of micro-batches."""


def _spread(strategy: Strategy) -> tuple[int, ...]:
    """Return how a batch and a model are spread over devices, but for the order of work."""
    degrees = (strategy.dp_replicate, strategy.dp_shard, strategy.tp, strategy.ep, strategy.pp)
    return (strategy.micro_batch, strategy.zero, *degrees)


def place_of(seconds: float) -> float:
    """Return a time on the scale of ``rank``, of which ``TIE`` is one step; unknown ones first."""
    if math.isnan(seconds) or not seconds:
        return -math.inf
    return float(np.round(np.log(max(seconds, 1e-12)) / np.log1p(TIE)))
