"""Plans that are exported for the proof and for the tests; knows no torch."""

import hashlib
from typing import Any, NamedTuple

from brimful.cli.defaults import LOSS_SCALE
from brimful.export.given import Given
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Adapter, check_job, plain_job
from brimful.values.plan import PLAN_SCHEMA, Plan
from brimful.values.strategy import Strategy

AC = "activation_checkpointing"
RECORDED = ("zero3", "moe", "lora", "zero1", "engine")
"""Of which the tests keep the exported text."""
GIVEN = Given("plan.yaml", "DATA", "runs/first")
SUFFIXES = {
    "deepspeed": "json", "accelerate": "yaml", "hf-trainer": "yaml", "torchtitan": "py",
    "torchrun": "sh", "slurm": "sh", "trl": "yaml", "axolotl": "yaml", "llama-factory": "yaml",
}  # fmt: skip
_LORA = Adapter(
    rank=16, alpha=32.0, targets=("q_proj", "v_proj"), trained_modules=(), dtype="same",
    base="bf16", upcast="none", input_requires_grad=False,
)  # fmt: skip


class Planned(NamedTuple):
    """A plan under a name, and the cluster as ``--gpus`` has it."""

    name: str
    gpus: str
    plan: Plan


def plans() -> list[Planned]:
    """List plans that cover the fields of jobs and strategies; no machine is asked."""
    big = {"global_batch": 64, "seq_len": 4096, "num_steps": 1000, "warmup_steps": 100}
    some = {**big, "global_batch": 16, "seq_len": 2048}
    return [
        _plan("zero3", "llama-3.1-8b", "8xh100-80gb", {**big, "precision": "bf16-mixed"},
              {"zero": 3, "dp_shard": 8, "micro_batch": 2, AC: "selective:2"}),
        _plan("moe", "qwen3-30b-a3b", "8xh100-80gb", {**big, "precision": "bf16-mixed"},
              {"zero": 3, "dp_shard": 8, "ep": 4, "micro_batch": 1, AC: "full"}),
        _plan("lora", "llama-3.2-1b", "2xh100-80gb",
              {**some, "precision": "bf16-mixed", "method": "lora", "adapter": _LORA},
              {"dp_replicate": 2, "micro_batch": 4}),
        _plan("hybrid", "llama-3.1-70b", "4x8xh100-80gb", {**big, "precision": "bf16-mixed"},
              {"zero": 3, "dp_shard": 8, "dp_replicate": 4, "micro_batch": 1, AC: "full:40"}),
        _plan("tensor", "llama-3.1-8b", "8xh100-80gb", {**big, "precision": "bf16-mixed",
              "schedule": "linear"}, {"zero": 2, "dp_shard": 4, "tp": 2, "micro_batch": 2}),
        _plan("offload", "llama-3.2-1b", "h100-80gb", {**some, "precision": "fp32", "clip": 0.0},
              {"micro_batch": 2, "offload": "parameters", "loss_chunks": 8}),
        _plan("scaled", "qwen3-4b", "4xh100-80gb",
              {**some, "precision": "fp16-mixed", "loss_scale": LOSS_SCALE},
              {"zero": 2, "dp_shard": 4, "micro_batch": 1, "accumulate": "hold"}),
        _plan("zero1", "llama-3.2-3b", "8xh100-80gb",
              {**big, "precision": "fp32", "schedule": "linear", "beta2": 0.999, "seed": 7},
              {"zero": 1, "dp_shard": 8, "micro_batch": 1, AC: "full"}),
        _plan("engine", "qwen3-8b", "8xh100-80gb", {**big, "precision": "bf16-master"},
              {"zero": 3, "dp_shard": 8, "micro_batch": 1, "engine": "deepspeed",
               "offload": "parameters"}),
        _plan("masters", "qwen3-8b", "8xh100-80gb",
              {**big, "precision": "fp16-master", "loss_scale": LOSS_SCALE, "schedule": "constant"},
              {"zero": 2, "dp_shard": 8, "micro_batch": 2, "engine": "deepspeed"}),
        _plan("pipeline", "llama-3.1-8b", "8xh100-80gb", {**big, "precision": "bf16-mixed"},
              {"zero": 2, "dp_shard": 2, "pp": 4, "micro_batch": 2, "accumulate": "hold"}),
        _plan("alone", "llama-3.2-1b", "h100-80gb",
              {**some, "precision": "bf16", "schedule": "constant", "packing": "documents"},
              {"micro_batch": 2, "attention": "flex"}),
    ]  # fmt: skip


def _plan(
    name: str, model: str, gpus: str, job: dict[str, Any], strategy: dict[str, Any]
) -> Planned:
    checked = check_job(plain_job(load_model(model), **job))
    fields = {AC: "none", "loss_chunks": 1, "attention": "sdpa", **strategy}
    chosen = check_strategy(checked, Strategy(**fields))
    cluster = load_cluster(gpus, memory_limit_bytes=None, network_name="")
    plan = Plan(schema=PLAN_SCHEMA, job=checked, cluster=cluster, strategy=chosen, estimate=None)
    return Planned(name, gpus, plan)


def sha256(text: str) -> str:
    """Return the sum by which a recorded export is known."""
    return hashlib.sha256(text.encode()).hexdigest()


def recorded_name(target: str, name: str) -> str:
    """Return the file in which a plan's export is kept; Python as text: no tool edits it."""
    suffix = SUFFIXES[target]
    return f"{name}.{suffix}.txt" if suffix == "py" else f"{name}.{suffix}"
