"""The answer to ``--from`` of a known program: what each kind of process takes."""

from collections.abc import Iterable, Iterator, Sequence

from brimful.allocator.config import EXPANDABLE
from brimful.cost.money import Cost
from brimful.hardware.cluster import Cluster
from brimful.programs.base import Program, RankPeak
from brimful.programs.formulas import Prediction, RankPrediction
from brimful.programs.planned import Planned
from brimful.programs.ways_out import WayOut
from brimful.show.run import DAY_H, paid_words
from brimful.show.summary import LOWER_BOUND, Fact, Meter, Summary, Verdict, at_least
from brimful.units import format_bytes, format_count, format_days, format_seconds
from brimful.values.job import Job

_TERA = 1e12
_ABBREVIATIONS = {
    "tensor-model-parallel-size": "TP",
    "pipeline-model-parallel-size": "PP",
    "context-parallel-size": "CP",
    "expert-model-parallel-size": "EP",
    "expert-tensor-parallel-size": "ETP",
    "pipeline-model-parallel-layout": "stages",
    "num-layers-per-virtual-pipeline-stage": "layers a virtual stage",
    "micro-batch-size": "micro-batch",
    "recompute-granularity full recompute-method uniform recompute-num-layers 1": "all recomputed",
    "recompute-granularity selective": "attention's core recomputed",
}
"""Of flags of a layout, where lines are lacking."""


def programs_summary(program: Program, peaks: Sequence[RankPeak], card: str) -> Summary:
    """Say what a program takes of each GPU, the fullest first in the meter."""
    fullest = max(peaks, key=lambda peak: peak.simulated_peak_reserved_bytes)
    is_bound = any(peak.unknown_ops for peak in peaks)
    meter = Meter(
        fullest.simulated_peak_reserved_bytes,
        fullest.capacity_bytes,
        f"reserved by rank {fullest.rank}, simulated",
    )
    bound = f"{LOWER_BOUND} " if is_bound else ""
    unknown = sorted({op for peak in peaks for op in peak.unknown_ops})
    return Summary(
        "FITS" if all(peak.fits for peak in peaks) else "NO",
        f"{bound}{program.name} on {program.world_size} x {card}",
        at_least(meter) if is_bound else meter,
        (
            *(Fact(f"rank {peak.rank}", rank_words(peak)) for peak in peaks),
            *((Fact("unknown", ", ".join(unknown)),) if unknown else ()),
            *(Fact("assumes", note) for note in program.notes),
        ),
    )


def predicted_summary(
    found: Prediction, card: str, cost: Cost | None = None, limits: Sequence[Fact] = ()
) -> Summary:
    """Say what a program takes of each GPU by formula, the fullest first in the meter.

    ``cost``: of the run; None: nobody says how long it is. ``limits``: whether that keeps to them.
    """
    fullest = max(found.ranks, key=lambda rank: rank.predicted_peak_reserved_bytes)
    verdict = verdict_of(found)
    return Summary(
        verdict,
        f"{found.name} on {found.world_size} x {card}",
        Meter(
            fullest.predicted_peak_reserved_bytes,
            fullest.capacity_bytes,
            f"reserved by rank {fullest.rank}, predicted",
        ),
        (
            *(
                Fact(
                    f"rank {rank.rank}",
                    f"{_of_rank(rank)} at the peak: {rank.words}",
                    f"{_of_rank(rank)}: {rank.words.partition(',')[0]}",
                )
                for rank in found.ranks
            ),
            *_expandable(found),
            *_stages(found),
            *_speed(found),
            *((*_run(cost), *limits) if verdict != "NO" else ()),
            Fact(
                "of which",
                f"{format_bytes(fullest.state_bytes)} are parameters, gradients and optimizer "
                f"states; the peak is in {fullest.place}",
            ),
            *(Fact("assumes", note) for note in found.notes),
        ),
    )


def way_facts(
    ways: Sequence[WayOut], cost: Cost | None = None, limits: Sequence[Fact] = ()
) -> tuple[Fact, ...]:
    """Say what would fit, the fastest first, and how long a run of that takes.

    ``cost``: of the run with the first; None: nobody says how long it is. ``limits``: whether that
    keeps to them.
    """
    facts = [
        Fact("or with" if place else "would fit", _of_way(way)) for place, way in enumerate(ways)
    ]
    run = (*_run(cost), *limits) if ways else ()
    first = ", with the first of these" if len(ways) > 1 else ", with that"
    return (*facts, *(Fact(fact.label, f"{fact.text}{first}") for fact in run))


def _of_way(way: WayOut) -> str:
    reserved = format_bytes(way.predicted_peak_reserved_bytes)
    tokens = way.predicted_tokens_per_s
    rate = "" if tokens is None else f", {format_count(tokens)} tokens/s"
    return f"{' '.join(way.flags)}: {reserved}{rate}"


def _run(cost: Cost | None) -> tuple[Fact, ...]:
    """Say how long a run takes, and what it costs; None: nobody says how long it is."""
    if cost is None or cost.hours is None:
        return ()
    paid = paid_words(cost.usd, cost.usd_per_gpu_hour, cost.whose)
    return (Fact("run", f"{cost.num_steps:,} steps: {format_days(cost.hours / DAY_H)}{paid}"),)


def _expandable(found: Prediction) -> tuple[Fact, ...]:
    """Say that what does not fit in segments of the usual kind does in others."""
    short = [rank for rank in found.ranks if rank.word == "no"]
    needs = [rank.predicted_peak_expandable_bytes for rank in short]
    does = all(need <= rank.capacity_bytes for need, rank in zip(needs, short, strict=True))
    if not short or not does:
        return ()
    words = f"with PYTORCH_CUDA_ALLOC_CONF={EXPANDABLE}: {format_bytes(max(needs))}, predicted"
    return (Fact("would fit", words),)


def planned_summary(
    job: Job, cluster: Cluster, found: Planned, run: tuple[Fact, ...] = ()
) -> Summary:
    """Say which layout of Megatron-LM is the fastest that fits."""
    tensors = "--tensor-model-parallel-size"
    plain = () if tensors in found.layout else (tensors, "1")
    whole, replicas = layout_words((*plain, *found.layout)), f"{found.num_replicas} replicas"
    looked = f"of {found.num_layouts:,} layouts the fastest that fits"
    if found.refused:
        need = format_bytes(found.refused_bytes)
        looked += f"; {layout_words(found.refused)} would be faster, and needs {need}"
    return Summary(
        "FITS" if found.fits else "NO",
        f"{job.model.name} by Megatron-LM on {cluster.num_devices} x {cluster.device.description}",
        Meter(found.predicted_peak_reserved_bytes, found.capacity_bytes, "reserved, predicted"),
        (
            Fact("layout", f"{whole}, {replicas}", f"{_abbreviated(whole)}, {replicas}"),
            Fact(
                "speed",
                f"{format_count(found.predicted_tokens_per_s)} tokens/s, "
                f"{format_count(found.predicted_tokens_per_s / cluster.num_devices)} a GPU, "
                f"{format_seconds(found.predicted_step_s)} a step; "
                f"{found.predicted_flops_per_s / _TERA:,.0f} TFLOP/s a GPU, MFU "
                f"{found.predicted_mfu:.0%}",
            ),
            *run,
            Fact("why", looked if found.fits else "no layout fits: this one lacks least"),
            Fact("at peak", found.place),
        ),
    )


def freed_fact(found: Planned, pins: Iterable[str]) -> Fact:
    """Say which layout fits where the degrees that were asked for are left out."""
    flags = " ".join(f"--{name.replace('_', '-')}" for name in pins)
    layout = _abbreviated(layout_words(found.layout))
    return Fact(
        "instead",
        f"without {flags}: {layout} would fit, "
        f"{format_bytes(found.predicted_peak_reserved_bytes)}, "
        f"{format_count(found.predicted_tokens_per_s)} tokens/s",
    )


def layout_words(flags: Sequence[str]) -> str:
    """Say a layout as its flags do, without those dashes."""
    return " ".join(flags).replace("--", "")


def _abbreviated(words: str) -> str:
    """Say a layout as people do: TP 4, PP 8."""
    for flag, short in _ABBREVIATIONS.items():
        words = words.replace(flag, short)
    return words


def verdict_of(found: Prediction) -> Verdict:
    """Say whether every process fits."""
    words = {rank.word for rank in found.ranks}
    return "NO" if "no" in words else "TIGHT" if "tight" in words else "FITS"


def _speed(found: Prediction) -> Iterator[Fact]:
    """Yield how fast it is, by the rates that kernels reach."""
    if found.predicted_step_s is None or found.predicted_tokens_per_s is None:
        yield Fact("speed", "unknown")
        return
    tokens = format_count(found.predicted_tokens_per_s)
    each = format_count(found.predicted_tokens_per_s / found.world_size)
    flops = found.predicted_flops_per_s
    rate = "" if flops is None else f"{flops / _TERA:,.0f} TFLOP/s and "
    a_gpu = f"; {rate}{each} tokens/s a GPU" if found.world_size > 1 or rate else ""
    step = format_seconds(found.predicted_step_s)
    yield Fact("speed", f"{tokens} tokens/s, {step} a step{a_gpu}")


def _of_rank(rank: RankPrediction) -> str:
    allocated = format_bytes(rank.predicted_peak_allocated_bytes)
    return f"{allocated} allocated, {format_bytes(rank.predicted_peak_reserved_bytes)} reserved"


def _stages(found: Prediction) -> Iterator[Fact]:
    """Yield what each GPU of a pipeline reserves, where not every stage is told by itself."""
    every = found.predicted_stage_reserved_bytes
    if len(every) > len(found.ranks):
        each = ", ".join(f"{n + 1}: {format_bytes(each)}" for n, each in enumerate(every))
        yield Fact("each GPU", f"of the pipeline's {len(every)}, reserved: {each}")


def rank_words(peak: RankPeak) -> str:
    """Say what one process takes, to the mebibyte as counters of a run are compared."""
    allocated, reserved = peak.simulated_peak_allocated_bytes, peak.simulated_peak_reserved_bytes
    return (
        f"{format_bytes(allocated)} allocated, {format_bytes(reserved)} reserved at the peak: "
        f"{peak.words}"
    )
