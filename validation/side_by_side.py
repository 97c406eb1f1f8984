"""Cases answered in processes beside one another: a simulation keeps one core busy."""

import logging
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from progress import shown

NUM_PROCESSES = 2
Case = TypeVar("Case")
Row = TypeVar("Row")


def answered(what: str, answer: Callable[[Case], Row], cases: Sequence[Case]) -> list[Row]:
    """Answer every case, in order, and say how far it is.

    Args:
        what: For the lines of progress.
        answer: A function of a module, which is imported anew in every process.
        cases: What it takes.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(NUM_PROCESSES, mp_context=context, initializer=_hush) as pool:
        seen = shown(what, cases)
        return [row for row, _ in zip(pool.map(answer, cases), seen, strict=True)]


def _hush() -> None:
    logging.disable(logging.CRITICAL)
