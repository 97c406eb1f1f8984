"""The cases: where memory comes from, spread over models, methods, precisions and strategies.

A case is a model and flags of ``brimful simulate``, so that whatever the command line can ask for
can be one. They stand in the order of what one most wants to know, should the time run out: a slice
of eight minutes takes as many as it can, and the next call goes on behind them.
"""

from functools import cache
from pathlib import Path

import msgspec
from rows import Case

from brimful.cli.main import parser_of
from brimful.cli.resolved import asked
from brimful.models.config import check_model, load_model, read_config
from brimful.models.spec import ModelSpec
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Job, check_job
from brimful.values.strategy import Strategy

NUM_METERED_STEPS = 2
NUM_TIMED_STEPS = 5
_MODELS = Path(__file__).parent / "models"
_RATES = ("--learning-rate", "1e-4")
_LATER = ("--clip", "0", "--optimizer-in-backward")


def _case(family: str, name: str, model: str, flags: str, *, layers: int = 0) -> Case:
    """Write a case down; ``layers`` cuts a model to its first blocks, 0 leaves it whole."""
    return Case(name=name, family=family, model=model, layers=layers, flags=tuple(flags.split()))


def _full(  # noqa: PLR0913, PLR0917 - a table's columns
    name: str, model: str, precision: str, seq_len: int, batch: str, more: str = ""
) -> Case:
    """Return a case of full training; ``batch`` is global batch / micro-batch."""
    whole, micro = batch.split("/")
    sizes = f"--seq-len {seq_len} --global-batch {whole} --micro-batch {micro}"
    return _case("full", name, model, f"--precision {precision} {sizes} {more}")


_FIRST = (
    _full("8b-bf16", "llama-3.1-8b", "bf16", 4096, "1/1"),
    _full("1b-mixed", "tinyllama-1.1b", "bf16-mixed", 2048, "8/8"),
    _full("135m-fp32", "smollm2-135m", "fp32", 2048, "4/4"),
    _full("gpt2-mixed", "gpt2", "bf16-mixed", 1024, "16/16"),
    _case("lora", "8b-lora", "llama-3.1-8b", "--method lora --precision bf16 --seq-len 4096 "
          "--global-batch 4 --micro-batch 4 --ac full --loss-chunks 8"),
    _case("qlora", "8b-nf4", "llama-3.1-8b", "--method qlora --base nf4-double --precision bf16 "
          "--seq-len 4096 --global-batch 2 --micro-batch 2 --ac full --loss-chunks 8"),
    _full("1b-full-chunks", "llama-3.2-1b", "bf16-mixed", 4096, "16/8",
          "--ac full --loss-chunks 16"),
    _full("1b-fp32-k", "llama-3.2-1b", "fp32", 2048, "4/4", "--ac full:8"),
    _full("1b-eager-accum", "tinyllama-1.1b", "bf16", 2048, "6/2", "--attention eager"),
    _full("gpt2m-eager-k", "gpt2-medium", "fp32", 1024, "8/4", "--ac full:12 --attention eager"),
    _full("gpt2xl-chunks", "gpt2-xl", "bf16", 1024, "8/8", "--loss-chunks 8"),
    _full("3b-mixed-k", "llama-3.2-3b", "bf16-mixed", 4096, "4/2", "--ac full:14 --loss-chunks 8"),
    _full("8b-full-accum", "llama-3.1-8b", "bf16", 4096, "8/4", "--ac full --loss-chunks 8"),
    _full("8b-brim", "llama-3.1-8b", "bf16", 4608, "3/3", "--loss-chunks 8"),
)  # fmt: skip
_SIZES = tuple(
    _full(f"{name}-{precision}", model, precision, seq_len, batch, more)
    for name, model, seq_len, batch, more in (
        ("qwen05b", "qwen2.5-0.5b", 4096, "4/4", "--loss-chunks 8"),
        ("qwen3-17b", "qwen3-1.7b", 4096, "2/2", "--ac selective --loss-chunks 8"),
        ("phi3", "phi-3-mini", 2048, "2/2", "--ac full"),
        ("gemma2-2b", "gemma-2-2b", 2048, "2/2", "--ac full --loss-chunks 16 --attention eager"),
        ("mistral-7b", "mistral-7b-v0.3", 2048, "1/1", "--ac full"),
        ("olmo2-7b", "olmo-2-7b", 2048, "1/1", "--ac full"),
    )
    for precision in ("bf16", "bf16-mixed")
    if precision == "bf16" or "7b" not in name
)
_RECIPES = tuple(
    _case("recipe", f"1b-{precision}", "llama-3.2-1b", f"--precision {precision} --seq-len 2048 "
          f"--global-batch 4 --micro-batch 2 --ac {checkpointing}")
    for precision in ("fp32", "tf32", "fp16-mixed", "bf16-master", "fp16-master", "fp8")
    for checkpointing in ("none", "full")
    if checkpointing == "full" or precision in {"bf16-master", "fp16-mixed"}
)  # fmt: skip
_RECIPES = tuple(
    msgspec.structs.replace(case, name=f"{case.name}-{case.flags[-1]}") for case in _RECIPES
)
_CHECKPOINTS = tuple(
    _case("checkpointing", f"1b-ac-{how.replace(':', '')}-{seq_len}", "llama-3.2-1b",
          f"--precision bf16 --seq-len {seq_len} --global-batch 2 --micro-batch 2 --ac {how} "
          f"--loss-chunks 8")
    for seq_len in (1024, 4096)
    for how in ("none", "selective", "selective:8", "full:4", "full")
)  # fmt: skip
_ATTENTION = tuple(
    _case("attention", f"{name}-{kernel}", model, f"--precision {precision} --seq-len {seq_len} "
          f"--global-batch 2 --micro-batch 2 --attention {kernel}")
    for name, model, precision, seq_len in (
        ("1b", "llama-3.2-1b", "bf16", 2048), ("gpt2", "gpt2", "bf16-mixed", 1024),
    )
    for kernel in ("flash", "efficient", "cudnn", "eager")
)  # fmt: skip
_LOSS = tuple(
    _case("loss", f"1b-chunks-{chunks}", "llama-3.2-1b", f"--precision bf16-mixed --seq-len 2048 "
          f"--global-batch 8 --micro-batch 8 --ac full --loss-chunks {chunks}")
    for chunks in (1, 2, 8, 32)
)  # fmt: skip
_OPTIMIZERS = tuple(
    _case("optimizer", f"1b-{rule}-{precision}", "llama-3.2-1b", f"--precision {precision} "
          f"--optimizer {rule} --seq-len 1024 --global-batch 2 --micro-batch 2 --ac full "
          f"--loss-chunks 8")
    for rule in ("adamw-foreach", "adamw-8bit", "adamw-4bit", "adamw-fp8", "sgd", "adafactor")
    for precision in ("bf16", "fp32")
)  # fmt: skip
_ADAPTERS = tuple(
    _case(method, f"{name}-{method}-{base}", model, f"--method {method} --base {base} "
          f"--precision bf16 --seq-len {seq_len} --global-batch 4 --micro-batch 2 "
          f"--ac {checkpointing} --loss-chunks 8")
    for name, model, seq_len, checkpointing in (
        ("1b", "llama-3.2-1b", 2048, "none"), ("8b", "llama-3.1-8b", 2048, "full"),
        ("14b", "qwen3-14b", 2048, "full"),
    )
    for method, base in (
        ("lora", "same"), ("dora", "same"), ("qlora", "nf4"), ("qlora", "nf4-double"),
        ("qlora", "int8"), ("qlora", "llm-int8"),
    )
)  # fmt: skip
_MIXTURES = tuple(
    _case("mixture", f"{name}-{precision}", model, f"--precision {precision} --seq-len {seq_len} "
          f"--global-batch 2 --micro-batch 1 --ac full --loss-chunks 8"
          f"{' --attention eager' if 'gpt-oss' in name else ''}", layers=layers)
    for name, model, layers, seq_len in (
        ("mixtral-2", "mixtral-8x7b", 2, 2048), ("qwen3-moe-6", "qwen3-30b-a3b", 6, 2048),
        ("deepseek-v2-lite-5", "deepseek-v2-lite", 5, 2048), ("gpt-oss-4", "gpt-oss-20b", 4, 2048),
    )
    for precision in ("bf16", "bf16-mixed")
)  # fmt: skip
_OFFLOAD = tuple(
    _case("offload", f"{name}-{offload.replace(':', '').replace(',', '-')}", model,
          f"--precision {precision} --seq-len 2048 --global-batch 2 --micro-batch 1 "
          f"--ac {checkpointing} --loss-chunks 8 --offload {offload}")
    for name, model, precision, checkpointing in (
        ("1b", "llama-3.2-1b", "bf16-mixed", "none"), ("8b", "llama-3.1-8b", "bf16", "full"),
    )
    for offload in (
        "optimizer", "parameters", "parameters:8", "activations", "parameters,activations",
    )
)  # fmt: skip
_EARLY = tuple(
    _case("early update", f"8b-early-{rule}{'-away' if away else ''}", "llama-3.1-8b",
          f"--precision bf16 --optimizer {rule} --seq-len 4096 --global-batch 1 --micro-batch 1 "
          f"--ac full --loss-chunks 8 {' '.join(_LATER)}"
          + (f" --offload parameters:{away}" if away else ""))
    for rule in ("adamw", "adamw-8bit", "adafactor")
    for away in (0, 24)
)  # fmt: skip
_LONG = tuple(
    _case("long", f"{name}-{seq_len}", model, f"--precision bf16 --seq-len {seq_len} "
          f"--global-batch 1 --micro-batch 1 --ac full --loss-chunks 32")
    for name, model, lengths in (
        ("1b", "llama-3.2-1b", (512, 8192, 16384, 32768, 65536)),
        ("8b", "llama-3.1-8b", (512, 16384)),
    )
    for seq_len in lengths
)  # fmt: skip
_SHORT = tuple(
    _case("small", f"135m-{seq_len}-{precision}", "smollm2-135m", f"--precision {precision} "
          f"--seq-len {seq_len} --global-batch 16 --micro-batch 16")
    for seq_len in (512, 1024)
    for precision in ("bf16", "fp32")
)  # fmt: skip

_ALONE = tuple(
    _case("fsdp2", f"{name}-zero{zero}-{precision}-{checkpointing}", model, f"{method} "
          f"--precision {precision} --zero {zero} --seq-len 2048 --global-batch 4 --micro-batch 2 "
          f"--ac {checkpointing} --loss-chunks 8")
    for name, model, zero, precision, checkpointing, method in (
        ("1b", "llama-3.2-1b", 3, "bf16-mixed", "none", ""),
        ("1b", "llama-3.2-1b", 2, "bf16-mixed", "full", ""),
        ("1b", "llama-3.2-1b", 3, "fp32", "full:8", ""),
        ("8b", "llama-3.1-8b", 3, "bf16", "full", ""),
        ("8b-lora", "llama-3.1-8b", 3, "bf16-mixed", "full", "--method lora"),
    )
)  # fmt: skip
_ROWS = tuple(
    _case("packing", f"1b-{packing}-{kernel}", "llama-3.2-1b", f"--precision bf16 "
          f"--packing {packing} --seq-len 4096 --global-batch 2 --micro-batch 2 --ac full "
          f"--loss-chunks 8 --attention {kernel}")
    for packing, kernel in (
        ("documents", "sdpa"), ("documents", "varlen"), ("none", "sdpa"), ("none", "eager"),
    )
)  # fmt: skip
_PAIRS = tuple(
    _case("pairs", f"{name}-{reference}", model, f"--task dpo --reference {reference} --precision "
          f"{precision} --seq-len 2048 --global-batch 4 --micro-batch 1 --ac full --loss-chunks 8 "
          f"{method}")
    for name, model, reference, precision, method in (
        ("1b-dpo", "llama-3.2-1b", "resident", "bf16-mixed", ""),
        ("1b-dpo", "llama-3.2-1b", "offloaded", "bf16", ""),
        ("8b-dpo-lora", "llama-3.1-8b", "adapters-off", "bf16", "--method lora"),
    )
)  # fmt: skip
_OTHER_TASKS = (
    _case("task", "bert-labels", "bert-base-uncased", "--precision bf16-mixed --seq-len 512 "
          "--global-batch 32 --micro-batch 32"),
    _case("task", "bert-large-labels", "bert-large-uncased", "--precision fp32 --seq-len 512 "
          "--global-batch 8 --micro-batch 8 --ac full"),
    _case("task", "t5-texts", str(_MODELS / "t5-base.json"), "--precision bf16-mixed --seq-len 512 "
          "--global-batch 16 --micro-batch 8"),
)  # fmt: skip

_FUSED = tuple(
    _case("fused kernels", f"{name}-liger", model, f"{flags} --fused-kernels liger --precision "
          f"{precision} --seq-len {seq_len} --global-batch {batch} --micro-batch {batch}")
    for name, model, precision, seq_len, batch, flags in (
        ("1b", "llama-3.2-1b", "bf16", 2048, 4, ""),
        ("qwen3-17b", "qwen3-1.7b", "bf16-mixed", 4096, 2, "--ac full"),
        ("8b-lora", "llama-3.1-8b", "bf16", 4096, 2, "--method lora"),
    )
)  # fmt: skip
_COMPILED = tuple(
    _case("compiled", f"{name}-compiled", model, f"--compile blocks --precision {precision} "
          f"--seq-len {seq_len} --global-batch {batch} --micro-batch {batch} {flags}")
    for name, model, precision, seq_len, batch, flags in (
        ("1b", "llama-3.2-1b", "bf16", 2048, 2, "--loss-chunks 8"),
        ("gpt2", "gpt2", "bf16-mixed", 1024, 8, ""),
    )
)  # fmt: skip


def _in_turn(*groups: tuple[Case, ...]) -> tuple[Case, ...]:
    """Deal cases out of groups, one of each in turn, so that every slice has some of all."""
    longest = max(map(len, groups))
    return tuple(group[turn] for turn in range(longest) for group in groups if turn < len(group))


GPU_CASES = _FIRST + _in_turn(
    _ADAPTERS, _CHECKPOINTS, _RECIPES, _MIXTURES, _OPTIMIZERS, _EARLY, _OFFLOAD, _ATTENTION, _LONG,
    _LOSS, _SIZES, _SHORT, _ALONE, _ROWS, _PAIRS, _OTHER_TASKS,
    _FUSED, _COMPILED,
) + (
    _case("moonshot", "moonshot-127b", str(_MODELS / "moonshot-127b.json"), "--precision bf16 "
          f"--optimizer adafactor --seq-len 4096 --global-batch 1 --micro-batch 1 --ac full "
          f"--loss-chunks 8 {' '.join(_LATER)} --offload parameters:29 "
          "--keep-fp32 input_layernorm,post_attention_layernorm,norm"),
)  # fmt: skip
"""The last is the largest decoder whose every parameter an H200 and 128 GiB of its host train
(docs/moonshot.md)."""
_LLAMA, _GPT2 = str(_MODELS / "tiny-llama.json"), str(_MODELS / "tiny-gpt2.json")
_TINY = "--seq-len 128 --global-batch 2 --micro-batch 2"
REHEARSAL_CASES = (
    _case("full", "tiny-llama-fp32", _LLAMA, f"--precision fp32 {_TINY}"),
    _case("full", "tiny-llama-mixed-k", _LLAMA, "--precision bf16-mixed --seq-len 128 "
          "--global-batch 4 --micro-batch 2 --ac full:2 --loss-chunks 4"),
    _case("full", "tiny-gpt2-bf16", _GPT2, f"--precision bf16 {_TINY} --ac full"),
    _case("full", "tiny-gpt2-eager", _GPT2, "--precision fp32 --seq-len 128 --global-batch 4 "
          "--micro-batch 2 --loss-chunks 2 --attention eager"),
    _case("lora", "tiny-lora", _LLAMA, f"--method lora --precision bf16 {_TINY} --ac full"),
    _case("qlora", "tiny-int8", _LLAMA, f"--method qlora --base int8 --precision bf16 {_TINY}"),
    _case("recipe", "tiny-master", _LLAMA, f"--precision bf16-master {_TINY}"),
    _case("recipe", "tiny-fp16-mixed", _LLAMA, f"--precision fp16-mixed {_TINY}"),
    _case("optimizer", "tiny-adafactor", _LLAMA, f"--precision bf16 --optimizer adafactor {_TINY}"),
    _case("optimizer", "tiny-8bit", _LLAMA, f"--precision bf16 --optimizer adamw-8bit {_TINY}"),
    _case("checkpointing", "tiny-selective", _LLAMA, f"--precision bf16 {_TINY} --ac selective"),
    _case("offload", "tiny-offload", _LLAMA, f"--precision fp32 {_TINY} --ac full "
          "--offload parameters,activations"),
    _case("early update", "tiny-early-away", _LLAMA, f"--precision bf16 {_TINY} --ac full "
          f"--offload parameters:1 {' '.join(_LATER)}"),
    _case("fsdp2", "tiny-alone", _LLAMA, f"--precision bf16-mixed --zero 3 {_TINY} --ac full:2"),
    _case("packing", "tiny-packed", _LLAMA, f"--precision bf16 --packing documents {_TINY}"),
    _case("pairs", "tiny-pairs", _LLAMA, f"--task dpo --precision fp32 {_TINY}"),
)  # fmt: skip


@cache
def _asked(case: Case) -> tuple[Job, Strategy]:
    steps = ("--steps", str(NUM_METERED_STEPS + NUM_TIMED_STEPS))
    words = [case.model, "--gpus", "h200", *_RATES, *steps, *case.flags]
    found = asked(parser_of("simulate").parse_args(words))
    if not case.layers:
        return found.job, found.strategy
    job = check_job(msgspec.structs.replace(found.job, model=cut(case.model, case.layers)))
    return job, check_strategy(job, found.strategy)


def cut(model: str, num_layers: int) -> ModelSpec:
    """Return a known model with its first blocks only."""
    whole = load_model(model)
    config = {**whole.hf_config, "model_type": whole.model_type, "num_hidden_layers": num_layers}
    return check_model(read_config(f"{model}-{num_layers}-layers", config))


def job_of(case: Case) -> Job:
    """Spell a case's job in full."""
    return _asked(case)[0]


def strategy_of(case: Case) -> Strategy:
    """Spell a case's strategy in full."""
    return _asked(case)[1]
