"""Full-size layouts that were published, rehearsed without a GPU, beside our own plans.

Each layout is simulated device class by device class and costed; so is the plan that the search
returns for the same job on the same GPUs. A layout is an entry of ``LAYOUTS``, whatever its model.
"""

from functools import cache
from typing import Any, NamedTuple

from cases import Case
from evidence import Summary, relative, spread_of
from layout_cost import cost_of
from rehearsal_rows import Place, Published, RehearsalRow, Rehearsed

from brimful.hardware.cluster import Cluster
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.search.pins import Pins
from brimful.search.solve import solve
from brimful.simulate.run import simulate
from brimful.techniques.parallel.stages import blocks_of_stages, stages_of_device
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Job, Precision, plain_job
from brimful.values.strategy import Strategy, num_micro_batches, split_of, stage_rank

NUM_QUICK_LAYOUTS = 1


class Layout(NamedTuple):
    """A published layout.

    Attributes:
        name: Short.
        model: Of the registry.
        gpus: As ``--gpus`` takes them.
        precision: In which it is run here.
        seq_len: Tokens of a sequence.
        global_batch: Sequences of a step.
        ways: Fields of its strategy.
        published: What was written.
    """

    name: str
    model: str
    gpus: str
    precision: Precision
    seq_len: int
    global_batch: int
    ways: dict[str, Any]
    published: Published


_TORCHTITAN = "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 5"
_LLAMA_3 = "The Llama 3 Herd of Models, arXiv:2407.21783, table 4 and section 3.3.2"
_ZERO_2 = {"zero": 2, "accumulate": "hold"}
_TITAN = {"micro_batch": 4, "activation_checkpointing": "full", "tp": 8, "dp_shard": 8, "pp": 8}
_HERD = {"micro_batch": 1, "tp": 8, "pp": 16, **_ZERO_2}
_IN_ROUNDS = {"pp_schedule": "interleaved", "stages_per_device": 7}
_TITAN_WAYS = (
    "bf16 products here, fp8 there, which this version does not run in a pipeline; 80 GB here, 96 "
    "there"
)
_TITAN_CHOICE = (
    f"{_TITAN_WAYS}; how the 32 are cut is not said: into as many micro-batches as stages"
)
_HERD_CHOICE = (
    "how many stages a device has is not said: 7, the most that 126 blocks allow; ZeRO-2 and no "
    "checkpointing, as section 3.3.2 says; there tensors are also freed before Python lets go of "
    "them, which is not done here"
)

LAYOUTS: tuple[Layout, ...] = (
    Layout(
        "405B on 512, 1F1B", "llama-3.1-405b", "64x8xh100-80gb", "bf16-mixed", 8192, 256,
        _TITAN | _ZERO_2,
        Published(
            source=_TORCHTITAN,
            says="512 H100, FSDP 8, TP 8, PP 8, local batch 32, full checkpointing, 1F1B",
            tokens_per_s=100.0, mfu=None, peak_gib=82.5, chosen=_TITAN_CHOICE,
        ),
    ),
    Layout(
        "405B on 512, interleaved", "llama-3.1-405b", "64x8xh100-80gb", "bf16-mixed", 8192, 256,
        _TITAN | _ZERO_2 | {"pp_schedule": "interleaved", "stages_per_device": 2},
        Published(
            source=_TORCHTITAN,
            says="512 H100, FSDP 8, TP 8, PP 8, local batch 32, full checkpointing, interleaved",
            tokens_per_s=128.0, mfu=None, peak_gib=72.7,
            chosen=f"{_TITAN_CHOICE}; two stages on each device",
        ),
    ),
    Layout(
        "405B on 512, small pieces", "llama-3.1-405b", "64x8xh100-80gb", "bf16-mixed", 8192, 256,
        _TITAN | _ZERO_2 | {"micro_batch": 1},
        Published(
            source=_TORCHTITAN,
            says="512 H100, FSDP 8, TP 8, PP 8, local batch 32, full checkpointing, 1F1B",
            tokens_per_s=100.0, mfu=None, peak_gib=82.5,
            chosen=f"{_TITAN_WAYS}; how the 32 are cut is not said: one by one",
        ),
    ),
    Layout(
        "405B on 1,024", "llama-3.1-405b", "128x8xh100-80gb", "bf16-mixed", 8192, 128,
        {**_HERD, **_IN_ROUNDS, "dp_shard": 8, "activation_checkpointing": "none"},
        Published(
            source=_LLAMA_3,
            says="TP 8, CP 1, PP 16, 16 sequences in each data-parallel group; 16,384 GPUs, DP 128",
            tokens_per_s=None, mfu=None, peak_gib=None,
            chosen=f"DP 8, a sixteenth of the GPUs and of the batch; {_HERD_CHOICE}",
        ),
    ),
    Layout(
        "405B on 1,024, again", "llama-3.1-405b", "128x8xh100-80gb", "bf16-mixed", 8192, 128,
        {**_HERD, **_IN_ROUNDS, "dp_shard": 8, "activation_checkpointing": "full"},
        Published(
            source=_LLAMA_3,
            says="TP 8, CP 1, PP 16, 16 sequences in each data-parallel group; 16,384 GPUs, DP 128",
            tokens_per_s=None, mfu=None, peak_gib=None,
            chosen="DP 8, a sixteenth of the GPUs and of the batch; 7 stages on each device; full "
            "checkpointing, which the paper goes without, so that it fits",
        ),
    ),
    Layout(
        "405B on 8,192", "llama-3.1-405b", "1024x8xh100-80gb", "bf16-mixed", 8192, 2048,
        {**_HERD, **_IN_ROUNDS, "dp_shard": 64, "activation_checkpointing": "none"},
        Published(
            source=_LLAMA_3,
            says="8,192 H100, TP 8, CP 1, PP 16, DP 64, 32 sequences in each group, MFU 43 %",
            tokens_per_s=None, mfu=0.43, peak_gib=None, chosen=_HERD_CHOICE,
        ),
    ),
    Layout(
        "70B on 128", "llama-2-70b", "16x8xa100-80gb", "bf16-mixed", 4096, 64,
        {"micro_batch": 1, "tp": 8, "pp": 16, "activation_checkpointing": "none"},
        Published(
            source="the rule of thumb llama2-70b (docs/rules-of-thumb.md)",
            says="LLaMA-2 70B: 8-way tensor x 16-way pipeline",
            tokens_per_s=None, mfu=None, peak_gib=None,
            chosen="A100-80GB; 64 sequences of 4,096 tokens a step; 1F1B; no checkpointing",
        ),
    ),
)  # fmt: skip


def run(*, seed: int, quick: bool) -> tuple[list[RehearsalRow], Summary]:
    """Rehearse every layout; nothing is drawn."""
    del seed
    rows = [rehearse(layout) for layout in LAYOUTS[: NUM_QUICK_LAYOUTS if quick else None]]
    return rows, summarize(rows)


def rehearse(layout: Layout) -> RehearsalRow:
    """Simulate and cost a published layout, and our plan for its job."""
    cluster = load_cluster(layout.gpus, memory_limit_bytes=None)
    job = job_of(layout)
    theirs = check_strategy(job, Strategy(loss_chunks=1, attention="sdpa", **layout.ways))
    ours = _our_plan(
        layout.model, layout.gpus, layout.precision, layout.seq_len, layout.global_batch
    )
    return RehearsalRow(
        name=layout.name,
        gpus=layout.gpus,
        case=Case(job=job, strategy=theirs, kernels="cuda"),
        published=layout.published,
        theirs=rehearsed(job, cluster, theirs),
        ours=ours.plan,
        searched=ours.searched,
        predicted_peak_allocated_bytes=ours.predicted_bytes,
    )


class _Ours(NamedTuple):
    """Our plan, how many strategies were evaluated, and the peak that the first rung says."""

    plan: Rehearsed
    searched: int
    predicted_bytes: int


@cache
def _our_plan(
    model: str, gpus: str, precision: Precision, seq_len: int, global_batch: int
) -> _Ours:
    """Search the fastest plan that fits; of layouts of one job once."""
    cluster = load_cluster(gpus, memory_limit_bytes=None)
    job = plain_job(
        load_model(model), precision=precision, seq_len=seq_len, global_batch=global_batch
    )
    found = solve(job, cluster, Pins(), attention="sdpa", objective="time")
    assert found.plan.estimate is not None, "the search evaluates what has a formula"
    return _Ours(
        rehearsed(job, cluster, found.plan.strategy),
        found.record.num_considered,
        found.plan.estimate.predicted_peak_allocated_bytes,
    )


def job_of(layout: Layout) -> Job:
    """Return the job of a layout."""
    return plain_job(
        load_model(layout.model),
        precision=layout.precision,
        seq_len=layout.seq_len,
        global_batch=layout.global_batch,
    )


def rehearsed(job: Job, cluster: Cluster, strategy: Strategy) -> Rehearsed:
    """Simulate the first device of a row, a middle one and the last, and cost a step."""
    places = tuple(
        _place(job, cluster, strategy, device)
        for device in sorted({0, strategy.pp // 2, strategy.pp - 1})
    )
    return Rehearsed(
        case=Case(job=job, strategy=strategy, kernels="cuda"),
        num_classes=num_classes(job, strategy),
        places=places,
        cost=cost_of(job, cluster, strategy),
        fits=all(place.outcome != "out of memory" for place in places),
    )


def _place(job: Job, cluster: Cluster, strategy: Strategy, device: int) -> Place:
    found = simulate(job, cluster, strategy, rank=stage_rank(strategy, device))
    assert found.reserved is not None, "layouts are of GPUs"
    return Place(
        device=device,
        num_blocks=_blocks_of(job, strategy)[device],
        simulated_peak_allocated_bytes=found.simulated_peak_allocated_bytes,
        items=found.items,
        outcome=found.reserved.outcome,
        simulate_s=found.simulate_s,
    )


def _blocks_of(job: Job, strategy: Strategy) -> list[int]:
    """Count the blocks of each device of a row."""
    split = split_of(strategy)
    blocks = blocks_of_stages(job.model, split)
    return [
        sum(len(blocks[stage]) for stage in stages_of_device(split, device))
        for device in range(strategy.pp)
    ]


def num_classes(job: Job, strategy: Strategy) -> int:
    """Count the classes of devices.

    Devices beside each other in ``tp`` and in data parallel do the same. In a row they differ in
    blocks, in what is before and behind all blocks, and in how many micro-batches they keep: all
    of them with GPipe, one fewer from device to device with the others, down from the number of
    micro-batches.
    """
    num = num_micro_batches(job, strategy)
    chunks, gpipe = strategy.stages_per_device, strategy.pp_schedule == "gpipe"
    hops = 2 if chunks > 1 else 1
    kept = [
        num if gpipe else min(num * chunks, hops * (strategy.pp - 1 - device) + 1)
        for device in range(strategy.pp)
    ]
    ends = [(device == 0, device == strategy.pp - 1) for device in range(strategy.pp)]
    return len(set(zip(_blocks_of(job, strategy), kept, ends, strict=True)))


def summarize(rows: list[RehearsalRow]) -> Summary:
    """Say how near the simulated peak of our plans is to the predicted one, and what is faster."""
    errors = [relative(row.predicted_peak_allocated_bytes, _peak(row.ours)) for row in rows]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread_of("our peak", errors),),
        bars=("every published layout is simulated at full size", "our plan fits, simulated"),
        findings=tuple(map(_finding, rows)),
        missed=tuple(
            f"our plan does not fit, simulated: {row.name}" for row in rows if not row.ours.fits
        ),
    )


def _peak(rehearsed: Rehearsed) -> int:
    return max(place.simulated_peak_allocated_bytes for place in rehearsed.places)


def _finding(row: RehearsalRow) -> str:
    ours, theirs = row.ours.cost.step_s, row.theirs.cost.step_s
    fits = "fits" if row.theirs.fits else "does not fit"
    return f"{row.name}: published {theirs:.2f} s ({fits}), ours {ours:.2f} s"
