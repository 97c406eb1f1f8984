"""``torch.compile``: Inductor's C++ code run for real, against its wrapper on the pretend GPU.

Each case runs three times, each time in a process of its own: on the pretend GPU with the kernels
of a CPU, there again with nothing compiled, and for real under the profiler. It needs a C++
compiler.
"""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
from compiled_rows import CompiledRow
from evidence import Summary, relative, spread_of
from progress import shown
from script_worker import measure

from brimful.pretend.report_values import PretendReport

SCRIPT = Path(__file__).parent / "compiled" / "train.py"
BAR = 0.02
_EAGERLY = {"TORCH_COMPILE_DISABLE": "1"}

CASES = (
    ("--model", "perceptron"),
    ("--model", "perceptron", "--checkpoint", "--compile-optimizer"),
    ("--model", "gpt2", "--layers", "2"),
    ("--model", "gpt2", "--layers", "2", "--compile", "module", "--autocast"),
    ("--model", "gpt2", "--compile", "blocks", "--checkpoint", "--autocast"),
    ("--model", "llama", "--layers", "2"),
    ("--model", "llama", "--compile", "blocks"),
    ("--model", "llama", "--compile", "blocks", "--checkpoint"),
    ("--model", "llama", "--layers", "2", "--autocast", "--compile-loss"),
    ("--model", "llama", "--compile", "blocks", "--compile-loss", "--compile-optimizer"),
    ("--model", "llama", "--layers", "2", "--lora", "--checkpoint"),
    ("--model", "qwen3", "--compile", "blocks", "--dtype", "bfloat16"),
    ("--model", "qwen3", "--layers", "2", "--compile", "module", "--lora"),
    ("--model", "qwen3", "--layers", "2", "--autocast"),
)
"""What the script is told."""


def run(*, seed: int, quick: bool) -> tuple[list[CompiledRow], Summary]:
    """Run every case three times; nothing is drawn."""
    del seed
    cases = CASES[:1] if quick else CASES
    rows = [compare(arguments) for arguments in shown("compiled programs", cases)]
    return rows, summarize(rows)


def compare(arguments: tuple[str, ...]) -> CompiledRow:
    """Run a case on the pretend GPU, there without its compiler, and for real."""
    said = simulate(arguments)
    eagerly = simulate(arguments, _EAGERLY)
    truth = measure(SCRIPT, arguments).measured_peak_allocated_bytes
    return CompiledRow(
        name=" ".join(arguments),
        script=SCRIPT.name,
        arguments=arguments,
        mode="cuda is the pretend GPU, CPU kernels",
        simulated_peak_allocated_bytes=said,
        measured_peak_allocated_bytes=truth,
        simulated_eager_bytes=eagerly,
        peak_error=relative(said, truth),
    )


def simulate(arguments: tuple[str, ...], environment: dict[str, str] | None = None) -> int:
    """Run the script under ``brimful pretend``; return its peak in bytes.

    Raises:
        subprocess.CalledProcessError: It failed; its message is on stderr.
    """
    flags = ["--kernels", "cpu", "--json", "--", str(SCRIPT)]
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "brimful", "pretend", *flags, *arguments],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, **(environment or {})},
    )
    report = msgspec.json.decode(done.stdout, type=PretendReport)
    return report.simulated_peak_allocated_bytes


def summarize(rows: list[CompiledRow]) -> Summary:
    """Sum up, and say which cases miss a bar."""
    off = [f"{row.peak_error:+.2%}: {row.name}" for row in rows if abs(row.peak_error) > BAR]
    eager = [
        f"as without a compiler: {row.name}"
        for row in rows
        if row.simulated_peak_allocated_bytes == row.simulated_eager_bytes
    ]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread_of("peak", [row.peak_error for row in rows]),),
        bars=(f"each peak within {BAR:.0%}", "each is another than without a compiler"),
        missed=(*off, *eager),
    )
