"""The YAML that ``accelerate launch --config_file`` takes.

FSDP2 for ZeRO-2 and ZeRO-3, or FSDP1 where a plan asks for it, its DeepSpeed plugin for plans of
that engine and for ZeRO-1, which Accelerate has in no other way, plain data parallel for the rest.
What is learnt is the program's.

Source: ``accelerate/commands/config/config_args.py``, ``commands/launch.py`` and
``utils/dataclasses.py`` of Accelerate 1.15.0.
"""

from collections.abc import Iterator
from typing import Any, Literal

from brimful.export.given import Exported, Given, in_yaml
from brimful.export.lost import Lost, lost, refuse, split_degrees, unsaid
from brimful.techniques.offload import away_of
from brimful.techniques.parallel.flat import sharding_of
from brimful.values.job import Job, Precision
from brimful.values.plan import Plan
from brimful.values.strategy import (
    COMPILED,
    default_accumulate,
    gathers,
    is_flat,
    is_selective,
    num_checkpointed,
    num_micro_batches,
    world_size,
)

TO = "accelerate"
Way = Literal["NO", "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED"]
_PORT = 29500
_MIXED: dict[Precision, str] = {
    "fp32": "no", "tf32": "no", "bf16": "no",
    "bf16-mixed": "bf16", "fp16-mixed": "fp16", "bf16-master": "bf16", "fp16-master": "fp16",
}  # fmt: skip
_SAID = (
    "precision",
    "zero",
    "dp_replicate",
    "dp_shard",
    "tp",
    "engine",
    "engine_settings",
    "offload",
    "compile",
    "fsdp",
)


def text(plan: Plan, given: Given) -> Exported:
    """Return the YAML, and what it does not say."""
    return in_yaml(plan, given, TO, config(plan), losses(plan))


def way_of(plan: Plan) -> Way:
    """Return by what Accelerate runs a plan."""
    strategy = plan.strategy
    if strategy.engine == "deepspeed" or strategy.zero == 1:
        return "DEEPSPEED"
    if gathers(strategy) or strategy.tp > 1:
        return "FSDP"
    if world_size(strategy) == 1:
        return "NO"
    return "MULTI_GPU" if plan.cluster.device.kernels == "cuda" else "MULTI_CPU"


def config(plan: Plan) -> dict[str, Any]:
    """Return the YAML's content.

    Raises UnsupportedError: Accelerate would train something else.
    """
    refuse(plan, TO, [*split_degrees(plan.strategy, "pp"), *_refused(plan)])
    cluster, way = plan.cluster, way_of(plan)
    content: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": way,
        "mixed_precision": _MIXED[plan.job.precision],
        "num_processes": world_size(plan.strategy),
        "num_machines": cluster.num_nodes,
        "machine_rank": 0,
        "main_process_port": _PORT,
        "rdzv_backend": "static" if cluster.num_nodes == 1 else "c10d",
        "same_network": True,
        "main_training_function": "main",
        "use_cpu": cluster.device.kernels != "cuda",
        "debug": False,
        "enable_cpu_affinity": False,
        "downcast_bf16": "no",
    }
    compiled = COMPILED[plan.strategy.compile]
    if compiled & {"blocks", "body"}:
        content["dynamo_config"] = {
            "dynamo_backend": "INDUCTOR",
            "dynamo_use_regional_compilation": "blocks" in compiled,
        }
    if way == "DEEPSPEED":
        content["deepspeed_config"] = _deepspeed(plan)
    if way == "FSDP":
        content["fsdp_config"] = _fsdp(plan)
        if not is_flat(plan.strategy):
            content["parallelism_config"] = _degrees(plan)
    return content


def _refused(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.job.precision.endswith("-master") and way_of(plan) != "DEEPSPEED":
        yield f"precision={plan.job.precision} without DeepSpeed", "use precision=bf16-mixed"
    away = away_of(plan.strategy.offload, num_layers=plan.job.model.num_layers)
    if away.optimizer and way_of(plan) in {"NO", "MULTI_GPU", "MULTI_CPU"}:
        yield f"offload={plan.strategy.offload} without FSDP", "use offload=none"


def _deepspeed(plan: Plan) -> dict[str, Any]:
    strategy = plan.strategy
    return {
        "zero_stage": strategy.zero,
        "gradient_accumulation_steps": num_micro_batches(plan.job, strategy),
        "gradient_clipping": plan.job.clip,
        "offload_optimizer_device": "none" if strategy.offload == "none" else "cpu",
        "offload_param_device": "cpu" if strategy.offload == "parameters" else "none",
        "zero3_init_flag": False,
        "zero3_save_16bit_model": False,
    }


def _fsdp(plan: Plan) -> dict[str, Any]:
    strategy, layers = plan.strategy, plan.job.model.num_layers
    own: dict[str, Any] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": strategy.zero == 3,  # noqa: PLR2004 - ZeRO-3
    }
    if is_flat(strategy):
        own = {
            "fsdp_version": 1,
            "fsdp_reshard_after_forward": sharding_of(strategy),
            "fsdp_use_orig_params": True,
            "fsdp_backward_prefetch": "BACKWARD_PRE",
        }
    return own | {
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": num_checkpointed(strategy, num_layers=layers) > 0,
        "fsdp_offload_params": away_of(strategy.offload, num_layers=layers).optimizer,
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _degrees(plan: Plan) -> dict[str, Any]:
    strategy = plan.strategy
    degrees = {name: getattr(strategy, name) for name in ("dp_replicate", "dp_shard", "tp")}
    return {f"parallelism_config_{name}_size": degree for name, degree in degrees.items()}


def losses(plan: Plan) -> tuple[Lost, ...]:
    """List what the YAML does not say, or says in part."""
    said, way = set(_SAID), way_of(plan)
    if way == "DEEPSPEED":
        said |= {"clip"}
    if way in {"FSDP", "DEEPSPEED"} and plan.job.loss_scale is None:
        said |= {"loss_scale"}
    if plan.strategy.accumulate == ("hold" if way != "DEEPSPEED" else _deepspeed_way(plan)):
        said |= {"accumulate"}
    if way == "FSDP" and _checkpoints_all(plan):
        said |= {"activation_checkpointing"}
    steps = num_micro_batches(plan.job, plan.strategy)
    whys = {
        "micro_batch": f"the program's DataLoader(batch_size={plan.strategy.micro_batch})",
        "global_batch": f"the program's Accelerator(gradient_accumulation_steps={steps})",
        "accumulate": "the program's GradientAccumulationPlugin(sync_each_batch=True); else held",
        "clip": "the program calls accelerator.clip_grad_norm_",
        "loss_scale": "the program's GradScalerKwargs",
        "activation_checkpointing": _checkpointing(plan),
        "ep": "experts are sharded like all parameters",
    }
    whys |= dict.fromkeys(
        ("optimizer", "beta1", "beta2", "epsilon", "learning_rate", "weight_decay"),
        "the program's optimizer",
    )
    whys |= dict.fromkeys(("schedule", "warmup_steps"), "the program's scheduler")
    return (*unsaid(plan, said, whys), *_in_part(plan))


def _deepspeed_way(plan: Plan) -> str:
    return default_accumulate("deepspeed", plan.strategy.zero)


def _checkpoints_all(plan: Plan) -> bool:
    blocks = num_checkpointed(plan.strategy, num_layers=plan.job.model.num_layers)
    return blocks == plan.job.model.num_layers and not is_selective(plan.strategy)


def _checkpointing(plan: Plan) -> str:
    if way_of(plan) == "FSDP":
        return "FSDP's switch recomputes every block in full"
    return "the program calls model.gradient_checkpointing_enable(): every block in full"


def _in_part(plan: Plan) -> Iterator[Lost]:
    job, strategy, way = plan.job, plan.strategy, way_of(plan)
    yield from _types(plan, job, way)
    if is_flat(strategy) and strategy.dp_shard not in {
        world_size(strategy), plan.cluster.devices_per_node
    }:  # fmt: skip
        yield lost(plan, "dp_shard", "FSDP1 shards within a node where there are replicas")
    if "loss" in COMPILED[strategy.compile]:
        yield lost(plan, "compile", "the program compiles its loss")
    if way == "DEEPSPEED" and strategy.dp_replicate > 1:
        yield lost(plan, "dp_replicate", "DeepSpeed shards over all devices, without groups")
    spelled = {"DEEPSPEED": {"none", "optimizer", "parameters"}, "FSDP": {"none", "parameters"}}
    if strategy.offload not in spelled.get(way, {"none"}):
        yield lost(plan, "offload", "parameters, gradients and state are on the host all or none")


def _types(plan: Plan, job: Job, way: Way) -> Iterator[Lost]:
    if job.precision == "bf16":
        yield lost(plan, "precision", "the program loads the model with dtype=torch.bfloat16")
    if job.precision == "tf32":
        yield lost(plan, "precision", "the program sets torch.backends.cuda.matmul.allow_tf32")
    if job.precision.endswith("-mixed") and way == "FSDP":
        yield lost(plan, "precision", "gradients are reduced in 16 bits, not fp32")
    if job.precision.endswith("-mixed") and way == "DEEPSPEED":
        yield lost(plan, "precision", f"DeepSpeed's recipe is {job.precision[:4]}-master")
