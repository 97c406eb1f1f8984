"""Layouts of Megatron-LM on a cluster: the fastest, by formula, that fits.

Every degree that cuts evenly, micro-batches, virtual stages and what is recomputed; the fastest
first, of which memory is looked at until one fits. Where not even one row at a time with
all recomputed fits, nothing else of those degrees is looked at.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

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
_USUAL_STAGES = (2, 4, 8)
"""Numbers of stages of which one divides the layers of most models; of DeepSeek-V3's 61 none."""


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
        stages: Of each kind of stage its process.
        step_s: Predicted; infinite where a rate or a link is unknown.
    """

    flags: tuple[str, ...]
    stages: tuple[Layout, ...]
    step_s: float


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


Told = Callable[[Sequence[str], int], Layout]
"""Makes the process of a stage of flags."""


class Asked(NamedTuple):
    """What is searched.

    Attributes:
        cluster: On what.
        told: Makes processes of flags.
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
    """Return the fastest layout that fits; None: no degrees divide what they cut.

    Args:
        asked: What is searched.
    """
    every: list[Candidate] = []
    least: list[tuple[int, Candidate]] = []
    looked = 0
    for degrees in _degrees(asked):
        candidates = list(_candidates(asked, degrees))
        if not candidates:
            continue
        smallest = min(candidates, key=lambda each: (each.stages[0].micro_batch, -_kept(each)))
        least.append((max(map(least_bytes, smallest.stages)), smallest))
        if least[-1][0] > asked.capacity_bytes:
            continue
        looked += 1
        if all(each.fits for each in _peaks(asked, smallest)):
            every += candidates
    if not least:
        return None
    refused = None
    for candidate in sorted(every, key=lambda each: each.step_s):
        if max(map(least_bytes, candidate.stages)) > asked.capacity_bytes:
            continue
        looked += 1
        peaks = _peaks(asked, candidate)
        if all(each.fits for each in peaks):
            return Found(candidate, peaks, looked, len(every), refused)
        refused = refused or (candidate, max(peaks, key=_reserved))
    _, candidate = min(least, key=lambda pair: pair[0])
    return Found(candidate, _peaks(asked, candidate), looked, len(every), refused)


def _reserved(one: Peak) -> int:
    return one.predicted_peak_reserved_bytes


def _kept(one: Candidate) -> int:
    return ("", "selective", "full").index(one.stages[0].recompute)


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
            if pp > at.num_layers or (at.num_layers % pp and not _may_be_uneven(asked)):
                continue
            stage = cluster.num_devices // pp  # experts are whole on a process, whatever tp is
            eps = allowed("ep", stage, at.experts.num, stage) if at.experts.num else [1]
            for cp, ep in itertools.product(_sequences(asked, tp, rest // pp), eps):
                yield Degrees(tp, pp, cp, ep)


def _may_be_uneven(asked: Asked) -> bool:
    """Whether stages may have unlike numbers of layers: where asked for, or where none divides."""
    return "pp" in asked.pins or all(asked.plain.num_layers % pp for pp in _USUAL_STAGES)


def _sequences(asked: Asked, tp: int, rest: int) -> list[int]:
    """Return degrees of context parallelism: each process has two equal pieces of a sequence.

    None is tried, where none was asked for, that leaves a process less than ``_LEAST_TOKENS``.
    """
    length = asked.plain.seq_len
    tried = [cp for cp in _divisors(rest) if cp == 1 or length // cp >= _LEAST_TOKENS]
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
    each = asked.plain.num_layers // pp
    for micro, again in itertools.product(micros, _RECOMPUTED):
        if rows % micro:
            continue
        rest = asked.plain.num_layers % pp
        chunks = _divisors(each) if pp > 1 and not rest and rows // micro % pp == 0 else [1]
        for chunk in chunks:
            flags = (
                *_say("--tensor-model-parallel-size", tp, "--sequence-parallel"),
                *_say("--pipeline-model-parallel-size", pp),
                *_say("--context-parallel-size", cp),
                *_say("--expert-model-parallel-size", ep),
                *_say("--expert-tensor-parallel-size", 1 if ep > 1 else 0),
                *_say("--num-layers-per-virtual-pipeline-stage", each // chunk if chunk > 1 else 0),
                *((LAYOUT, written(asked.plain.num_layers, pp)) if rest else ()),
                "--micro-batch-size", str(micro), *again,
            )  # fmt: skip
            kinds = dict.fromkeys((0, min(1, pp - 1), pp - 1))
            stages = tuple(asked.told(flags, stage) for stage in kinds)
            slowest = stages if rest else (stages[0], stages[-1])
            took = slowest_step_s(slowest, asked.cluster, Overlaps(replicas=True))
            yield Candidate(flags, stages, took)


def _say(flag: str, number: int, *more: str) -> tuple[str, ...]:
    """Return a flag and its number; what is as it is anyway is not said."""
    is_said = number > 1 or (number == 1 and flag.startswith(("--num", "--expert-tensor")))
    return (flag, str(number), *more) if is_said else ()
