"""The routing that a run has seen: rows that each device's experts got when they got most."""

from pathlib import Path

from brimful.errors import InputError
from brimful.routing import Routing
from brimful.run_files import METRICS_FILE, ExpertRow
from brimful.strategy import Strategy, world_size
from brimful.train.metrics import read_metrics


def observed(run: Path, strategy: Strategy) -> dict[int, Routing]:
    """Return every process's routing, of the passes in which its experts got most rows.

    Args:
        run: Folder of the run.
        strategy: With as many devices, and as many that part experts.

    Raises:
        InputError: The run has no such rows, or of another number of devices.
        FileFormatError: Its curve cannot be read.
    """
    rows = [row for row in read_metrics(run / METRICS_FILE) if isinstance(row, ExpertRow)]
    seen = [row.received for row in rows if row.received]
    if not seen:
        raise InputError(
            f"{run} has not seen how tokens come to experts: nothing of it is in {METRICS_FILE}; "
            f"give a run with --ep, or --routing balanced or worst"
        )
    if len(seen[-1]) != world_size(strategy):
        raise InputError(
            f"{run} ran on {len(seen[-1])} devices and the plan is for {world_size(strategy)}; "
            f"simulate the plan of that run"
        )
    every = [[row[rank] for row in seen] for rank in range(world_size(strategy))]
    return {rank: Routing(received=max(seen, key=num_rows)) for rank, seen in enumerate(every)}


def num_rows(received: tuple[tuple[int, ...], ...]) -> int:
    """Add up the rows of all blocks and passes."""
    return sum(map(sum, received))


def heaviest_rank(seen: dict[int, Routing]) -> int:
    """Return the process whose experts got most rows, the first of equals."""
    return max(seen, key=lambda rank: num_rows(seen[rank].received))
