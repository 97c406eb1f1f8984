"""Traces the models that many ask about, and packs what was traced into the shipped data.

Writes the list of transformers' model types first (``models.generic``), which spares importing it.

``python validation/shipped_traces.py [NAME ...]`` plans every job below in this process, as a
person would, as far as the search: so what is traced is what their commands ask for. What was
traced before of the same sources is not traced again. Adapters are traced at two ranks, and parted
experts on two numbers of devices, and packed as one that tells all (``cost.any_profile``).
"""

import argparse
import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from itertools import product
from typing import Any, NamedTuple

import msgspec

from brimful.cli import on_demand as asking
from brimful.cli.main import main as run_brimful
from brimful.cost.any_profile import joined
from brimful.cost.own_programs import chosen_program, shared_program
from brimful.cost.profiles import has_profile, keep_profile, load_profile
from brimful.cost.programs import Kernels, Program
from brimful.cost.sending import Sending
from brimful.errors import UnsupportedError
from brimful.files.traced import PACKED, forget_traced, ship, shipped_folder
from brimful.files.writing import write_text
from brimful.models.config import experts_of
from brimful.models.cut_plans import cut_types
from brimful.models.generic import (
    Listed,
    encoder_decoder_types,
    encoder_types,
    installed_module_of,
    known_types,
    masked_types,
    types_file,
)
from brimful.simulate import on_demand
from brimful.values.job import Job
from brimful.values.strategy import Attention, Recompute

DENSE, MIXTURE = ("full", "lora", "qlora"), ("lora", "full")
"""Ways in which they are trained; experts are seldom packed."""


class Asked(NamedTuple):
    """What is asked about a model.

    Attributes:
        methods: Ways of training.
        num_gpus: Of several, others run.
        seq_lens: Tokens of a sequence: more than its windows see, and fewer; each where it loops
            over tokens.
        recipes: Precisions of LoRA beside the usual one.
    """

    methods: tuple[str, ...] = DENSE
    num_gpus: tuple[int, ...] = (1, 8)
    seq_lens: tuple[int, ...] = (2048,)
    recipes: tuple[str, ...] = ()


PARTING = (4, 8)
"""Devices of a node that part experts: two numbers tell all."""
LOOPED = (2048, 4096, 8192)
"""Of a program that loops over tokens each length is one of its own."""
OFTEN = (
    "gemma-3-270m", "gemma-3-1b", "gemma-3-4b", "gemma-3-12b", "gemma-3-27b", "smollm3-3b",
    "phi-4-mini", "qwen3.5-4b", "qwen3.5-9b", "ministral-3-8b", "granite-3.3-8b", "granite-4.1-8b",
    "olmo-2-7b", "phi-3-mini", "phi-2", "glm-4-9b", "ministral-3-3b", "ministral-3-14b",
    "granite-3.3-2b", "olmo-2-1b", "olmo-2-13b", "lfm2-1.2b", "lfm2-2.6b", "gemma-2b", "gemma-7b",
    "starcoder2-3b", "starcoder2-7b", "falcon-7b", "seed-oss-36b", "hunyuan-7b",
)  # fmt: skip
"""Trained in every way."""
HALF = ("bf16",)
"""Of LoRA, which many type beside it."""
WITH_TABLES = ("gemma-3n-e2b", "gemma-3n-e4b", "gemma-4-e2b", "gemma-4-e4b")
"""Each block of which has rows of its own for every token: made for small cards."""
MODELS = {
    **dict.fromkeys(OFTEN, Asked(recipes=HALF)),
    **dict.fromkeys(WITH_TABLES, Asked(("lora", "qlora"), (1,), recipes=HALF)),
    **dict.fromkeys(("olmo-3-7b", "olmo-3-32b"), Asked(seq_lens=(8192,), recipes=HALF)),
    **dict.fromkeys(("gpt-oss-20b", "glm-4.7-flash"), Asked(MIXTURE)),
    **dict.fromkeys(
        ("deepseek-v3", "kimi-k2", "glm-4.5-air", "glm-4.6", "gpt-oss-120b", "minimax-m2"),
        Asked(MIXTURE, PARTING),
    ),
    "llama-4-scout": Asked(MIXTURE, PARTING, (4096,)),
    "gemma-4-31b": Asked(seq_lens=(4096,)),
    "gemma-4-26b-a4b": Asked(MIXTURE, (1, *PARTING), (4096,)),
    **dict.fromkeys(("qwen3.5-27b", "qwen3.6-27b"), Asked(seq_lens=LOOPED)),
    **dict.fromkeys(
        ("qwen3.5-35b-a3b", "qwen3-next-80b-a3b", "nemotron-3-nano-30b-a3b"),
        Asked(MIXTURE, (1, *PARTING), LOOPED),
    ),
}
GPU = "h200-141gb"
RANKS = (24, 40)
"""Of adapters: two, which are no other width of any model here."""
PUBLISHED = "published"
"""Instead of a model's name: whatever the published runs that are carried need."""


def commands(names: Sequence[str]) -> Iterator[list[str]]:
    """Yield what is asked: with the numbers of GPUs other programs run."""
    for name in names or (*MODELS, PUBLISHED):
        if name == PUBLISHED:
            yield ["validate", "--trace", "--json"]
            continue
        asked = MODELS[name]
        for method, count, seq_len in product(asked.methods, asked.num_gpus, asked.seq_lens):
            flags = f"--method {method} --gpus {count}x{GPU} --seq-len {seq_len}"
            more = "--global-batch 64 --no-proof --pareto --json"  # all that recomputes, too
            ranks = [["--lora-rank", str(rank)] for rank in RANKS] if method != "full" else [[]]
            others = asked.recipes if method == "lora" else ()
            recipes = [[], *(["--precision", recipe] for recipe in others)]
            for recipe, rank in product(recipes, ranks):
                yield ["plan", name, *flags.split(), *more.split(), *rank, *recipe]


class Call(NamedTuple):
    """What was asked of ``on_demand.chosen_program``."""

    job: Job
    attention: Attention
    kernels: Kernels
    recompute: Recompute
    gathers: bool
    ep: int
    sending: Sending

    def program(self, name: Callable[..., Program]) -> Program:
        """Name its program."""
        return name(*self[:4], gathers=self.gathers, ep=self.ep, sending=self.sending)


class SearchedNextError(BaseException):
    """All is traced that a search needs; passes by whatever handles errors."""


TRACED: list[Call] = []


def remembering(
    job: Job, attention: Attention, kernels: Kernels, recompute: Recompute, **more: Any
) -> Program:
    """Name the program of a job that is traced now, and take note of it."""
    TRACED.append(
        Call(job, attention, kernels, recompute, more["gathers"], more["ep"], more["sending"])
    )
    return chosen_program(job, attention, kernels, recompute, **more)


def trace(command: Sequence[str]) -> str:
    """Run a command as far as its search, and say how it ended."""
    original = asking.traced_or_untold

    def stop(*args: Any) -> str:
        raise SearchedNextError(original(*args) or "traced")

    if command[0] == "plan":
        asking.traced_or_untold = stop
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return f"exit code {run_brimful(command)}"
    except SearchedNextError as found:
        return str(found)
    finally:
        asking.traced_or_untold = original


def join(calls: Sequence[Call]) -> None:
    """Keep what two traces tell of all in the place of both, where they are one program."""
    by_shared: dict[str, dict[str, tuple[int, str]]] = {}
    for call in calls:
        exact = call.program(partial(chosen_program, is_exact=True)).key
        shared = call.program(shared_program).key
        if shared == exact or not has_profile(exact):
            continue
        is_parted = call.ep > 1
        if is_parted and call.job.adapter is not None:
            continue  # what hangs on two numbers, two traces do not tell
        experts = experts_of(call.job.model).num_experts
        value = experts // call.ep if is_parted else call.job.adapter.rank
        by_shared.setdefault(shared, {})[exact] = value, "e" if is_parted else "R"
    for shared, found in by_shared.items():
        if len(found) < len(RANKS) or has_profile(shared):
            continue
        (one, (x, letter)), (other, (y, _)) = list(found.items())[: len(RANKS)]
        try:
            keep_profile(joined(shared, letter, ((x, load_profile(one)), (y, load_profile(other)))))
        except UnsupportedError as error:
            print(f"{shared}: {error}", flush=True)
            continue
        for exact in found:
            forget_traced(exact)
            (shipped_folder() / f"{exact}{PACKED}").unlink(missing_ok=True)


def list_types() -> None:
    """Write down what the installed transformers knows."""
    made = {
        "made_by": f"transformers {metadata.version('transformers')}",
        "modules": {each: installed_module_of(each) for each in sorted(known_types())},
        "encoders": sorted(encoder_types()),
        "encoder_decoders": sorted(encoder_decoder_types()),
        "masked": sorted(masked_types() & known_types()),
        "cut": sorted(cut_types()),
    }
    msgspec.convert(made, Listed)
    write_text(types_file(), f"{json.dumps(made, indent=1)}\n")


def main() -> int:
    """List types, trace, and pack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; default: all")
    args = parser.parse_args()
    list_types()
    on_demand.chosen_program = remembering
    for command in commands(args.names):
        start_s = time.monotonic()
        ended = trace(command)
        join(TRACED)
        spent_s = time.monotonic() - start_s
        print(f"{spent_s:6.1f} s, {ended}: brimful {' '.join(command)}", flush=True)
        ship(shipped_folder())
    return 0


if __name__ == "__main__":
    sys.exit(main())
