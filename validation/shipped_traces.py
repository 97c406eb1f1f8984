"""Traces the models that many ask about, and packs what was traced into the shipped data.

Writes the list of transformers' model types first (``models.generic``), which spares importing it.

``python validation/shipped_traces.py [NAME ...]`` plans every job below in this process, as a
person would: so what is traced is what their commands ask for. What was traced before of the same
sources is not traced again.
"""

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from itertools import product
from typing import NamedTuple

import msgspec

from brimful.cli.main import main as run_brimful
from brimful.files.traced import ship, shipped_folder
from brimful.files.writing import write_text
from brimful.models.generic import (
    Listed,
    encoder_types,
    installed_module_of,
    known_types,
    types_file,
)

DENSE, MIXTURE = ("full", "lora", "qlora"), ("lora", "full")
"""Ways in which they are trained; experts are seldom packed."""


class Asked(NamedTuple):
    """What is asked about a model.

    Attributes:
        methods: Ways of training.
        num_gpus: Of several, others run.
        seq_len: Tokens of a sequence, more than its windows see.
    """

    methods: tuple[str, ...] = DENSE
    num_gpus: tuple[int, ...] = (1, 8)
    seq_len: int = 2048


OFTEN = (
    "gemma-3-270m", "gemma-3-1b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b", "smollm3-3b",
    "phi-4-mini", "qwen3.5-4b", "qwen3.5-9b", "ministral-3-8b", "granite-3.3-8b", "granite-4.1-8b",
    "olmo-2-7b", "phi-3-mini", "phi-2", "glm-4-9b", "ministral-3-3b", "ministral-3-14b",
    "granite-3.3-2b", "olmo-2-1b", "olmo-2-13b", "lfm2-1.2b", "lfm2-2.6b", "gemma-2b", "gemma-7b",
    "starcoder2-3b", "starcoder2-7b", "falcon-7b", "seed-oss-36b", "hunyuan-7b",
)  # fmt: skip
"""Trained in every way."""
MODELS = {
    **dict.fromkeys(OFTEN, Asked()),
    **dict.fromkeys(("olmo-3-7b", "olmo-3-32b"), Asked(seq_len=8192)),
    **dict.fromkeys(("gpt-oss-20b", "glm-4.7-flash"), Asked(MIXTURE)),
    **dict.fromkeys(
        ("gpt-oss-120b", "glm-4.5-air", "deepseek-v3", "kimi-k2"), Asked(MIXTURE, (8,))
    ),
    "llama-4-scout": Asked(MIXTURE, (8,), 4096),
}
GPU = "h200-141gb"
PUBLISHED = "published"
"""Instead of a model's name: whatever the published runs that are carried need."""


def commands(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield what is asked: with the numbers of GPUs other programs run."""
    for name in names or (*MODELS, PUBLISHED):
        if name == PUBLISHED:
            yield ["validate", "--trace", "--json"]
            continue
        asked = MODELS[name]
        for method, count in product(asked.methods, asked.num_gpus):
            flags = f"--method {method} --gpus {count}x{GPU} --seq-len {asked.seq_len}"
            more = "--global-batch 64 --no-proof --pareto --json"  # all that recomputes, too
            yield ["plan", name, *flags.split(), *more.split()]


def list_types() -> None:
    """Write down what the installed transformers knows."""
    made = {
        "made_by": f"transformers {metadata.version('transformers')}",
        "modules": {each: installed_module_of(each) for each in sorted(known_types())},
        "encoders": sorted(encoder_types()),
    }
    msgspec.convert(made, Listed)
    write_text(types_file(), f"{json.dumps(made, indent=1)}\n")


def main() -> int:
    """List types, trace, and pack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; default: all")
    args = parser.parse_args()
    list_types()
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
