"""Command lines of the goldens: drawn once, then kept as data, so that a draw never moves.

The names here are literal on purpose: a list read from the package would draw other jobs as soon as
something is added to it.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec

CONFIGS: dict[str, dict[str, Any]] = {
    "llama.json": {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 640,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
        "vocab_size": 1024, "max_position_embeddings": 512, "tie_word_embeddings": False,
        "bos_token_id": None, "eos_token_id": None,
    },
    "gpt2.json": {
        "model_type": "gpt2", "n_embd": 128, "n_inner": 512, "n_layer": 3, "n_head": 4,
        "vocab_size": 640, "n_positions": 256, "bos_token_id": None, "eos_token_id": None,
    },
}  # fmt: skip
"""Small models, written beside a command that reads one."""
PREDICTED = (
    "llama-3.1-8b", "llama-3.2-1b", "tinyllama-1.1b", "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-0.6b",
    "qwen3-4b", "mistral-7b-v0.3", "gemma-2-2b", "phi-3-mini", "olmo-2-1b", "gpt2", "gpt2-medium",
    "mixtral-8x7b", "qwen3-30b-a3b", "llama-3.1-70b",
)  # fmt: skip
OTHERS = ("bert-base-uncased", "t5-small", "deepseek-v3", "gpt-oss-20b", "phi-4", "falcon3-1b")
MODELS = (*PREDICTED, *PREDICTED, *PREDICTED, *OTHERS)
GPUS = {"h100-80gb": 1, "rtx-4090": 1, "a100-40gb": 1, "t4": 1, "local": 1, "2xlocal": 2,
        "2xv100-32gb": 2, "4xa100-80gb": 4, "8xh100-80gb": 8, "8xrtx-4090": 8,
        "4x8xh100-80gb": 32}  # fmt: skip
OPTIMIZERS = ("adamw", "adamw", "adamw-foreach", "adamw-8bit", "adamw-4bit", "adamw-fp8", "sgd",
              "adafactor")  # fmt: skip
RECIPES = ("fp32", "tf32", "bf16", "fp16", "bf16-mixed", "bf16-mixed", "fp16-mixed", "bf16-master",
           "fp16-master", "fp8")  # fmt: skip
METHODS = ("full", "full", "full", "lora", "dora", "qlora", "qat")
EACH_OPTIMIZER = tuple(sorted(set(OPTIMIZERS)))
SIMULATED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("h100-80gb", ()), ("local", ()), ("rtx-4090", ()),
    ("local", ("--optimizer-in-backward", "--clip=0")), ("h100-80gb", ("--offload=optimizer",)),
    ("2xh100-80gb", ("--zero=3", "--global-batch=8")),
    ("2xh100-80gb", ("--zero=1", "--global-batch=8")),
)  # fmt: skip
"""Where small models are simulated."""
TARGETS = ("torchrun", "slurm", "deepspeed", "accelerate", "hf-trainer", "torchtitan")
SETTINGS: dict[str, tuple[str, ...]] = {
    "seq-len": ("64", "128", "500", "512", "1024"),
    "micro-batch": ("1", "1", "2", "3", "4"),
    "activation-checkpointing": ("none", "full", "full:1", "selective", "selective:2"),
    "loss-chunks": ("1", "1", "2", "8"),
    "attention": ("sdpa", "sdpa", "flash", "efficient", "eager", "flex"),
    "beta1": ("0", "0.9"),
    "weight-decay": ("0", "0.1"),
    "schedule": ("cosine", "linear", "constant"),
    "keep-fp32": ("norm", "lm_head"),
    "packing": ("wrapped", "none", "documents"),
    "task": ("causal-lm", "chat", "dpo"),
    "memory-limit": ("500MiB", "6GiB"),
    "offload": ("optimizer", "parameters", "activations", "parameters:1,optimizer"),
    "clip": ("0", "1"),
    "accumulate": ("reduce-each", "hold"),
}  # fmt: skip
RARE = frozenset(
    {"attention", "keep-fp32", "packing", "task", "memory-limit", "offload", "schedule", "clip"}
)
RARELY, OFTEN = 0.06, 0.5
ANSWERED = {"estimate": 300, "search": 24, "replay": 48, "export": 48, "simulate": 26}
"""How many of each kind are kept that are answered."""
REFUSED_ALIKE, MOST_REFUSED = 2, 90
"""How many refusals are kept that begin alike, and of a kind."""
MANY = 3000
PATIENT = "--budget=3600"
"""A search that simulates ends when it is done, and not by the clock."""
EVERY_TEXT = 10
"""Of how many answered estimates one is asked as people ask it too."""


class Golden(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Command lines that run one after another in a folder of their own.

    Attributes:
        name: Kind and number.
        commands: The last one's answer is what is kept.
        config: Which of ``CONFIGS`` lies in the folder, as ``config.json``.
        sha256: Of the answer; empty where it was not taken yet.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    config: str = ""
    sha256: str = ""


def draw_goldens(seed: int) -> Iterator[Golden]:
    """Draw every kind, more of a kind than is kept."""
    rng = random.Random(seed)  # noqa: S311 - cases, not secrets
    for number in range(MANY):
        yield _number("estimate", number, _estimate(rng))
    for number in range(MANY):
        yield _number("search", number, _search(rng))
    for number in range(MANY):
        yield _number("replay", number, _replay(rng, number))
    for number in range(MANY):
        yield _number("export", number, *_export(rng, number))
    for number in range(MANY):
        yield _simulation(rng, number)
    for number in range(MANY):
        yield _number("refusal", number, _refusal(rng))


def _number(kind: str, number: int, *commands: tuple[str, ...]) -> Golden:
    return Golden(name=f"{kind}/{number:03d}", commands=commands)


def _flags(given: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"--{name}={value}" for name, value in given.items())


def _estimate(rng: random.Random) -> tuple[str, ...]:
    gpus = rng.choice(tuple(GPUS))
    num = GPUS[gpus]
    job: dict[str, Any] = {
        "optimizer": rng.choice(OPTIMIZERS),
        "precision": rng.choice(RECIPES),
        "method": rng.choice(METHODS),
        "global-batch": 24 * num,
        **_degrees(rng, num),
    }
    for name, values in SETTINGS.items():
        if rng.random() < (RARELY if name in RARE else OFTEN):
            job[name] = rng.choice(values)
    return ("estimate", rng.choice(MODELS), f"--gpus={gpus}", *_flags(job), "--json")


def _degrees(rng: random.Random, num: int) -> dict[str, Any]:
    """Draw how many devices are used; one time in three nothing is said."""
    if num == 1 or rng.random() < 1 / 3:
        return {}
    tp, pp = rng.choice((1, 1, 1, 2)), rng.choice((1, 1, 1, 2))
    left = num // (tp * pp)
    if left == 0:
        return {"tp": tp}
    shard = rng.choice([n for n in (1, 2, 4, 8, 32) if left % n == 0])
    zero = rng.choice((1, 2, 3, 3)) if shard > 1 else 0
    replicate = 1 if zero == 1 else left // shard
    shard = left if zero == 1 else shard
    return {"zero": zero, "tp": tp, "pp": pp, "dp-shard": shard, "dp-replicate": replicate}


def _search(rng: random.Random) -> tuple[str, ...]:
    model = rng.choice(("tinyllama-1.1b", "gpt2", "qwen3-0.6b", "llama-3.2-1b", "llama-3.1-8b"))
    gpus = rng.choice(("rtx-4090", "a100-40gb", "2xv100-32gb", "8xh100-80gb", "t4"))
    job = {
        "optimizer": rng.choice(("adamw", "adamw-foreach", "adamw-8bit", "sgd")),
        "method": rng.choice(("full", "full", "lora", "qlora")),
        "global-batch": 16,
        "seq-len": rng.choice((128, 512, 2048)),
    }
    if rng.random() < 1 / 3:
        job["memory-limit"] = rng.choice(("1GiB", "4GiB", "12GiB"))
    how = rng.choice(("--json", "--json", "--explain"))
    return ("plan", model, f"--gpus={gpus}", PATIENT, *_flags(job), "--no-proof", how)


def _replay(rng: random.Random, number: int) -> tuple[str, ...]:
    """Draw a search in which all is pinned: its one strategy's requests are replayed."""
    gpus = rng.choice(("h100-80gb", "h100-80gb", "4xa100-80gb"))
    job: dict[str, Any] = {
        "optimizer": EACH_OPTIMIZER[number % len(EACH_OPTIMIZER)],
        "precision": rng.choice(("fp32", "bf16", "bf16-mixed", "bf16-master", "fp16-master")),
        "method": rng.choice(("full", "full", "lora")),
        "beta1": rng.choice(("0.9", "0.9", "0")),
        "seq-len": rng.choice((128, 1024)),
        "global-batch": 16,
        "micro-batch": rng.choice((1, 2)),
        "activation-checkpointing": rng.choice(("none", "full", "selective")),
        "loss-chunks": rng.choice((1, 4)),
    }
    if gpus == "4xa100-80gb":
        zero = rng.choice((0, 1, 2, 3))
        shard = 4 if zero else 1
        job |= {"zero": zero, "dp-shard": shard, "dp-replicate": 4 // shard, "tp": 1}
    model = rng.choice(("tinyllama-1.1b", "gpt2", "qwen3-0.6b"))
    return ("plan", model, f"--gpus={gpus}", PATIENT, *_flags(job), "--no-proof", "--json")


def _export(rng: random.Random, number: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    gpus = rng.choice(("h100-80gb", "4xa100-80gb", "local"))
    job: dict[str, Any] = {
        "optimizer": EACH_OPTIMIZER[number % len(EACH_OPTIMIZER)],
        "precision": rng.choice(("fp32", "bf16", "bf16-mixed", "bf16-master")),
        "method": rng.choice(("full", "full", "full", "lora")),
        "schedule": rng.choice(("cosine", "linear", "constant")),
        "seq-len": 128,
        "global-batch": 16,
        "micro-batch": 2,
        "activation-checkpointing": rng.choice(("none", "full", "selective:2")),
        "loss-chunks": 1,
    }
    if rng.random() < 1 / 4:
        job |= {"engine": "deepspeed", "zero": 2}
    model = rng.choice(("llama-3.2-1b", "llama-3.1-8b", "gpt2", "qwen3-0.6b"))
    made = ("plan", model, f"--gpus={gpus}", PATIENT, *_flags(job), "--no-proof", "-o", "plan.yaml")
    return made, ("export", "plan.yaml", "--to", TARGETS[number % len(TARGETS)])


def _simulation(rng: random.Random, number: int) -> Golden:
    job: dict[str, Any] = {
        "optimizer": EACH_OPTIMIZER[number % len(EACH_OPTIMIZER)],
        "precision": rng.choice(("fp32", "bf16", "bf16-mixed", "bf16-master")),
        "method": rng.choice(("full", "full", "full", "lora")),
        "beta1": rng.choice(("0.9", "0.9", "0")),
        "seq-len": 128,
        "micro-batch": 2,
        "activation-checkpointing": rng.choice(("none", "full", "full:1")),
    }
    gpus, more = rng.choice(SIMULATED)
    command = ("simulate", "config.json", f"--gpus={gpus}", *_flags(job), *more, "--json")
    config = rng.choice(tuple(CONFIGS))
    return Golden(name=f"simulate/{number:03d}", commands=(command,), config=config)


_BAD: tuple[tuple[str, ...], ...] = (
    ("--optimizer=adam",), ("--optimizer=",), ("--precision=fp7",), ("--tp=3",), ("--pp=5",),
    ("--zero=4",), ("--zero=2", "--dp-shard=1"), ("--seq-len=0",), ("--seq-len=1000000000",),
    ("--beta1=1",), ("--beta2=-1",), ("--epsilon=0",), ("--micro-batch=0",), ("--clip=-1",),
    ("--optimizer=adafactor", "--zero=3"), ("--optimizer=adamw-8bit", "--zero=3"),
    ("--optimizer=adamw-4bit", "--precision=bf16-master"), ("--optimizer=adamw-fp8", "--zero=1"),
    ("--optimizer=adamw-fp8", "--pp=2"), ("--optimizer=sgd", "--zero=3", "--precision=fp32"),
    ("--optimizer=adafactor", "--tp=2"),
    ("--optimizer=adamw-8bit", "--engine=deepspeed", "--zero=2"),
    ("--optimizer=adamw-8bit", "--offload=optimizer"), ("--optimizer-in-backward",),
    ("--optimizer-in-backward", "--clip=0"), ("--offload=everything",), ("--method=lore",),
    ("--lora-rank=8",), ("--method=lora", "--lora-targets=nothing"), ("--attention=flesh",),
    ("--activation-checkpointing=half",), ("--activation-checkpointing=full:99",),
    ("--loss-chunks=0",), ("--task=chess",), ("--task=dpo", "--zero=3"), ("--ep=2",),
    ("--engine=deepspeed",), ("--keep-fp32=norm", "--precision=fp32"), ("--steps=0",),
    ("--initial-scale=3",), ("--qat-scheme=int8",), ("--method=qat", "--task=dpo"),
    ("--memory-limit=999GiB",), ("--network=ethernet-25",), ("--reference=resident",),
)  # fmt: skip


def _refusal(rng: random.Random) -> tuple[str, ...]:
    verb = rng.choice(("estimate", "estimate", "plan"))
    model = rng.choice(("llama-3.1-8b", "gpt2", "qwen3-0.6b", "llama-4-9b"))
    gpus = rng.choice(("8xh100-80gb", "h100-80gb", "2xv100-32gb", "mi300x", "h200-80gb"))
    more = (PATIENT, "--no-proof") if verb == "plan" else ()
    return (verb, model, f"--gpus={gpus}", *rng.choice(_BAD), *more)


def as_text(golden: Golden) -> Golden:
    """Return the same command as it answers people, with every table."""
    *words, _json = golden.commands[-1]
    name = golden.name.replace("estimate", "text")
    return msgspec.structs.replace(golden, name=name, commands=((*words, "-v"),))


def write_config(golden: Golden) -> bytes:
    """Return the small model that lies beside a golden's commands."""
    return json.dumps(CONFIGS[golden.config]).encode()
