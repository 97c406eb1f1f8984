"""Unmodified scripts: ``brimful pretend --kernels cpu`` against the same script run for real."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
from evidence import RICH_SHARE, ExampleRow, Summary, other_bytes, relative, spread_of
from progress import shown
from script_worker import measure

from brimful.pretend.report_values import PretendReport

EXAMPLES = Path(__file__).parents[1] / "examples"
BAR = 0.01


class Example(NamedTuple):
    """A script of ``examples`` and its arguments."""

    script: str
    arguments: tuple[str, ...]


CASES = (
    Example("plain_loop.py", ()),
    Example("plain_loop.py", ("--bf16", "--batch", "12", "--layers", "5")),
    Example("lora_peft.py", ()),
    Example("lora_peft.py", ("--batch", "8", "--rank", "32")),
    Example("hf_trainer.py", ()),
    Example("hf_trainer.py", ("--batch", "8")),
)


def run(*, seed: int, quick: bool) -> tuple[list[ExampleRow], Summary]:
    """Run every example both ways; nothing is drawn."""
    del seed
    cases = CASES[:1] if quick else CASES
    rows = [compare(example) for example in shown("pretend examples", cases)]
    return rows, summarize(rows)


def compare(example: Example) -> ExampleRow:
    """Run an example on the pretend GPU and for real, each in a process of its own."""
    simulated = pretend(example)
    measured = measure(EXAMPLES / example.script, example.arguments)
    said, truth = simulated.simulated_peak_allocated_bytes, measured.measured_peak_allocated_bytes
    return ExampleRow(
        script=example.script,
        arguments=example.arguments,
        mode="cuda is the pretend GPU, CPU kernels",
        simulated_peak_allocated_bytes=said,
        measured_peak_allocated_bytes=truth,
        simulated_other_bytes=other_bytes(simulated.items),
        peak_error=relative(said, truth),
    )


def pretend(example: Example) -> PretendReport:
    """Run an example under ``brimful pretend``.

    Raises:
        subprocess.CalledProcessError: It failed; its message is on stderr.
    """
    flags = ["--kernels", "cpu", "--json"]
    script = [str(EXAMPLES / example.script), *example.arguments]
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "brimful", "pretend", *flags, "--", *script],
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=PretendReport)


def summarize(rows: list[ExampleRow]) -> Summary:
    """Sum up, and say which examples miss the bar."""
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=sum(
            row.simulated_other_bytes > RICH_SHARE * row.measured_peak_allocated_bytes
            for row in rows
        ),
        spreads=(spread_of("peak", [row.peak_error for row in rows]),),
        bars=(f"each peak within {BAR:.0%}",),
        missed=tuple(
            f"{row.peak_error:+.2%}: {' '.join((row.script, *row.arguments))}"
            for row in rows
            if abs(row.peak_error) > BAR
        ),
    )
