"""What must hold of every command line, whatever it says: the properties, and running one."""

import contextlib
import io
import json
import math
import os
import re
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from fuzz_draws import Asked

from brimful.cli.main import main

LIMIT_S = 45.0
"""No command line of these takes longer: one that traces a model first takes 12 s of a quiet
machine (T5), and more in a process that holds much; one that would hang is cut off here."""
CODES = (0, 1, 2)
REFUSED = 2
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
_POSITIVE = ("_s", "_usd", "tokens_per_s")


class Came(NamedTuple):
    """What a command line came to: CPU seconds; no ``faults`` where every property holds."""

    code: int | None
    said: str
    seconds: float
    faults: tuple[str, ...]


class _TooSlowError(BaseException):
    """No ``Exception``, so that nothing on the way takes it for its own."""


def ask(asked: Asked) -> Came:
    """Run a command line in this process, in a folder of its own, and judge what it does."""
    before, out, err = Path.cwd(), io.StringIO(), io.StringIO()
    start_s, code, fault = time.process_time(), None, ""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for name, content in asked.files:
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        stack.enter_context(_own_cache(Path(folder, "cache")))
        os.chdir(folder)
        stack.callback(os.chdir, before)
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(_limited(LIMIT_S))
        try:
            code = main(asked.argv)
        except _TooSlowError:
            fault = f"not done after {LIMIT_S:.0f} s of a processor"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any at all is the fault looked for
            where = traceback.extract_tb(error.__traceback__)[-1]
            fault = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    seconds = time.process_time() - start_s
    faults = (fault,) if fault else tuple(judge(code, out.getvalue(), err.getvalue()))
    return Came(code, err.getvalue(), seconds, faults)


@contextlib.contextmanager
def _own_cache(folder: Path) -> Iterator[None]:
    """Keep what the machine's own cache holds out of it."""
    before = os.environ.get("BRIMFUL_CACHE")
    os.environ["BRIMFUL_CACHE"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["BRIMFUL_CACHE"]
        else:
            os.environ["BRIMFUL_CACHE"] = before


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Cut off what takes longer of a processor, or ten times as long if it waits."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _TooSlowError

    timers = (
        (signal.ITIMER_PROF, signal.SIGPROF, seconds),
        (signal.ITIMER_REAL, signal.SIGALRM, 10 * seconds),
    )
    old = [signal.signal(number, stop) for _, number, _ in timers]
    for timer, _, limit in timers:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for (timer, number, _), before in zip(timers, old, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, before)


def judge(code: int | None, out: str, err: str) -> Iterator[str]:
    """Yield which properties do not hold of what was printed."""
    if code not in CODES:
        yield f"exit code {code}"
    if "Traceback" in err + out:
        yield "a traceback"
    if found := _CONTROL.search(err):
        yield f"control character {found.group()!r} in a sentence"
    if code == REFUSED:
        if not err.startswith("brimful: ") or len(err.splitlines()) != 1:
            yield f"a refusal that is not one sentence: {err[:200]!r}"
        if out:
            yield f"a refusal that also answers: {out[:80]!r}"
    elif code in CODES:
        try:
            told = json.loads(out, parse_constant=_no_number)
        except ValueError as error:
            yield f"output is not strict JSON ({error})"
        else:
            yield from wrong_numbers(told)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def wrong_numbers(told: Any, name: str = "") -> Iterator[str]:
    """Yield what is negative, infinite, above 100 % or does not add up, wherever it stands."""
    if isinstance(told, dict):
        yield from _wrong_sums(told)
        for key, value in told.items():
            if key != "hf_config":
                yield from wrong_numbers(value, str(key))
    elif isinstance(told, list):
        for value in told:
            yield from wrong_numbers(value, name)
    elif isinstance(told, int | float) and not isinstance(told, bool):
        yield from _wrong_number(name, told)


def _wrong_number(name: str, value: float) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{name} is {value}"
    elif name.endswith("_bytes") and value < 0:
        yield f"{name} is {value}, which is negative"
    elif name in {"mfu", "hfu"} and not 0 < value <= 1:
        yield f"{name} is {value}, not above 0 and at most 1"
    elif name in {"predicted_step_s", "tokens_per_s", "step_flops"} and value <= 0:
        yield f"{name} is {value}, not above 0"
    elif name.endswith(_POSITIVE) and value < 0:
        yield f"{name} is {value}, which is negative"


def _wrong_sums(told: dict[str, Any]) -> Iterator[str]:
    if {"low", "high"} <= told.keys() and told["low"] > told["high"]:
        yield f"a band from {told['low']} to {told['high']}"
    items, peak = told.get("items"), told.get("predicted_peak_allocated_bytes")
    if items and peak is not None:
        total = sum(item["num_bytes"] for item in items)
        if total != peak:
            yield f"items add up to {total} and the peak is {peak}"
