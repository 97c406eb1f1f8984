"""Second rung against third for every technique of one device, pairwise: runs on a CPU.

Each combination is simulated here and run in a process that never loads the tape.
"""

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from evidence import (
    RICH_SHARE,
    Case,
    ItemRow,
    Spread,
    Summary,
    TechniqueRow,
    other_bytes,
    relative,
    spread_of,
)
from progress import shown
from sampler import Cell, Drawn, cluster_of
from technique_cells import FACTORS, Sizes, case_of, cover, refusals
from technique_worker import meter, meters

from brimful.cost.estimate import estimate_or_none
from brimful.job import Job
from brimful.models.spec import MODULE
from brimful.plan import MemoryItem
from brimful.rungs import GRADIENTS, OPTIMIZER_STATE, PARAMETERS, Simulation
from brimful.simulate.run import simulate
from brimful.strategy import num_micro_batches
from brimful.units import MIB

NUM_QUICK_CASES = 3
LEAST_PEAK_BYTES, MOST_PEAK_BYTES = 64 * MIB, 600 * MIB
SHARE_BAR, BYTES_BAR = 0.005, MIB
OTHERS = "activations, casts and transients"
_STATES = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE)
_WIDTHS, _LENGTHS = (128, 192, 256), (96, 128, 160, 200)
_NUM_TOKENS, _NUM_PICTURES = 768, 160
_MAX_DOUBLINGS = 5


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
        rows = [
            measured(pool, sized(rng, cell, unwanted)) for cell in shown("techniques", cells)
        ]
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
    for sizes in _growing(_draw(rng, cell)):
        case = case_of(cell, sizes)
        made = Sized(case, simulate(case.job, cluster_of("cpu"), case.strategy))
        reason = _unwanted(made.simulation)
        if reason is None:
            break
        unwanted[reason] += 1
    return made


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


def _growing(sizes: Sizes) -> Iterator[Sizes]:
    """Yield sizes with ever more rows."""
    yield from (sizes._replace(rows=sizes.rows * 2**i) for i in range(_MAX_DOUBLINGS))


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
