"""Drawn products, on 1 to 1,024 GPUs: is each predicted, and as its simulation says?

``python validation/products_part.py SEED NUM`` prints what the rows say together, without making
evidence. Every product is a fork with a limit of time; rows
are kept as they come, by sources and seed, so that a run that was cut short goes on. A fault of
ours misses a bar, as does a product that is predicted and was not simulated.
"""

import contextlib
import logging
import multiprocessing
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from architectures_part import compared, short, traced
from cases import Case
from evidence import Summary, spread_of
from kept_rows import KeptRows
from product_rows import ProductRow
from products_draws import draw_products, techniques
from progress import shown
from sampler import cluster_for

from brimful.cost.estimate import estimate
from brimful.errors import BrimfulError
from brimful.values.strategy import world_size

NUM_PRODUCTS, NUM_QUICK = 400, 3
LIMIT_S = 240
PRESENT_BAR, SIMULATED_BAR, MEDIAN_BAR, WORST_BAR = 0.98, 0.95, 0.001, 0.02
_FAULT = "FAULT"
_DECIDES = ("cases", "cells", "sampler", "products_draws", "products_part", "architectures_part")
"""Files here that decide a row; what sums rows up and shows them does not."""


def run(*, seed: int, quick: bool) -> tuple[list[ProductRow], Summary]:
    """Draw, trace, predict and simulate, or go on where an earlier run of these sources ended."""
    return made(seed, NUM_QUICK if quick else NUM_PRODUCTS)


def made(seed: int, num: int) -> tuple[list[ProductRow], Summary]:
    """Return the rows of so many draws, and what they say together."""
    drawn = draw_products(random.Random(seed), num)  # noqa: S311 - cases, not secrets
    kept = KeptRows("products", ProductRow, _DECIDES, seed=seed)
    rows = {row.number: row for row in kept.read()}
    missing = [number for number in range(num) if number not in rows]
    for library in ("brimful.simulate.on_demand", "brimful.simulate.run"):
        import_module(library)  # before processes fork
    for number in shown("products", missing):
        rows[number] = _apart(number, drawn.cases[number])
        kept.keep(rows[number])
    found = [rows[number] for number in range(num)]
    return found, msgspec.structs.replace(
        summarize(found), num_drawn=drawn.num_drawn, refusals=drawn.refusals
    )


def _apart(number: int, case: Case) -> ProductRow:
    """Try a product in a fork of its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(theirs, number, case))
    start_s = time.perf_counter()
    process.start()
    theirs.close()
    row = _blank(number, case)
    with contextlib.suppress(EOFError):
        while ours.poll(max(0.0, LIMIT_S - (time.perf_counter() - start_s))):
            row = ours.recv()
    process.kill()
    process.join()
    return msgspec.structs.replace(row, spent_s=time.perf_counter() - start_s)


def _blank(number: int, case: Case) -> ProductRow:
    """Return what is said of a product that never came to its end."""
    words = ", ".join([case.job.model.model_type, *techniques(case)])
    cause = f"took more than {LIMIT_S} s, or ended its process"
    return ProductRow(
        number=number, words=words, num_devices=world_size(case.strategy), cause=cause
    )


def _tell(pipe: Any, number: int, case: Case) -> None:
    """Tell the row twice: once it is known to be predicted, and once it was simulated."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    row = _blank(number, case)
    try:
        row = msgspec.structs.replace(row, cause=traced(case))
        if not row.cause:
            row = msgspec.structs.replace(row, cause="no estimate")
            estimate(case.job, cluster_for(case), case.strategy)
            row = msgspec.structs.replace(row, cause="")
            late = f"took more than {LIMIT_S} s, or ended its process"
            pipe.send(msgspec.structs.replace(row, unsimulated=late))
            row = msgspec.structs.replace(row, peaks=compared(case, ""))
    except BrimfulError as error:
        row = _failed(row, short(error))
    except Exception as error:  # noqa: BLE001 - a fault of ours is a row, and is looked for
        where = traceback.extract_tb(error.__traceback__)[-1]
        row = _failed(row, f"{_FAULT} {short(error)} ({Path(where.filename).name}:{where.lineno})")
    pipe.send(row)


def _failed(row: ProductRow, why: str) -> ProductRow:
    """Return a row whose prediction failed, or its simulation."""
    return msgspec.structs.replace(row, **{"cause" if row.cause else "unsimulated": why})


def summarize(rows: list[ProductRow]) -> Summary:
    """Sum up: how many are predicted, how far off, and what hinders the others."""
    told = [row for row in rows if not row.cause]
    peaks = [(row, row.peaks) for row in told if row.peaks is not None]
    live = [spread_of("live", [each.peak_error for _, each in peaks])] if peaks else []
    held = [p.reserved_error for _, p in peaks if p.reserved_error is not None]
    reserved = [spread_of("reserved", held)] if held else []
    missed = [
        f"{each.peak_error:+.2%}: {row.words} on {row.num_devices}"
        for row, each in peaks
        if abs(each.peak_error) > WORST_BAR
    ]
    missed += [f"median error {each.median:.3%}" for each in live if each.median > MEDIAN_BAR]
    if len(peaks) < SIMULATED_BAR * len(told):
        missed.insert(0, f"{len(peaks)} of {len(told)} that are predicted were simulated")
    if len(told) < PRESENT_BAR * len(rows):
        missed.insert(0, f"{len(told)} of {len(rows)} are predicted")
    missed += [
        f"{why}: {row.words}"
        for row in rows
        if (why := row.cause or row.unsimulated).startswith(_FAULT)
    ]
    causes = Counter(why for row in rows if (why := row.cause or row.unsimulated))
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(*live, *reserved),
        bars=(
            f"{PRESENT_BAR:.0%} are predicted, {SIMULATED_BAR:.0%} simulated, none a fault",
            f"live peak as simulated: median <= {MEDIAN_BAR:.1%}, each <= {WORST_BAR:.0%}",
        ),
        missed=tuple(missed),
        findings=(
            f"{len(told)} of {len(rows)} are predicted, {len(peaks)} were simulated beside it",
            *(f"{num} times: {cause}" for cause, num in causes.most_common()),
        ),
    )


def _line(row: ProductRow) -> str:
    errors = [] if row.peaks is None else [row.peaks.peak_error, row.peaks.reserved_error or 0.0]
    told = " ".join(f"{error:+.4%}" for error in errors) or row.cause or row.unsimulated
    return f"{row.spent_s:4.0f} s  {told}  {row.words} on {row.num_devices}"


if __name__ == "__main__":
    from brimful.process.library_output import quiet_libraries

    quiet_libraries()
    seed, num = map(int, sys.argv[1:3])
    found, told = made(seed, num)
    print(*map(_line, found), *told.findings, *told.missed, sep="\n")
    print(*(f"{s.of}: median {s.median:.4%}, worst {s.worst:.4%}" for s in told.spreads), sep="\n")
