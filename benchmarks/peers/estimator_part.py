"""Our arithmetic beside every peer's, on runs whose memory was measured."""

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from calculators_site import ask_all, site
from peer_asks import CALLED, PEERS, STATED, Subject, own_subjects, published_subjects, why_not
from peer_formulas import eleuther_calculator, half_again, korthikanti_plus_states
from peer_rows import Answer, Ask, EstimatorRow

from brimful.published.predict import predict
from brimful.published.rows import published_runs

FORMULAS = dict(
    zip(STATED, (eleuther_calculator, korthikanti_plus_states, half_again), strict=True)
)
NOT_EXPRESSED = "no causal language model with a known layout"
NUM_TIMED = 50
NUM_QUICK = 8


def run(*, quick: bool) -> tuple[list[EstimatorRow], tuple[str, ...], list[str]]:
    """Ask ourselves and every peer; returns rows, versions of the peers, and notes."""
    subjects = [*published_subjects(), *own_subjects()]
    if quick:
        subjects = _few(subjects)
    asks = [subject.told for subject in subjects if subject.told]
    if quick:
        told: dict[str, Any] = {"answers": {}, "imports_s": {}, "versions": []}
    else:
        with site() as python:
            told = ask_all(python, asks)
    by_peer = {peer: {a["id"]: a for a in told["answers"].get(peer, ())} for peer in CALLED}
    rows = [_answered(subject, by_peer) for subject in subjects]
    return rows, tuple(told["versions"]), list(_timings(told, rows))


def _few(subjects: Sequence[Subject]) -> list[Subject]:
    rng = random.Random(0)  # noqa: S311 - rows, not secrets
    return rng.sample([s for s in subjects if s.told and s.told.method == "full"], NUM_QUICK)


def _answered(subject: Subject, by_peer: dict[str, dict[str, Any]]) -> EstimatorRow:
    answers = tuple(_answer(peer, subject, by_peer.get(peer, {})) for peer in PEERS)
    return msgspec.structs.replace(subject.row, answers=answers)


def _answer(peer: str, subject: Subject, told: dict[str, Any]) -> Answer:
    ask = subject.told
    if ask is None:
        return Answer(peer=peer, reason=NOT_EXPRESSED)
    reason = why_not(peer, ask)
    if reason:
        return Answer(peer=peer, reason=reason)
    if peer in FORMULAS:
        return _stated(peer, ask)
    said = told.get(ask.id)
    if said is None:
        return Answer(peer=peer, reason="not asked in the quick variant")
    figures = {name: value for name, value in said.items() if name != "id"}
    return Answer(peer=peer, **figures)


def _stated(peer: str, ask: Ask) -> Answer:
    start_s = time.perf_counter()
    num_bytes = FORMULAS[peer](ask)
    return Answer(peer=peer, peer_bytes=num_bytes, call_s=time.perf_counter() - start_s)


def _timings(told: dict[str, Any], rows: Sequence[EstimatorRow]) -> Iterator[str]:
    """Say what an answer costs, ours beside theirs; processes and imports apart."""
    ours = [
        _seconds(run) for run in published_runs()[:: max(1, len(published_runs()) // NUM_TIMED)]
    ]
    ours_ms = statistics.median(ours) * 1e3
    yield f"Brimful: import {_import_s():.1f} s, a published run median {ours_ms:.2f} ms"
    for peer, imports_s in told["imports_s"].items():
        each = [a.call_s for row in rows for a in row.answers if a.peer == peer and a.call_s]
        call_ms = statistics.median(each) * 1e3
        yield f"{peer}: import {imports_s:.1f} s, call median {call_ms:.3f} ms"


def _import_s() -> float:
    """Return the seconds in which a fresh Python imports what an estimate needs."""
    clock = "time.perf_counter()"
    code = f"import time; s = {clock}; import brimful.cost.estimate; print({clock} - s)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    return float(done.stdout)


def _seconds(run: Any) -> float:
    start_s = time.perf_counter()
    predict(run)
    return time.perf_counter() - start_s
