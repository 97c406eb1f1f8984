"""Second rung against third for every technique of one device, pairwise: runs on a CPU.

Each combination is simulated here and run in a process that never loads the tape.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from cases import Case
from evidence import (
    RICH_SHARE,
    Spread,
    Summary,
    other_bytes,
    relative,
    spread_of,
)
from progress import shown
from sampler import Cell, Drawn, cluster_of
from technique_cells import FACTORS, Sizes, case_of, cover, refusals
from technique_rows import ItemRow, TechniqueRow
from technique_worker import meter, meters

from brimful.cost.estimate import estimate_or_none
from brimful.models.spec import MODULE
from brimful.simulate.run import simulate
from brimful.units import MIB
from brimful.values.job import Job
from brimful.values.plan import MemoryItem
from brimful.values.results import GRADIENTS, OPTIMIZER_STATE, PARAMETERS, Simulation
from brimful.values.strategy import num_micro_batches

NUM_QUICK_CASES = 3
LEAST_PEAK_BYTES, MOST_PEAK_BYTES = 64 * MIB, 1024 * MIB
SHARE_BAR, BYTES_BAR = 0.005, MIB
OTHERS = "activations, casts and transients"
_STATES = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE)
_WIDTHS, _LENGTHS = (128, 192, 256), (96, 128, 160, 200)
_NUM_TOKENS, _NUM_PICTURES = 1024, 200
_MARGIN, _MAX_GROWTHS = 1.15, 3


class Sized(NamedTuple):
    """A case of a size that is wanted, and its simulation."""

    case: Case
    simulation: Simulation


def run(*, seed: int, quick: bool) -> tuple[list[TechniqueRow], Summary]:
    """Choose cells, draw their sizes, simulate and measure."""
    rng = random.Random(seed)  # noqa: S311 - cases, not secrets
    covered = cover(rng)
    cells = covered.cells[:NUM_QUICK_CASES] if quick else covered.cells
    unwanted: Counter[str] = Counter()
    with meters() as pool:
        rows = [measured(pool, sized(rng, cell, unwanted)) for cell in shown("techniques", cells)]
    reasons = refusals(covered.refused + unwanted)
    num_refused = sum(reason.num_draws for reason in reasons)
    return rows, summarize(rows, Drawn((), len(rows) + num_refused, reasons))


def sized(rng: random.Random, cell: Cell, unwanted: Counter[str]) -> Sized:
    """Draw sizes for a cell, with as many rows as make the peak one that is wanted.

    Args:
        rng: Where chance comes from.
        cell: The techniques.
        unwanted: Counts what was too small.
    """
    sizes = _draw(rng, cell)
    made = _simulated(cell, sizes)
    for _ in range(_MAX_GROWTHS):
        reason = _unwanted(made.simulation)
        if reason is None:
            break
        unwanted[reason] += 1
        sizes = _grown(sizes, made.simulation)
        made = _simulated(cell, sizes)
    return made


def _simulated(cell: Cell, sizes: Sizes) -> Sized:
    case = case_of(cell, sizes)
    return Sized(case, simulate(case.job, cluster_of("cpu"), case.strategy))


def _grown(sizes: Sizes, simulation: Simulation) -> Sizes:
    """Take as many rows as the peak needs if all but the states grows with them."""
    others = other_bytes(simulation.items)
    states = simulation.simulated_peak_allocated_bytes - others
    least = max(LEAST_PEAK_BYTES - states, states * RICH_SHARE / (1 - RICH_SHARE))
    return sizes._replace(rows=math.ceil(sizes.rows * _MARGIN * max(1.0, least / others)))


def _draw(rng: random.Random, cell: Cell) -> Sizes:
    is_module, stacks = cell["architecture"] == MODULE, 1 + ("t5" in _kind(cell))
    seq_len = 1 if is_module else rng.choice(_LENGTHS)
    tokens = _NUM_TOKENS * (2 if cell["checkpointing"].startswith("full") else 1)
    rows = _NUM_PICTURES if is_module else tokens // seq_len
    return Sizes(
        width=rng.choice(_WIDTHS),
        layers=max(2, rng.randint(3, 6) // stacks),
        vocab=rng.randrange(1000, 4000),
        seq_len=seq_len,
        rows=rows + rng.randrange(rows // 2),
    )


def _kind(cell: Cell) -> str:
    return cell["architecture"].replace("switch_transformers", "t5")


def _unwanted(simulation: Simulation) -> str | None:
    peak = simulation.simulated_peak_allocated_bytes
    if peak < LEAST_PEAK_BYTES:
        return "not wanted: simulated peak of less than 64 MiB"
    if other_bytes(simulation.items) < RICH_SHARE * peak:
        return "not wanted: less than 40 % of the simulated peak is activations and transients"
    return None


def measured(pool: ProcessPoolExecutor, made: Sized) -> TechniqueRow:
    """Run a case for real and lay its rungs side by side."""
    case, simulation = made
    predicted = estimate_or_none(case.job, cluster_of("cpu"), case.strategy)
    metered = meter(pool, case)
    said = predicted.predicted_peak_allocated_bytes if predicted else None
    live, peak = simulation.simulated_peak_allocated_bytes, metered.measured_peak_allocated_bytes
    return TechniqueRow(
        case=case,
        predicted_peak_allocated_bytes=said,
        simulated_peak_allocated_bytes=live,
        measured_peak_allocated_bytes=peak,
        items=_items(simulation.items, metered.items),
        difference_bytes=live - peak,
        allowed_bytes=max(BYTES_BAR, int(SHARE_BAR * peak)),
        peak_error=relative(live, peak),
        other_error=relative(other_bytes(simulation.items), other_bytes(metered.items)),
        predicted_error=None if said is None else relative(said, peak),
    )


def _items(
    simulated: tuple[MemoryItem, ...], measured: tuple[MemoryItem, ...]
) -> tuple[ItemRow, ...]:
    named = (
        ItemRow(name=n, simulated_bytes=_total(simulated, n), measured_bytes=_total(measured, n))
        for n in _STATES
    )
    others = ItemRow(
        name=OTHERS,
        simulated_bytes=other_bytes(simulated),
        measured_bytes=other_bytes(measured),
    )
    return (*named, others)


def _total(items: tuple[MemoryItem, ...], name: str) -> int:
    return sum(item.num_bytes for item in items if item.name == name)


def techniques_of(case: Case) -> Cell:
    """Say which value of every factor a case has."""
    job, strategy = case.job, case.strategy
    return {
        "architecture": job.model.model_type,
        "precision": job.precision,
        "optimizer": job.optimizer,
        "tuning": _tuning(job),
        "adapters": _adapters(job),
        "checkpointing": re.sub(r":\d+", ":K", strategy.activation_checkpointing),
        "attention": strategy.attention,
        "packing": job.packing,
        "loss": "whole" if strategy.loss_chunks == 1 else "chunked",
        "accumulation": "1" if num_micro_batches(job, strategy) == 1 else "more",
        "weights": "random" if job.weights is None else "folder",
    }


def _tuning(job: Job) -> str:
    base = job.adapter.base if job.adapter else "same"
    return job.method if base == "same" else f"{job.method} {base}"


def _adapters(job: Job) -> str:
    adapter = job.adapter
    if adapter is None:
        return "plain"
    if adapter.upcast != "none":
        return adapter.upcast
    return (
        "inputs" if adapter.input_requires_grad else "fp32" if adapter.dtype == "fp32" else "plain"
    )


def describe(case: Case) -> str:
    """Name a case in a line."""
    model = case.job.model
    rows = f"{case.job.global_batch}/{case.strategy.micro_batch} x {case.job.seq_len}"
    sizes = f"L{model.num_layers} H{model.hidden_size} V{model.vocab_size} {rows}"
    return f"{' '.join(techniques_of(case).values())} {sizes}"


def summarize(rows: list[TechniqueRow], drawn: Drawn) -> Summary:
    """Sum up, and say which cases miss the bar."""
    return Summary(
        num_drawn=drawn.num_drawn,
        refusals=drawn.refusals,
        num_cases=len(rows),
        num_rich=sum(map(is_rich, rows)),
        spreads=tuple(_spreads(rows)),
        bars=(f"each peak within max({SHARE_BAR:.1%}, 1 MiB)",),
        missed=tuple(
            f"{row.difference_bytes:+d} bytes, {row.allowed_bytes} allowed: {describe(row.case)}"
            for row in rows
            if abs(row.difference_bytes) > row.allowed_bytes
        ),
    )


def is_rich(row: TechniqueRow) -> bool:
    """Whether more than 40 % of the measured peak is activations and transients."""
    return row.items[-1].measured_bytes > RICH_SHARE * row.measured_peak_allocated_bytes


def _spreads(rows: list[TechniqueRow]) -> Iterator[Spread]:
    yield spread_of("peak", [row.peak_error for row in rows])
    yield spread_of("other bytes", [row.other_error for row in rows])
    said = [row.predicted_error for row in rows if row.predicted_error is not None]
    if said:
        yield spread_of("predicted", said)
    for factor in FACTORS:
        for value in FACTORS[factor]:
            errors = [r.peak_error for r in rows if techniques_of(r.case)[factor] == value]
            if errors:
                yield spread_of("peak", errors, factor=factor, value=value)
