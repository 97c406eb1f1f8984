"""What the cells of a market share: whatever kind a GPU is, the same job runs the same program."""

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from brimful.cost.assumptions import assumptions_for
from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.formula import check_formula, missing_formula
from brimful.cost.programs import kernels_of
from brimful.cost.row_sums import Chips, chips_of
from brimful.cost.states import held_bytes
from brimful.errors import BrimfulError
from brimful.hardware.cluster import Cluster, Device
from brimful.hardware.cuda_chips import version_of
from brimful.hardware.cuda_libraries import libraries
from brimful.search.attending import beside_usual
from brimful.search.grid_values import Grid, Search
from brimful.search.holding import as_it_fits
from brimful.search.pins import Pins, pinned_strategy
from brimful.search.shop.bound import Least, Work, least_seconds, least_work
from brimful.search.shop.cell import Leanest
from brimful.search.shop.values import Recipe, Request
from brimful.search.space import grids
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import Job
from brimful.values.strategy import Attention, default_reference

_Alike = tuple[str, Attention, str, int, Chips]


def _alike(recipe: Recipe, device: Device) -> _Alike:
    """Return what decides which tensors a device makes: recipe, kernels, cuBLAS, and sums."""
    cublas = libraries().cublas_bytes(version_of(device.capability))
    job, attention = recipe
    return job.precision, attention, kernels_of(device), cublas, chips_of(job, device)


_Key = tuple[int, int, _Alike]


class _Shared(NamedTuple):
    """What as many devices share that run the same kernels: parts of a ``Search``."""

    levels: dict[Hashable, Any]
    kept: dict[Hashable, Any]
    works: dict[Hashable, Any]
    least: dict[int, Any]
    insides: dict[Hashable, Any]
    space: list[Grid]


class Shelf:
    """Searches of one request.

    Attributes:
        request: What for.
    """

    def __init__(self, request: Request) -> None:
        """Begin with nothing."""
        self.request = request
        self._shared: dict[Hashable, _Shared] = {}
        self._peaks: dict[_Key, dict[int, Any]] = {}
        self._wide: dict[Hashable, dict[Hashable, Any]] = {}
        self._between: dict[Hashable, dict[Hashable, Any]] = {}
        self._works: dict[_Alike, Work] = {}
        self._leanest: dict[_Key, Leanest] = {}
        self._attentions: dict[_Alike, Attention] = {}

    @cached_property
    def pins(self) -> Pins:
        """What is fixed in every search."""
        return Pins(reference=default_reference(self.request.job))

    def job(self, device: Device) -> Job:
        """Return the job as it runs on a device."""
        return self.request.on(device.name).job

    def attention(self, device: Device) -> Attention:
        """Return how the job attends on a device: as is usual, or without writing scores out."""
        recipe, key = self.request.on(device.name), self._alike(device)
        if key not in self._attentions:
            others = beside_usual(*recipe, device) if self.request.others else ()
            told = (each for each in others if not self._missing(each, device))
            self._attentions[key] = next(told, recipe.attention)
        return self._attentions[key]

    def _alike(self, device: Device) -> _Alike:
        return _alike(self.request.on(device.name), device)

    def _key(self, cluster: Cluster) -> _Key:
        """Return what decides the strategies of a cluster, and what tensors they make."""
        return cluster.num_devices, cluster.devices_per_node, self._alike(cluster.device)

    def check_formula(self, device: Device) -> None:
        """Check that a job has a formula on a device, of whole copies or of shards.

        Raises UnsupportedError: it has none.
        """
        attention = self.attention(device)
        if self._missing(attention, device):
            check_formula(self.job(device), pinned_strategy(Pins(), attention), device)

    def _missing(self, attention: Attention, device: Device) -> str:
        ways = (pinned_strategy(Pins(), attention, num_devices) for num_devices in (1, 2))
        return min((missing_formula(self.job(device), way, device) for way in ways), key=len)

    def search(self, cluster: Cluster) -> Search:
        """Return a search that shares levels with those of as many devices of other kinds."""
        shared, device = self._of(cluster), cluster.device
        job, attention = self.job(device), self.attention(device)
        wide = (job.precision, kernels_of(device), attention)
        return Search(
            job, cluster, attention, held={}, levels=shared.levels,
            works=shared.works, waits={}, kept=shared.kept, least=shared.least,
            peaks=self._peaks.setdefault(self._key(cluster), {}),
            insides=shared.insides,
            wide=self._wide.setdefault(wide, {}), between=self._between.setdefault(wide, {}),
        )  # fmt: skip

    def space(self, cluster: Cluster) -> Sequence[Grid]:
        """Return every strategy of a cluster; of other kinds of GPU it is the same."""
        space, device = self._of(cluster).space, cluster.device
        if not space:
            attention = self.attention(device)
            space += grids(self.job(device), self.pins, attention=attention, cluster=cluster)
        return space

    def least(self, cluster: Cluster) -> Least:
        """Return what one device of a kind takes at least."""
        job, device = self.job(cluster.device), cluster.device
        key = self._alike(device)
        if key not in self._works:
            self._works[key] = least_work(job, self.attention(device), device)
        return least_seconds(self._works[key], job, self.attention(device), device)

    def leanest(self, cluster: Cluster) -> Leanest:
        """Return the strategy with the smallest peak of live tensors, as far as it was looked for.

        Raises BrimfulError: the job cannot be spread over so many.
        """
        key = self._key(cluster)
        if key not in self._leanest:
            self._leanest[key] = Leanest(self.search(cluster), self.space(cluster))
        return self._leanest[key]

    def holds(self, cluster: Cluster) -> bool:
        """Tell whether the leanest strategy of a cluster holds, by its replay.

        False too where the job cannot be spread over so many.
        """
        limit_bytes = tensor_limit_bytes(cluster)
        sure_bytes = limit_bytes / assumptions_for(cluster.device).reserved_high
        try:
            lean = self.leanest(cluster)
            if lean.below(sure_bytes):
                return True  # no program's allocator held as much more
        except BrimfulError:
            return False
        if lean.strategy is None or lean.peak_bytes > limit_bytes:
            return False
        return as_it_fits(self.job(cluster.device), cluster, lean.strategy) is not None

    def least_kept(self, cluster: Cluster) -> float:
        """Return what each of a cluster's devices has at least at the update, shared by all."""
        job, kernels = self.job(cluster.device), cluster.device.kernels
        return held_bytes(job, kernels) / cluster.num_devices

    def may_hold(self, cluster: Cluster) -> bool:
        """Tell whether the live bytes of the leanest strategy have room; False: it cannot run."""
        try:
            return self.leanest(cluster).below(tensor_limit_bytes(cluster))
        except BrimfulError:
            return False

    def _of(self, cluster: Cluster) -> _Shared:
        device = cluster.device
        by_chip = OPTIMIZERS[self.request.job.optimizer].hangs_on_chip
        key = (
            cluster.num_devices, cluster.devices_per_node, kernels_of(device),
            self.job(device).precision, self.attention(device),
            device.capability if by_chip else None,
        )  # fmt: skip
        return self._shared.setdefault(key, _Shared({}, {}, {}, {}, {}, []))
