"""Other pages beside ours on the same runs: ``python benchmarks/peers/other_pages.py``.

Of the three pages that ``docs/web.md`` compares, two can be asked here:

- Hugging Face's memory Space calls accelerate's ``estimate_training_usage`` and shows the largest
  of its stages. What that says of every run was recorded by ``benchmarks/peers/run.py``.
- Unsloth's requirements are a figure for each size of model and method, whatever the length and
  the batch. They are of Unsloth's own program, and called the absolute minimum; the runs here are
  of other programs, as none of Unsloth's is among those that we carry. So its second line, of the
  runs of one sequence only, is the one that is nearest to what the table is for.

The third, apxml's calculator, answers by its own server only and publishes no formula of training.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from brimful.published.rows import PublishedRun, published_runs

sys.path[:0] = [str(Path(__file__).parents[2] / "validation")]

from peer_asks import ACCELERATE  # noqa: E402
from peer_rows import EstimatorRow, read_result  # noqa: E402
from peer_scores import Score, figure_of, score  # noqa: E402

UNSLOTH = {
    "3b": (3.5, 8), "7b": (5, 19), "8b": (6, 22), "9b": (6.5, 24), "11b": (7.5, 29),
    "14b": (8.5, 33), "27b": (22, 64), "32b": (26, 76), "40b": (30, 96), "70b": (41, 164),
    "81b": (48, 192), "90b": (53, 212), "405b": (237, 950),
}  # fmt: skip
"""GB of QLoRA and of LoRA by a model's size.

Source: https://unsloth.ai/docs/get-started/fine-tuning-for-beginners/unsloth-requirements, as it
was stored in 2026.
"""
GB = 1e9
RESULTS = Path(__file__).parent / "results"


def unsloth_bytes(run: PublishedRun) -> float | None:
    """Return what the table says of a run; None where it has no such size or method."""
    named = f"{run.model.removesuffix('-untied')}-"
    size = next((size for size in UNSLOTH if f"-{size}-" in named), None)
    alone = run.dp_shard * run.dp_replicate * run.tp * run.pp == 1
    if size is None or not alone or run.method not in {"lora", "qlora"} or "gptq" in run.id.lower():
        return None
    return UNSLOTH[size][run.method == "lora"] * GB


def lines(rows: dict[str, EstimatorRow]) -> Iterator[tuple[str, list[EstimatorRow], str]]:
    """Yield what is compared: a name, the rows, and the peer whose answers they have."""
    every = [row for row in rows.values() if row.source == "published" and row.memory == "live"]
    asked = {row.id: figure_of(row, ACCELERATE) for row in every}
    yield "Hugging Face's Space", [row for row in every if asked[row.id]], ACCELERATE
    table = {run.id: said for run in published_runs() if (said := unsloth_bytes(run))}
    named = [row for row in every if row.id in table and row.predicted_bytes]
    single = {run.id for run in published_runs() if run.micro_batch == 1}
    yield "Unsloth's table", named, ""
    yield "Unsloth's table, one sequence", [row for row in named if row.id in single], ""


def told(found: Score | None) -> str:
    """Say how near figures are."""
    if found is None:
        return "none"
    sizes = f"median {found.median:.2%}, p90 {found.p90:.1%}, bias {found.bias:+.1%}"
    return f"{found.num_rows} rows, {sizes}"


def main() -> None:
    """Print a line for each."""
    result = read_result(RESULTS, "estimator")
    assert result is not None
    rows = {row.id: row for row in result.rows if isinstance(row, EstimatorRow)}
    table = {run.id: unsloth_bytes(run) for run in published_runs()}
    for name, some, peer in lines(rows):
        both = [row for row in some if row.predicted_bytes]
        theirs = score(
            (figure_of(row, peer) if peer else table[row.id], row.measured_bytes) for row in both
        )
        ours = score((row.predicted_bytes, row.measured_bytes) for row in both)
        print(f"{name}: {told(theirs)}; ours {told(ours)}")


if __name__ == "__main__":
    main()
