"""Traces the models that many ask about, and packs what was traced into the shipped data.

``python validation/shipped_traces.py [NAME ...]`` plans every job below in this process, as a
person would: so what is traced is what their commands ask for. What was traced before of the same
sources is not traced again.
"""

import argparse
import contextlib
import io
import sys
import time
from collections.abc import Iterator, Sequence

from brimful.cli.main import main as run_brimful
from brimful.traced_files import ship, shipped_folder

USUAL = "full", "lora", "qlora"
"""Ways in which dense models are trained."""
MODELS: dict[str, tuple[Sequence[str], Sequence[int], str]] = {
    "gemma-3-270m": (USUAL, (1, 8), "2048"),
    "gemma-3-1b": (USUAL, (1, 8), "2048"),
    "gemma-3-4b": (USUAL, (1, 8), "2048"),
    "gemma-3-12b": (USUAL, (1, 8), "2048"),
    "gemma-3-27b": (USUAL, (1, 8), "2048"),
    "gpt-oss-20b": (("lora", "full"), (1, 8), "2048"),
    "gpt-oss-120b": (("lora", "full"), (8,), "2048"),
    "olmo-3-7b": (USUAL, (1, 8), "8192"),
    "olmo-3-32b": (("full", "lora", "qlora"), (1, 8), "8192"),
    "smollm3-3b": (USUAL, (1, 8), "2048"),
    "glm-4.7-flash": (("lora", "full"), (1, 8), "2048"),
    "glm-4.5-air": (("lora", "full"), (8,), "2048"),
    "llama-4-scout": (("lora", "full"), (8,), "4096"),
    "deepseek-v3": (("lora", "full"), (8,), "2048"),
    "kimi-k2": (("lora", "full"), (8,), "2048"),
}
"""By model: methods, numbers of GPUs, and tokens of a sequence, more than its windows."""
GPU = "h200-141gb"


def commands(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield what is asked: with the numbers of GPUs other programs run."""
    for name in names or MODELS:
        methods, counts, tokens = MODELS[name]
        for method in methods:
            for count in counts:
                flags = f"--method {method} --gpus {count}x{GPU} --seq-len {tokens}"
                yield ["plan", name, *flags.split(), "--global-batch", "64", "--no-proof", "--json"]


def main() -> int:
    """Trace, and pack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; default: all")
    args = parser.parse_args()
    for command in commands(args.names):
        start_s = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):
            code = run_brimful(command)
        spent_s = time.monotonic() - start_s
        print(f"{spent_s:6.1f} s, exit code {code}: brimful {' '.join(command)}", flush=True)
        ship(shipped_folder())
    return 0


if __name__ == "__main__":
    sys.exit(main())
