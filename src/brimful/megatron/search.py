"""Layouts of Megatron-LM on a cluster: the fastest, by formula, that fits.

Every degree that cuts evenly (of stages the others too), micro-batches, virtual stages and what is
recomputed; the fastest first, of which memory is looked at until one fits. Once one of some degrees
does not, it is asked whether one row at a time with all recomputed does: where not, nothing else of
those degrees is looked at. Nor is what runs more rows at once and recomputes no more than one that
does not fit.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from brimful.hardware.cluster import Cluster
from brimful.megatron.layout import Layout
from brimful.megatron.pipeline import LAYOUT, written
from brimful.megatron.speed import Overlaps, slowest_step_s
from brimful.megatron.stage import Peak, least_bytes, peak

_RECOMPUTED = ((), ("--recompute-granularity", "selective"), (
    "--recompute-granularity", "full", "--recompute-method", "uniform",
    "--recompute-num-layers", "1",
))  # fmt: skip
"""Nothing, the core of attention, every layer."""
_MOST_ROWS = 8
"""Of a micro-batch."""
_LEAST_TOKENS = 8192
"""Of a sequence on a process, for sequences to be parted: products of fewer are slow."""
_ENDS = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
"""The embedding and the loss count as a layer each, as for the 126 of Llama 3.1 405B."""


class Degrees(NamedTuple):
    """How processes share the work.

    Attributes:
        tp, pp, cp, ep: Of tensors, stages, sequences and experts.
    """

    tp: int
    pp: int
    cp: int
    ep: int


class Candidate(NamedTuple):
    """One layout.

    Attributes:
        flags: That say it.
        degrees: How processes share the work.
        num_chunks: Virtual stages of a process.
        micro: Rows of a micro-batch.
        again: What is recomputed: nothing, the core of attention, every layer.
        stages: Of each kind of stage its process.
        step_s: Predicted; infinite where it is not known, or not asked.
    """

    flags: tuple[str, ...]
    degrees: Degrees
    num_chunks: int
    micro: int
    again: int
    stages: tuple[Layout, ...]
    step_s: float = math.inf


class Found(NamedTuple):
    """What was found.

    Attributes:
        candidate: The fastest that fits; where none does, the one that lacks least.
        peaks: Of its stages.
        num_looked_at: Of which memory was predicted.
        num_all: Layouts.
        refused: The fastest that does not fit, with its peak; None: the fastest fits.
    """

    candidate: Candidate
    peaks: tuple[Peak, ...]
    num_looked_at: int
    num_all: int
    refused: tuple[Candidate, Peak] | None


Told = Callable[[Sequence[str]], Layout]
"""Makes the process of the first stage of flags."""


class Asked(NamedTuple):
    """What is searched.

    Attributes:
        cluster: On what.
        told: Makes a process of flags.
        plain: The process of a model that nobody shares.
        global_batch: Rows of a step.
        capacity_bytes: What the allocator can have.
        pins: Values of ``tp``, ``pp``, ``cp``, ``ep`` and ``micro_batch`` that are allowed; none:
            any.
    """

    cluster: Cluster
    told: Told
    plain: Layout
    global_batch: int
    capacity_bytes: int
    pins: dict[str, tuple[int, ...]]


def search(asked: Asked) -> Found | None:
    """Return the fastest layout that fits; None: no degrees divide what they cut."""
    every: list[Candidate] = []
    smallest: dict[Degrees, Candidate] = {}
    for degrees in _degrees(asked):
        candidates = list(_candidates(asked, degrees))
        if candidates:
            least = min(candidates, key=lambda each: (each.micro, -each.again))
            smallest[degrees] = least
            if max(map(least_bytes, least.stages)) <= asked.capacity_bytes:
                every += [each._replace(step_s=_step_s(asked, each)) for each in candidates]
    if not smallest:
        return None
    refused, hopeless, looked = None, set[Degrees](), 0
    lacking = list[Candidate]()
    for candidate in sorted(every, key=lambda each: each.step_s):
        if (
            candidate.degrees in hopeless
            or any(_takes_more(candidate, each) for each in lacking)
            or max(map(least_bytes, candidate.stages)) > asked.capacity_bytes
        ):
            continue
        looked += 1
        peaks = _peaks(asked, candidate)
        if all(each.fits for each in peaks):
            return Found(candidate, peaks, looked, len(every), refused)
        refused = refused or (candidate, max(peaks, key=_reserved))
        is_first = all(each.degrees != candidate.degrees for each in lacking)
        lacking.append(candidate)
        if is_first:
            looked += 1
            if not all(each.fits for each in _peaks(asked, smallest[candidate.degrees])):
                hopeless.add(candidate.degrees)
    nearest = min(smallest.values(), key=lambda each: max(map(least_bytes, each.stages)))
    nearest = nearest._replace(step_s=_step_s(asked, nearest))
    return Found(nearest, _peaks(asked, nearest), looked, len(every), refused)


def _takes_more(one: Candidate, other: Candidate) -> bool:
    """Whether one is shared as another that does not fit, and takes no less."""
    return (
        one.degrees == other.degrees
        and one.num_chunks == other.num_chunks
        and one.micro >= other.micro
        and one.again <= other.again
    )


def _reserved(one: Peak) -> int:
    return one.predicted_peak_reserved_bytes


def _peaks(asked: Asked, one: Candidate) -> tuple[Peak, ...]:
    return tuple(
        peak(at, cublas_bytes=None, capacity_bytes=asked.capacity_bytes) for at in one.stages
    )


def _degrees(asked: Asked) -> Iterator[Degrees]:
    """Yield degrees that divide heads, layers, experts and GPUs; tensors within a node."""
    at, cluster = asked.plain, asked.cluster
    pins = asked.pins

    def allowed(name: str, most: int, *divided: int) -> list[int]:
        given = pins.get(name) or _divisors(most)
        return [n for n in given if n <= most and not any(each % n for each in divided)]

    cut = at.heads, at.groups, at.ffn, at.seq_len, cluster.num_devices
    tps = allowed("tp", cluster.devices_per_node, *cut)
    for tp in tps:
        rest = cluster.num_devices // tp
        for pp in allowed("pp", rest, rest):
            if pp > at.num_layers:
                continue
            stage = cluster.num_devices // pp  # experts are whole on a process, whatever tp is
            eps = allowed("ep", stage, at.experts.num, stage) if at.experts.num else [1]
            for cp, ep in itertools.product(_sequences(asked, tp, rest // pp), eps):
                yield Degrees(tp, pp, cp, ep)


def _split(num_layers: int, pp: int) -> tuple[int, tuple[str, ...]]:
    """Return how many layers a stage has, and the flags that say so; 0: unlike numbers of them."""
    if not num_layers % pp:
        return num_layers // pp, ()
    if not (num_layers + len(_ENDS)) % pp:
        return (num_layers + len(_ENDS)) // pp, _ENDS
    return 0, (LAYOUT, written(num_layers, pp))


def _sequences(asked: Asked, tp: int, rest: int) -> list[int]:
    """Return degrees of context parallelism: each process has two equal pieces of a sequence.

    None is tried, where none was asked for, that leaves a process less than ``_LEAST_TOKENS``, or
    of a model with windows, which rings do not send.
    """
    length = asked.plain.seq_len
    least = math.inf if any(asked.plain.windows) else _LEAST_TOKENS
    tried = [cp for cp in _divisors(rest) if cp == 1 or length // cp >= least]
    return [
        cp
        for cp in asked.pins.get("cp") or tried
        if not rest % cp and not length % (2 * cp * tp if cp > 1 else tp)
    ]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _candidates(asked: Asked, degrees: Degrees) -> Iterator[Candidate]:
    tp, pp, cp, ep = degrees
    replicas = asked.cluster.num_devices // (tp * pp * cp)
    if asked.global_batch % replicas:
        return
    rows = asked.global_batch // replicas
    micros = asked.pins.get("micro_batch") or [n for n in _divisors(rows) if n <= _MOST_ROWS]
    each, split = _split(asked.plain.num_layers, pp)
    kinds = dict.fromkeys((0, min(1, pp - 1), pp - 1))
    for again, chunk in itertools.product(range(len(_RECOMPUTED)), _chunks(each, pp)):
        flags = (
            *_say("--tensor-model-parallel-size", tp, "--sequence-parallel"),
            *_say("--pipeline-model-parallel-size", pp),
            *_say("--context-parallel-size", cp),
            *_say("--expert-model-parallel-size", ep),
            *_say("--expert-tensor-parallel-size", 1 if ep > 1 else 0),
            *_say("--num-layers-per-virtual-pipeline-stage", each // chunk if chunk > 1 else 0),
            *split,
            *_RECOMPUTED[again],
        )
        alone = asked.told((*flags, "--micro-batch-size", "1"))
        for micro in micros:
            if rows % micro or (chunk > 1 and rows // micro % pp):
                continue
            first = replace(alone, micro_batch=micro, num_micro=rows // micro)
            stages = tuple(replace(first, stage=stage) for stage in kinds)
            said = (*flags, "--micro-batch-size", str(micro))
            yield Candidate(said, degrees, chunk, micro, again, stages)


def _chunks(each: int, pp: int) -> list[int]:
    """Return numbers of virtual stages of which each has as many layers."""
    return _divisors(each) if pp > 1 and each else [1]


def _step_s(asked: Asked, one: Candidate) -> float:
    """Predict the seconds of a step: of the stages that have most to do."""
    is_even = asked.plain.num_layers % one.degrees.pp == 0
    slowest = (one.stages[0], one.stages[-1]) if is_even else one.stages
    return slowest_step_s(slowest, asked.cluster, Overlaps(replicas=True))


def _say(flag: str, number: int, *more: str) -> tuple[str, ...]:
    """Return a flag and its number; what is as it is anyway is not said."""
    is_said = number > 1 or (number == 1 and flag.startswith(("--num", "--expert-tensor")))
    return (flag, str(number), *more) if is_said else ()
