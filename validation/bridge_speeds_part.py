"""Megatron's published speeds against its formulas: every row of NVIDIA's performance tables.

A row says the model, the degrees and the batches; what it does not say (what is recomputed, CUDA
graphs, how much of the exchanges is hidden) is taken as Megatron's defaults. Rows that a rate was
fitted to are told apart, and no bar is of them.
"""

import re
import statistics
from collections import Counter

from bridge_speeds import SOURCE, BridgeSpeed, read_speeds
from evidence import Summary, spread_of
from program_rows import SpeedRow
from progress import shown

from brimful.errors import InputError, UnsupportedError
from brimful.megatron.arguments import model_arguments
from brimful.models.config import load_model
from brimful.programs.formulas import Machines, predict_speed

MEDIAN_BAR, TOLD_SHARE = 0.15, 0.7
_QUICK = 20
_MODELS = {
    "GPT3-175B": "gpt3-175b", "LLAMA2-7B": "llama-2-7b", "LLAMA2-13B": "llama-2-13b",
    "LLAMA2-70B": "llama-2-70b", "LLAMA3-8B": "llama-3-8b", "LLAMA3-70B": "llama-3-70b",
    "LLAMA3_8B": "llama-3-8b", "LLAMA3_70B": "llama-3-70b", "LLAMA3.1_405B": "llama-3.1-405b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b", "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "DeepSeekV3": "deepseek-v3", "GPT OSS 120B": "gpt-oss-120b", "Kimi_K2": "kimi-k2",
    "Nemotron_3_Nano": "nemotron-3-nano-30b-a3b", "Nemotron_3_Super": "nemotron-3-super",
}  # fmt: skip
_GPUS = {
    "DGX-H100": ("h100-80gb", 8), "DGX-B200": ("b200", 8), "DGX-B300": ("b300", 8),
    "DGX-GB200": ("gb200", 4), "DGX-GB300": ("gb300", 4),
}  # fmt: skip
_RECIPES = {
    "FP8": "tensorwise", "FP8-CS": "tensorwise", "MXFP8": "mxfp8", "FP8-MX": "mxfp8", "BF16": "",
    "NVFP4": "nvfp4",
}  # fmt: skip
_GATHERED = {
    "tensorwise": ("--fp8-param-gather",),
    "mxfp8": ("--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag"),
}  # fmt: skip
"""Recipes whose weights are parameters (``training/mixed_precision.py`` of the same)."""
_OF_BLOCKS, _OLD_CONTAINERS = "FP8-MX", ("24.",)
"""What is blocks of 128 on Hopper; those that scaled by what earlier steps saw."""
_LAYOUTS = {
    8: "Et*8|(t*8|)*6t*5mL", 16: "Et*4|(t*4|)*14tmL", 32: "Et|(tt|)*30mL",
}  # fmt: skip
"""How recipes lay 61 layers, and one that predicts a token more (m), over so many chunks:
NVIDIA-NeMo/Megatron-Bridge 067f987df0, ``src/megatron/bridge/recipes/deepseek/h100/deepseek_v3.py``
and ``perf_recipes/deepseek/{h100,gb300}/deepseek_v3.py``; Kimi's, which predicts none, are the same
without it (``recipes/kimi/h100/kimi_k2.py``). What is said of recipes here is of that commit, also
of rows that are older."""
_LAID_OUT, _PREDICTS_MORE = 61, {"DeepSeekV3"}
_OF_RECIPES = ("--cross-entropy-fusion-impl", "te", "--grad-reduce-in-bf16")
"""What all of them have (``perf_recipes/_common.py``)."""
_BUFFERED = {"LLAMA3_70B", "LLAMA3.1_405B"}
_BUFFERED_BEFORE = {("Pretraining", model) for model in ("GPT3-20B", "LLAMA2-70B", "LLAMA3-70B")}
"""Whose recipes hide the exchanges of tensor parallelism: in Megatron Bridge what is not NVFP4
(``tp_comm_overlap`` in ``recipes/llama/h100/llama3.py`` and ``perf_recipes/llama`` of the same;
mixtures have it off where they have such exchanges, ``perf_recipes/qwen/h100/qwen3_moe.py``),
before what says ``ub_tp_comm_overlap`` in NVIDIA/NeMo-Framework-Launcher 26e42fa9,
``launcher_scripts/conf/{training/{gpt3,llama},peft/llama}``."""
_FITTED = "24.07"
"""NeMo's container whose rows were fitted to, in fp8; those in NVFP4 are below."""
_FP4, _FITTED_IN_FP4 = "NVFP4", "26.02"
_FAR = 0.3
_DETAILS = re.compile(r" \([^()]*\)| of Megatron-LM.*|[,;:] .*")
_NUMBERS = re.compile(r"\b\d+\b")


def run(*, seed: int, quick: bool) -> tuple[list[SpeedRow], Summary]:
    """Predict every row."""
    del seed
    speeds = read_speeds()[:: _QUICK if quick else 1]
    rows = [predicted(each) for each in shown("published speeds of Megatron", speeds)]
    return rows, summarize(rows)


def predicted(speed: BridgeSpeed) -> SpeedRow:
    """Predict a row, by nothing but what the table says."""
    found = None
    refused = command = ""
    machines = Machines(*_GPUS[speed.system])
    try:
        command = command_of(speed)
        of_all = predict_speed(command, speed.num_gpus, machines)
    except (UnsupportedError, InputError) as error:  # a row of GPUs that its degrees exceed
        refused = str(error)
    else:
        found = None if of_all is None else of_all / speed.num_gpus
        refused = "the speed is unknown" if of_all is None else ""
    published = float(speed.tokens_per_s_per_gpu)
    return SpeedRow(
        name=f"{speed.container} {speed.task}",
        model=speed.model,
        precision=speed.precision,
        is_fitted=is_fitted(speed),
        command=command,
        gpu=machines.gpu,
        world_size=speed.num_gpus,
        refused=refused,
        predicted_tokens_per_s=found,
        published_tokens_per_s=published,
        speed_error=None if found is None else found / published - 1,
    )


def is_fitted(speed: BridgeSpeed) -> bool:
    """Whether a rate of Transformer Engine was fitted to a row (``efficiency_fit.py``)."""
    return is_fitted_in_fp8(speed) or is_fitted_in_fp4(speed)


def is_fitted_in_fp8(speed: BridgeSpeed) -> bool:
    """Whether the rate of its fp8 was."""
    return speed.container == _FITTED


def is_fitted_in_fp4(speed: BridgeSpeed) -> bool:
    """Whether the rate of its NVFP4 was: to the first container that has rows of it."""
    return speed.precision == _FP4 and speed.container == _FITTED_IN_FP4


def command_of(speed: BridgeSpeed) -> str:
    """Return the command line of a row.

    Raises:
        UnsupportedError: Its model or what it does is not said to Megatron-LM.
    """
    if speed.task == "LoRA":
        raise UnsupportedError("LoRA of Megatron Bridge")
    if speed.fsdp > 1:
        raise UnsupportedError("its own FSDP")
    if speed.precision not in _RECIPES:
        raise UnsupportedError(f"{speed.precision} has no formula")
    if speed.model not in _MODELS:
        raise UnsupportedError(f"{speed.model} is no model that is known here")
    model = load_model(_MODELS[speed.model])
    words = [
        "pretrain_gpt.py", *model_arguments(model).words, "--bf16",
        "--vocab-size", model.vocab_size, "--seq-length", speed.seq_len,
        "--max-position-embeddings", speed.seq_len,
        "--micro-batch-size", speed.micro_batch, "--global-batch-size", speed.global_batch,
        "--tensor-model-parallel-size", speed.tp, "--pipeline-model-parallel-size", speed.pp,
        "--context-parallel-size", speed.cp, "--use-distributed-optimizer",
        "--overlap-grad-reduce", "--overlap-param-gather", "--cross-entropy-loss-fusion",
        "--no-create-attention-mask-in-dataloader", *_recipe(speed),
    ]  # fmt: skip
    if speed.tp > 1:
        words.append("--sequence-parallel")
    if speed.tp > 1 and (speed.model in _BUFFERED or (speed.task, speed.model) in _BUFFERED_BEFORE):
        words.append("--tp-comm-overlap")
    if not speed.container.startswith(_OLD_CONTAINERS):
        words += _OF_RECIPES
    words += _stages(speed, model.num_layers)
    if speed.model in _PREDICTS_MORE:
        words += ["--mtp-num-layers", 1]
    if speed.ep > 1:
        words += ["--expert-model-parallel-size", speed.ep, "--expert-tensor-parallel-size", 1]
    return " ".join(map(str, words))


def _stages(speed: BridgeSpeed, num_layers: int) -> list[object]:
    """Return which layers are where: evenly, with the ends as layers, or as recipes write it.

    Raises:
        UnsupportedError: Neither does.
    """
    chunks = speed.pp * speed.vp
    virtual = ["--num-virtual-stages-per-pipeline-rank", speed.vp] if speed.vp > 1 else []
    if num_layers % chunks == 0:
        return virtual
    if (num_layers + 2) % chunks == 0:
        return [
            *virtual, "--account-for-embedding-in-pipeline-split",
            "--account-for-loss-in-pipeline-split",
        ]  # fmt: skip
    if num_layers == _LAID_OUT and chunks in _LAYOUTS:
        layout = _LAYOUTS[chunks]
        if speed.model not in _PREDICTS_MORE:
            layout = layout.replace("m", "")
        return ["--pipeline-model-parallel-layout", layout]
    raise UnsupportedError(f"{num_layers} layers over {chunks} chunks, and no recipe says which")


def _recipe(speed: BridgeSpeed) -> list[str]:
    recipe = _RECIPES[speed.precision]
    if recipe == "nvfp4":
        return ["--fp4-format", "e2m1", "--fp4-recipe", recipe]
    if speed.system == "DGX-H100" and speed.precision == _OF_BLOCKS:
        recipe = "blockwise"
    if recipe == "tensorwise" and speed.container.startswith(_OLD_CONTAINERS):
        recipe = "delayed"
    if not recipe:
        return []
    form = "e4m3" if recipe in {"mxfp8", "blockwise"} else "hybrid"
    return ["--fp8-format", form, "--fp8-recipe", recipe, *_GATHERED.get(recipe, ())]


def summarize(rows: list[SpeedRow]) -> Summary:
    """Sum up over all that are told and were not fitted to."""
    others = [row for row in rows if not row.is_fitted]
    errors = [row.speed_error for row in others if row.speed_error is not None]
    spread, share = spread_of("tokens/s", errors), len(errors) / len(others)
    missed = [f"told: {share:.0%}"] * (share < TOLD_SHARE)
    missed += [f"median {spread.median:.1%}"] * (spread.median > MEDIAN_BAR)
    near = sum(abs(error) <= _FAR for error in errors)
    reasons = Counter(_NUMBERS.sub("N", _DETAILS.sub("", row.refused)) for row in others)
    del reasons[""]
    kinds: dict[str, list[float]] = {}
    for row in rows:
        if row.speed_error is not None:
            fitted = ", fitted to" * row.is_fitted
            kind = f"{row.gpu}, {row.model} {row.precision}{fitted}"
            kinds.setdefault(kind, []).append(row.speed_error)
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread,),
        bars=(
            f"{TOLD_SHARE:.0%} of rows not fitted to have a number, median within {MEDIAN_BAR:.0%}",
        ),
        missed=tuple(missed),
        findings=(
            f"tables of {SOURCE}",
            f"told: {len(errors)} of {len(others)}; within {_FAR:.0%}: {near}",
            *(
                f"{kind}: {len(each)} rows, median {statistics.median(each):+.1%}"
                for kind, each in sorted(kinds.items())
            ),
            *(f"not told, {num}: {why}" for why, num in reasons.most_common()),
        ),
    )
