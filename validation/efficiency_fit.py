"""How a generation's efficiency is fitted: ``python validation/efficiency_fit.py hopper``.

Shares of the rate, and of all generations the tokens at half, are fitted to runs of ``fit`` sources
alone; where several fit about as well, the median over ``validation`` sources chooses. Runs of
``test`` sources are never read: what is published about them says how far a choice carries.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from blind_asked import ask
from bridge_speeds import BridgeSpeed, read_speeds
from bridge_speeds_part import is_fitted_in_fp4, is_fitted_in_fp8, predicted

from brimful.cost import efficiency
from brimful.cost.attending import Scores, scores_by
from brimful.cost.efficiency import AttentionKernel, Efficiency, generations
from brimful.cost.estimate import estimate
from brimful.hardware.devices import gpus
from brimful.megatron import speed
from brimful.published.express import FLOAT8, Expressed, express
from brimful.published.predict import predict_tokens_per_s
from brimful.published.rows import PublishedRun, runs_of
from brimful.values.job import FP8, Job

SHARES = (-0.06, -0.03, 0.0, 0.03, 0.06)
TOKENS = (1.5, 2.0, 2.5, 3.0)
"""What is tried: added to the table's share, and as ``efficiency.TOKENS_BALANCES``."""
NUM_SHOWN = 10
OF_ENGINE = {
    "hopper": ("engine_fp8_share", is_fitted_in_fp8, range(50, 81)),
    "blackwell": ("engine_fp4_share", is_fitted_in_fp4, range(30, 61, 2)),
}
"""What of Transformer Engine is fitted to runs on a generation's GPUs, to which, and what is tried
in percent."""


ATTENDED_IN = Path(__file__).parent / "attention_kernels.jsonl"
LENGTHS = range(0, 1501, 25)
"""Tried as the length of a row at which attention is half as fast."""
LAUNCHED_IN = Path(__file__).parent / "blind" / "2026-11-29b.jsonl"
LAUNCHED = "nebius_q8b-tp8"
"""Runs of Megatron that their host binds: the same step on one node and on two."""
LAUNCHES_US = range(60, 121, 4)
"""What is tried for each block that Megatron's walk asks for."""


class Fit(NamedTuple):
    """One choice of parameters.

    Attributes:
        share: Of the 16-bit rate.
        tokens: ``TOKENS_BALANCES``.
        fit_error: Mean absolute relative error over ``fit`` runs.
        validation_error: Median absolute relative error over ``validation`` runs; None: there are
            none.
    """

    share: float
    tokens: float
    fit_error: float
    validation_error: float | None


def timed_runs(generation: str, split: Literal["fit", "validation"]) -> tuple[PublishedRun, ...]:
    """Return the runs of a split that were timed on GPUs of a generation.

    Args:
        generation: A file of ``data/efficiency``.
        split: Never ``test``.
    """
    own = {name for name, device in gpus().items()
           if device.capability in generations()[generation].capabilities}  # fmt: skip
    return tuple(run for run in runs_of(split) if run.gpu in own and run.tokens_per_s)


def errors(runs: Sequence[PublishedRun]) -> list[float]:
    """Return how far speeds are off that have a formula, absolute, relative to the published."""
    pairs = ((predict_tokens_per_s(run), run.tokens_per_s) for run in runs)
    return [abs(here / there - 1) for here, there in pairs if here and there]


def _scores_said(run: PublishedRun, job: Job) -> tuple[Scores, ...] | None:
    return scores_by(run.kernel, job) if run.kernel else None


def errors_in_fp8(generation: str) -> list[float]:
    """Return how far off the speeds of ``fit`` runs are whose products are in fp8, as ``errors``.

    They are left out there: their program keeps the inputs of products in 8 bits (Transformer
    Engine), so that no formula holds for their memory, and none predicts them.
    """
    runs = [run for run in timed_runs(generation, "fit") if FLOAT8 in run.beyond]
    wide = [express(msgspec.structs.replace(run, beyond=())) for run in runs]
    pairs = [(run, one) for run, one in zip(runs, wide, strict=True) if isinstance(one, Expressed)]
    speeds = [
        estimate(*one, products=FP8, scores=_scores_said(run, one[0])).tokens_per_s or 0.0
        for run, one in pairs
    ]
    return [
        abs(speed / run.num_devices / (run.tokens_per_s or 1.0) - 1)
        for (run, _), speed in zip(pairs, speeds, strict=True)
    ]


def tried_in_fp8(generation: str) -> Iterator[tuple[float, float]]:
    """Try shares of the fp8 rate: each with the mean error of ``fit`` runs."""
    own = generations()[generation]
    for percent in range(40, 81, 5):
        shares = {**own.matrix_shares, "fp8": percent / 100}
        with instead(generation, msgspec.structs.replace(own, matrix_shares=shares)):
            if seen := errors_in_fp8(generation):
                yield percent / 100, statistics.fmean(seen)


def errors_in_engine(is_fitted: Callable[[BridgeSpeed], bool]) -> list[float]:
    """Return how far off the speeds of runs are that a rate of Transformer Engine was fitted to."""
    found = [predicted(speed) for speed in read_speeds() if is_fitted(speed)]
    return [abs(row.speed_error) for row in found if row.speed_error is not None]


def tried_in_engine(generation: str) -> Iterator[tuple[float, float]]:
    """Try shares in Transformer Engine, of fp8 or of NVFP4: each with the mean error."""
    field, is_fitted, percents = OF_ENGINE[generation]
    own = generations()[generation]
    for percent in percents:
        table = msgspec.structs.replace(own, **{field: percent / 100})
        with instead(generation, table):
            yield percent / 100, statistics.fmean(errors_in_engine(is_fitted))


@contextmanager
def instead(generation: str, table: Efficiency) -> Iterator[None]:
    """Predict with another table of a generation."""
    before = efficiency.generations
    changed = {**before(), generation: table}
    efficiency.generations = lambda: changed  # type: ignore[assignment]  # ends with the block
    try:
        yield
    finally:
        efficiency.generations = before


def tried(generation: str) -> Iterator[Fit]:
    """Try parameters about those of the table."""
    own, before = generations()[generation], efficiency.TOKENS_BALANCES
    fitted, judged = (timed_runs(generation, split) for split in ("fit", "validation"))
    for more, tokens in product(SHARES, TOKENS):
        share = round(own.matrix_shares["bf16"] + more, 3)
        shares = {**own.matrix_shares, "bf16": share, "fp16": share}
        efficiency.TOKENS_BALANCES = tokens
        with instead(generation, msgspec.structs.replace(own, matrix_shares=shares)):
            yield _fit(share, fitted, judged)
    efficiency.TOKENS_BALANCES = before


def _fit(share: float, fitted: Sequence[PublishedRun], judged: Sequence[PublishedRun]) -> Fit:
    seen = errors(judged)
    return Fit(
        share, efficiency.TOKENS_BALANCES, statistics.fmean(errors(fitted)),
        statistics.median(seen) if seen else None,
    )  # fmt: skip


def tried_launches() -> Iterator[tuple[int, float]]:
    """Try how long a host takes for a block of Megatron's: microseconds, and the mean error."""
    rows = [json.loads(line) for line in LAUNCHED_IN.read_text().splitlines()]
    bound = [row for row in rows if row["id"].startswith(LAUNCHED)]
    before = speed.LAUNCHED_S
    for each in LAUNCHES_US:
        speed.LAUNCHED_S = each * 1e-6
        told = [(ask(row)["tokens_per_s"], row["figures"]["tokens_per_s"]) for row in bound]
        yield each, statistics.fmean(abs(here / there - 1) for here, there in told)
    speed.LAUNCHED_S = before


def attended(generation: str) -> dict[AttentionKernel, list[tuple[float, float, float]]]:
    """Return by kernel: length of a row, width of a head, share reached where a model trains.

    A benchmark of ten calls clocks higher than a step that runs for hours: what it says is scaled
    by what products reach here of their own best in such a benchmark. Attention's backward pass has
    two and a half times the operations of its forward.
    """
    rows = [json.loads(line) for line in ATTENDED_IN.read_text().splitlines()]
    best = {row["gpu"]: row["products"] for row in rows if "products" in row}
    found: dict[AttentionKernel, list[tuple[float, float, float]]] = {}
    own = generations()[generation]
    for row in (row for row in rows if "kernel" in row):
        if gpus()[row["gpu"]].capability in own.capabilities:
            both = 3.5 / (1 / row["forward"] + 2.5 / row["backward"])
            share = own.matrix_shares["bf16"] * both / best[row["gpu"]]
            found.setdefault(row["kernel"], []).append((row["length"], row["head"], share))
    return found


def tried_attention(generation: str) -> Iterator[str]:
    """Say of each kernel which share and length fit best, the width of heads as in the table."""
    for kernel, rows in attended(generation).items():
        half_head = generations()[generation].attention[kernel].half_head
        tried = []
        for length in LENGTHS:
            each = [e * (1 + length / row) * (1 + half_head / head) for row, head, e in rows]
            share = statistics.geometric_mean(each)
            tried.append((statistics.fmean(abs(share / one - 1) for one in each), share, length))
        error, share, length = min(tried)
        yield f"attention, {kernel}: {share:.3f}, {length} tokens, mean error {error:.1%}"


def main() -> None:
    """Print the closest fits, and the table's own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("generation", choices=sorted(generations()))
    generation = parser.parse_args().generation
    print("share  tokens  fit (mean)  validation (median)")
    for one in sorted(tried(generation), key=lambda one: one.fit_error)[:NUM_SHOWN]:
        print(_line(one))
    print("the table's:")
    runs = (timed_runs(generation, split) for split in ("fit", "validation"))
    print(_line(_fit(generations()[generation].matrix_shares["bf16"], *runs)))
    for share, error in tried_in_fp8(generation):
        print(f"fp8 {share:.2f}: {error:.1%}")
    if generation in OF_ENGINE:
        for share, error in tried_in_engine(generation):
            print(f"{OF_ENGINE[generation][0]} {share:.2f}: {error:.1%}")
    for line in tried_attention(generation):
        print(line)
    if generation == "hopper":
        for each, error in tried_launches():
            print(f"launches of Megatron {each} us: {error:.1%}")


def _line(one: Fit) -> str:
    seen = "none" if one.validation_error is None else f"{one.validation_error:.1%}"
    return f"{one.share:5.2f}  {one.tokens:6.1f}  {one.fit_error:10.1%}  {seen:>19}"


if __name__ == "__main__":
    main()
