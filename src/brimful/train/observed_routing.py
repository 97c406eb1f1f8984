"""The routing that a run has seen: rows that each device's experts got when they got most."""

from pathlib import Path

from brimful.errors import InputError
from brimful.techniques.parallel.routing import Routing
from brimful.train.metrics import read_metrics
from brimful.values.job import Job
from brimful.values.plan import read_plan
from brimful.values.run_files import METRICS_FILE, PLAN_FILE, ExpertRow
from brimful.values.strategy import Strategy, world_size


def observed(run: Path, job: Job, strategy: Strategy) -> dict[int, Routing]:
    """Return every process's routing, of the passes in which its experts got most rows.

    ``strategy``: that of the run: rows are counted pass by pass. Raises FileFormatError: its curve
    cannot be read.
    """
    _check_same(run, job, strategy)
    rows = [row for row in read_metrics(run / METRICS_FILE) if isinstance(row, ExpertRow)]
    seen = [row.received for row in rows if len(row.received) == world_size(strategy)]
    if not seen:
        raise InputError(
            f"{run} has not seen how tokens come to experts: nothing of it is in {METRICS_FILE}; "
            f"give a run with --ep, or --routing balanced or worst"
        )
    every = [[row[rank] for row in seen] for rank in range(world_size(strategy))]
    return {rank: Routing(received=max(seen, key=num_rows)) for rank, seen in enumerate(every)}


def _check_same(run: Path, job: Job, strategy: Strategy) -> None:
    path = run / PLAN_FILE
    if not path.is_file():
        raise InputError(f"{run} holds no {PLAN_FILE}; give the --out folder of brimful train")
    plan = read_plan(path)
    told, asked = (plan.job, plan.strategy), (job, strategy)
    alike = [
        (one.model.hf_config, one.seq_len, one.global_batch, how) for one, how in (told, asked)
    ]
    if alike[0] != alike[1]:
        raise InputError(
            f"{run} was a run of another plan, whose passes its rows are of; simulate its own: "
            f"brimful simulate {path} --routing {run}"
        )


def num_rows(received: tuple[tuple[int, ...], ...]) -> int:
    """Add up the rows of all blocks and passes."""
    return sum(map(sum, received))


def heaviest_ranks(seen: dict[int, Routing], strategy: Strategy) -> list[int]:
    """List the processes that may be the fullest.

    At every place of a row: that whose experts got most rows in all blocks, and in one.
    """
    found: list[int] = []
    size = world_size(strategy) // strategy.pp
    for place in range(strategy.pp):
        ranks = range(place * size, (place + 1) * size)
        found.append(max(ranks, key=lambda rank: num_rows(seen[rank].received)))
        found.append(max(ranks, key=lambda rank: _most_in_one(seen[rank].received)))
    return list(dict.fromkeys(found))


def _most_in_one(received: tuple[tuple[int, ...], ...]) -> int:
    return max((rows for passes in received for rows in passes), default=0)
