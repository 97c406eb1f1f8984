"""What runs in a target's own environment: its parser on exported files. Knows nothing of Brimful.

``python exporters_worker.py TARGET FOLDER``: reads each file that ``FOLDER/ask.json`` lists and
writes what the parser made of it to ``FOLDER/told.json``.
"""

import importlib
import json
import os
import subprocess
import sys
import traceback
from importlib import metadata
from pathlib import Path
from typing import Any


def _deepspeed(path: Path, ask: dict[str, Any]) -> dict[str, Any]:
    import deepspeed
    import torch.distributed as dist
    from deepspeed.runtime.config import DeepSpeedConfig

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)

    class World:
        """Stands for the devices of the plan, which are not here: it is asked how many."""

        @staticmethod
        def get_data_parallel_world_size() -> int:
            return int(ask["world"])

    read = DeepSpeedConfig(str(path), mpu=World())
    optimizer, scheduler = read.optimizer_params or {}, read.scheduler_params or {}
    zero = read.zero_config
    away = [zero.offload_optimizer, zero.offload_param]
    return {
        "train_batch_size": read.train_batch_size,
        "micro_batch": read.train_micro_batch_size_per_gpu,
        "steps": read.gradient_accumulation_steps,
        "clip": read.gradient_clipping,
        "stage": int(zero.stage),
        "offload": [
            each is not None and str(getattr(each.device, "value", each.device)) == "cpu"
            for each in away
        ],
        "bf16": read.bfloat16_config.enabled,
        "fp16": read.float16_config.enabled,
        "autocast": str(read.torch_autocast_dtype) if read.torch_autocast_enabled else "none",
        "optimizer": read.optimizer_name,
        "lr": optimizer.get("lr"),
        "betas": optimizer.get("betas"),
        "weight_decay": optimizer.get("weight_decay"),
        "scheduler": read.scheduler_name,
        "total_steps": scheduler.get("total_num_steps"),
    }


def _accelerate(path: Path, ask: dict[str, Any]) -> dict[str, Any]:
    del ask
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    config = load_config_from_file(str(path))
    arguments = ["--config_file", str(path), "train.py"]
    args, defaults, _ = _validate_launch_command(launch_command_parser().parse_args(arguments))
    fsdp, deep, degrees = (
        defaults.fsdp_config,
        defaults.deepspeed_config,
        defaults.parallelism_config,
    )
    return {
        "distributed_type": config.distributed_type.value,
        "processes": int(args.num_processes),
        "machines": int(args.num_machines),
        "mixed_precision": args.mixed_precision,
        "use_fsdp": bool(args.use_fsdp),
        "reshard": fsdp.get("fsdp_reshard_after_forward"),
        "checkpointing": fsdp.get("fsdp_activation_checkpointing"),
        "degrees": [
            degrees.get(f"parallelism_config_{n}_size") for n in ("dp_replicate", "dp_shard", "tp")
        ],
        "stage": int(deep["zero_stage"]) if deep else None,
        "steps": deep.get("gradient_accumulation_steps"),
        "clip": deep.get("gradient_clipping"),
    }


def _hf_trainer(path: Path, ask: dict[str, Any]) -> dict[str, Any]:
    del ask
    from transformers import HfArgumentParser, TrainingArguments, training_args

    # A type is refused where the device has no units for it, and the plan's device is not here.
    training_args.is_torch_bf16_gpu_available = lambda: True
    (read,) = HfArgumentParser(TrainingArguments).parse_yaml_file(str(path))
    fsdp = read.fsdp_plugin_args or {}
    deep = read.deepspeed or {}
    return {
        "max_steps": read.max_steps,
        "micro_batch": read.per_device_train_batch_size,
        "steps": read.gradient_accumulation_steps,
        "lr": read.learning_rate,
        "betas": [read.adam_beta1, read.adam_beta2],
        "eps": read.adam_epsilon,
        "weight_decay": read.weight_decay,
        "clip": read.max_grad_norm,
        "warmup_steps": int(read.warmup_steps),
        "scheduler": str(getattr(read.lr_scheduler_type, "value", read.lr_scheduler_type)),
        "bf16": read.bf16,
        "fp16": read.fp16,
        "seed": read.seed,
        "checkpointing": bool(read.gradient_checkpointing or fsdp.get("activation_checkpointing")),
        "fsdp": bool(read.fsdp),
        "reshard": fsdp.get("reshard_after_forward"),
        "stage": deep["zero_optimization"]["stage"] if deep else None,
        "sync_each_batch": read.accelerator_config.gradient_accumulation_kwargs["sync_each_batch"],
    }


def _rows(read: Any) -> dict[str, Any]:
    """Return what a program on top of the Trainer read of the Trainer's own arguments."""
    return {
        "max_steps": read.max_steps,
        "micro_batch": read.per_device_train_batch_size,
        "steps": read.gradient_accumulation_steps,
        "lr": read.learning_rate,
        "betas": [read.adam_beta1, read.adam_beta2],
        "clip": read.max_grad_norm,
        "bf16": bool(read.bf16),
        "fp16": bool(read.fp16),
        "seed": read.seed,
        "fsdp": bool(read.fsdp),
    }


def _trl(path: Path, ask: dict[str, Any]) -> dict[str, Any]:
    del ask
    from transformers import training_args
    from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser

    training_args.is_torch_bf16_gpu_available = lambda: True  # as for the Trainer
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
    _, trainer, model = parser.parse_args_and_config(["--config", str(path)])
    fsdp = trainer.fsdp_plugin_args or {}
    checkpoints = trainer.gradient_checkpointing or fsdp.get("activation_checkpointing")
    return {
        **_rows(trainer),
        "model": model.model_name_or_path,
        "length": trainer.max_length,
        "rank": model.lora_r if model.use_peft else 0,
        "bits": 4 if model.load_in_4bit else 8 if model.load_in_8bit else 16,
        "checkpointing": bool(checkpoints),
    }


def _axolotl(path: Path, ask: dict[str, Any]) -> dict[str, Any]:
    del ask
    import yaml
    from axolotl.utils.schemas.config import AxolotlInputConfig

    content = yaml.safe_load(path.read_text())
    unknown = set(content) - set(AxolotlInputConfig.model_fields)
    if unknown:
        raise ValueError(f"it drops what it does not know: {sorted(unknown)}")
    read = AxolotlInputConfig(**content)
    return {
        "model": read.base_model,
        "length": read.sequence_len,
        "max_steps": read.max_steps,
        "micro_batch": read.micro_batch_size,
        "steps": read.gradient_accumulation_steps,
        "lr": read.learning_rate,
        "betas": [read.adam_beta1, read.adam_beta2],
        "clip": read.max_grad_norm,
        "bf16": bool(read.bf16 or read.bfloat16),
        "fp16": bool(read.fp16 or read.float16),
        "seed": read.seed,
        "fsdp": bool(read.fsdp_config),
        "rank": read.lora_r if read.adapter else 0,
        "bits": 4 if read.load_in_4bit else 8 if read.load_in_8bit else 16,
        "checkpointing": bool(read.gradient_checkpointing),
    }


def _llama_factory(path: Path, ask: dict[str, Any]) -> dict[str, Any]:
    del ask
    import yaml
    from llamafactory.hparams.parser import _parse_train_args
    from transformers import training_args

    training_args.is_torch_bf16_gpu_available = lambda: True  # as for the Trainer
    model, data, trainer, tuned, _ = _parse_train_args(yaml.safe_load(path.read_text()))
    return {
        **_rows(trainer),
        "model": model.model_name_or_path,
        "length": data.cutoff_len + bool(data.packing),  # packed rows are padded to a token more
        "stage": tuned.stage,
        "rank": tuned.lora_rank if tuned.finetuning_type == "lora" else 0,
        "bits": model.quantization_bit or 16,
        "checkpointing": not model.disable_gradient_checkpointing,
    }


def _torchtitan(path: Path, ask: dict[str, Any]) -> dict[str, Any]:
    del ask
    from torchtitan.config.manager import ConfigManager

    sys.path.insert(0, str(path.parent))
    read = ConfigManager().parse_args(["--module", path.stem, "--config", "planned"])
    model, training, spread = read.model_spec.model, read.training, read.parallelism
    group = read.optimizer.param_groups[-1].optimizer_kwargs
    return {
        "width": model.dim,
        "layers": len(model.layers),
        "vocabulary": model.vocab_size,
        "local_batch": training.local_batch_size,
        "global_batch": training.global_batch_size,
        "seq_len": training.seq_len,
        "clip": training.max_norm,
        "max_steps": training.steps,
        "types": [training.dtype, training.mixed_precision_param],
        "degrees": [
            spread.data_parallel_replicate_degree, spread.data_parallel_shard_degree,
            spread.tensor_parallel_degree, spread.expert_parallel_degree,
            spread.pipeline_parallel_degree,
        ],
        "reshard": spread.fsdp_reshard_after_forward,
        "lr": group["lr"],
        "betas": list(group["betas"]),
        "weight_decay": group["weight_decay"],
        "warmup_steps": read.lr_scheduler.warmup_steps,
        "seed": read.debug.seed,
        "checkpointing": "none" if read.activation_checkpoint is None
        else type(read.activation_checkpoint).__qualname__.split(".")[0],
    }  # fmt: skip


def _torchrun(path: Path, ask: dict[str, Any]) -> dict[str, Any]:
    del ask
    import shlex

    from torch.distributed.run import get_args_parser

    words = shlex.split(path.read_text().strip().splitlines()[-1])
    read = get_args_parser().parse_args(words[1:])
    return {
        "processes": int(read.nproc_per_node),
        "machines": int(read.nnodes.split(":")[0]),
        "program": [read.training_script, *read.training_script_args[:2]],
    }


def _slurm(path: Path, ask: dict[str, Any]) -> dict[str, Any]:
    del ask
    subprocess.run(["bash", "-n", str(path)], check=True)  # noqa: S603, S607 - fixed
    lines = [line.split() for line in path.read_text().splitlines()]
    asked = dict(
        words[1].removeprefix("--").partition("=")[::2]
        for words in lines
        if words[:1] == ["#SBATCH"]
    )
    return {"machines": int(asked["nodes"]), "gpus": int(asked.get("gpus-per-node", 0))}


PARSERS = {
    "deepspeed": _deepspeed,
    "accelerate": _accelerate,
    "hf-trainer": _hf_trainer,
    "torchtitan": _torchtitan,
    "trl": _trl,
    "axolotl": _axolotl,
    "llama-factory": _llama_factory,
    "torchrun": _torchrun,
    "slurm": _slurm,
}
PACKAGES = {
    "deepspeed": ("deepspeed", "torch"),
    "accelerate": ("accelerate", "torch"),
    "hf-trainer": ("transformers", "accelerate", "deepspeed", "torch"),
    "torchtitan": ("torchtitan", "torch"),
    "trl": ("trl", "transformers", "torch"),
    "axolotl": ("axolotl", "torch"),
    "llama-factory": ("llamafactory", "transformers", "torch"),
    "torchrun": ("torch",),
    "slurm": (),
}


def main() -> None:
    """Parse what is asked for."""
    target, folder = sys.argv[1], Path(sys.argv[2])
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("AXOLOTL_DO_NOT_TRACK", "1")
    told = []
    for ask in json.loads((folder / "ask.json").read_text()):
        importlib.invalidate_caches()
        try:
            values, complaint = PARSERS[target](folder / ask["file"], ask), ""
        except BaseException as error:  # noqa: BLE001 - a parser may exit; what it said is the row
            if os.environ.get("EXPORTERS_TRACE"):
                traceback.print_exc()
            values, complaint = {}, f"{type(error).__name__}: {error}"
        told.append({"values": values, "complaint": complaint})
    versions = [f"{name} {metadata.version(name)}" for name in PACKAGES[target]]
    (folder / "told.json").write_text(json.dumps({"versions": versions, "told": told}))


if __name__ == "__main__":
    main()
