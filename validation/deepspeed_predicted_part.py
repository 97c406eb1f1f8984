"""DeepSpeed's engine by formula against DeepSpeed's own code on the pretend GPU.

Models, stages, recipes, offload and batches, on pretended H100s; of each the process that holds
most. Nothing is drawn.
"""

import json
import os
import subprocess
import sys

from deepspeed_rows import DeepSpeedPrediction
from deepspeed_site import deepspeed_site, version_at
from evidence import Summary, relative, spread_of
from progress import shown

from brimful.cli.main import parser_of
from brimful.cli.resolved import asked
from brimful.cost.estimate import estimate

MEDIAN_BAR, WORST_BAR = 0.001, 0.03
_QUICK = 2
_RECIPES = {"fp32": (1, 2, 3), "fp16-master": (2, 3), "bf16-mixed": (1, 2)}
_SHORT, _LONG = "--seq-len 128 --micro-batch 1", "--seq-len 2048 --micro-batch 2"
_MIDDLE = "--seq-len 1024 --micro-batch 2 --global-batch 16"
_ONE, _SMALL, _TINY = (
    "llama-3.2-1b --gpus",
    "qwen2.5-0.5b --gpus 4xh100-80gb",
    "tinyllama-1.1b --gpus",
)
_AWAY = f"{_TINY} 4xh100-80gb {_LONG} --global-batch 16"
CASES = (
    f"{_SMALL} {_SHORT} --global-batch 4 --zero 1",
    f"{_SMALL} {_SHORT} --global-batch 8 --zero 2",
    f"{_SMALL} {_SHORT} --global-batch 4 --zero 3",
    f"{_SMALL} {_LONG} --global-batch 8 --zero 2 --ac full",
    f"{_SMALL} {_LONG} --global-batch 32 --zero 3 --ac full",
    f"{_TINY} 8xh100-80gb {_LONG} --global-batch 16 --zero 1",
    f"{_TINY} 8xh100-80gb {_LONG} --global-batch 32 --zero 1",
    f"{_TINY} 8xh100-80gb {_LONG} --global-batch 16 --zero 2",
    f"{_TINY} 8xh100-80gb {_LONG} --global-batch 32 --zero 2 --ac full",
    f"{_TINY} 8xh100-80gb {_LONG} --global-batch 32 --zero 3",
    f"{_TINY} 8xh100-80gb {_SHORT} --global-batch 16 --zero 3 --ac full",
    f"{_ONE} 2xh100-80gb {_LONG} --global-batch 8 --zero 2",
    f"{_ONE} 16xh100-80gb {_LONG} --global-batch 64 --zero 3",
    f"{_ONE} 8xh100-80gb {_SHORT} --global-batch 16 --zero 2 --optimizer sgd",
    f"smollm2-1.7b --gpus 8xh100-80gb {_LONG} --global-batch 32 --zero 2",
    f"smollm2-1.7b --gpus 8xh100-80gb {_LONG} --global-batch 16 --zero 3 --ac full",
    f"gpt2-medium --gpus 4xh100-80gb {_MIDDLE} --zero 2",
    f"gpt2-medium --gpus 4xh100-80gb {_MIDDLE} --zero 3",
    f"llama-3.2-3b --gpus 8xh100-80gb {_LONG} --global-batch 16 --zero 3",
    f"{_AWAY} --zero 2 --offload optimizer",
    f"{_AWAY} --zero 1 --offload optimizer",
    f"{_AWAY} --zero 3 --offload optimizer",
    f"{_AWAY} --zero 3 --offload parameters",
    *(
        f"{_TINY} 4xh100-80gb {_MIDDLE} --zero {zero} --precision {precision}"
        for precision, stages in _RECIPES.items()
        for zero in stages
    ),
)
"""Flags, of ``bf16-master`` where they name no recipe."""


def run(*, seed: int, quick: bool) -> tuple[list[DeepSpeedPrediction], Summary]:
    """Predict and simulate every case."""
    del seed
    cases = CASES[:_QUICK] if quick else CASES
    with deepspeed_site() as site:
        rows = [_row(flags, site) for flags in shown("predictions of DeepSpeed", cases)]
    return rows, summarize(rows)


def predicted(flags: str) -> int:
    """Return the predicted peak of what flags say, in bytes."""
    words = [*_words(flags), "--engine", "deepspeed"]
    found = asked(parser_of("estimate").parse_args(words))
    return estimate(*found).predicted_peak_allocated_bytes


def _words(flags: str) -> list[str]:
    recipe = [] if "--precision" in flags else ["--precision", "bf16-master"]
    return [*flags.split(), *recipe]


def _row(flags: str, site: str) -> DeepSpeedPrediction:
    paths = filter(None, [site, os.environ.get("PYTHONPATH", "")])
    command = ["simulate", *_words(flags), "--for", "deepspeed", "--json"]
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "brimful", *command],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=False,  # 1: it does not fit
    )
    (rank,) = json.loads(done.stdout)["ranks"]
    said, simulated = predicted(flags), rank["simulated_peak_allocated_bytes"]
    return DeepSpeedPrediction(
        flags=flags,
        deepspeed_version=version_at(site),
        rank=rank["rank"],
        predicted_peak_allocated_bytes=said,
        simulated_peak_allocated_bytes=simulated,
        peak_error=relative(said, simulated),
    )


def summarize(rows: list[DeepSpeedPrediction]) -> Summary:
    """Sum up, and say which cases miss the bar."""
    spread = spread_of("peak", [row.peak_error for row in rows])
    far = [f"median {spread.median:.2%}"] if spread.median > MEDIAN_BAR else []
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread,),
        bars=(f"median of all within {MEDIAN_BAR:.1%}, each within {WORST_BAR:.0%}",),
        missed=(
            *far,
            *(f"{r.peak_error:+.2%}: {r.flags}" for r in rows if abs(r.peak_error) > WORST_BAR),
        ),
        findings=(f"by DeepSpeed {', '.join(sorted({row.deepspeed_version for row in rows}))}",),
    )
