"""torchtitan's own ``torchtitan.train`` on rows of zeros: a few steps that read and save nothing.

Arguments: a folder for what it writes, which has a tokenizer and may have a configuration; how many
stages of a pipeline its world has; then torchtitan's own. The configuration is parsed by
torchtitan; what is replaced in it are the rows, the tokenizer, and what is saved or logged.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import distributed_c10d
from torch.distributed.pipelining import schedules
from torchtitan import train, trainer
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims, pipeline_parallel
from torchtitan.hf_datasets import text_datasets

from brimful.errors import InputError, UnsupportedError
from brimful.programs.mock_rows import MOST_MICRO_BATCHES

_STEPS = 2
_OF_TEXT = tuple(
    kind.Config
    for name, kind in vars(text_datasets).items()
    if name.endswith("DataLoader") and hasattr(kind, "Config")
)
"""Configurations of loaders whose rows are tokens, positions and labels."""


class _Rows(BaseDataLoader):  # type: ignore[misc]  # torchtitan is untyped to mypy
    """As many rows as are asked for, each one document as long as a row is."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]  # as above
        """Has nothing to say."""

    def __init__(self, config: Config, *, seq_len: int, local_batch_size: int, **_: Any) -> None:
        del config
        self._shape = (local_batch_size, seq_len)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        num_rows, seq_len = self._shape
        while True:
            tokens = torch.zeros(self._shape, dtype=torch.long)
            positions = torch.arange(seq_len).repeat(num_rows, 1)
            yield {"input": tokens, "positions": positions}, tokens

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: every row is like every other."""
        return {}

    def load_state_dict(self, _state: dict[str, Any]) -> None:
        """Load nothing."""


def _changed(parse: Callable[..., Any], folder: str, num_stages: int) -> Callable[..., Any]:
    """Return torchtitan's parser, whose configuration is run for a few steps without files."""

    def parse_args(manager: Any, args: list[str] | None = None) -> Any:
        config = parse(manager, args)
        _check(config, num_stages)
        if not hasattr(torch.distributed, "set_timeout"):
            _for_this_torch(config)
        if num_stages > 1:
            pipeline_parallel.PipelineStage = _stage_told(config)
        config.training.steps = _STEPS
        config.training.global_batch_size = _global_batch(config)
        config.lr_scheduler.warmup_steps = min(config.lr_scheduler.warmup_steps, _STEPS)
        config.dataloader = _Rows.Config()
        config.hf_assets_path = config.dump_folder = folder
        config.checkpoint.enable = config.validator.enable = False
        config.profiler.enable_profiling = config.profiler.enable_memory_snapshot = False
        config.metrics.enable_tensorboard = config.metrics.enable_wandb = False
        return config

    return parse_args


def _check(config: Any, num_stages: int) -> None:
    if not isinstance(config.dataloader, _OF_TEXT):
        kind = type(config.dataloader).__qualname__
        raise UnsupportedError(f"rows of {kind} are not made by this version; use a loader of text")
    if not config.training.disable_cuda_graphs:
        raise UnsupportedError(
            "torchtitan's CUDA graphs keep memory pools of their own and are not simulated; say "
            "--training.disable_cuda_graphs in the command line, for the run too"
        )
    degree = config.parallelism.pipeline_parallel_degree
    if degree != num_stages:
        raise InputError(
            f"the configuration has {degree} stages, and {num_stages} were asked for; say "
            f"--parallelism.pipeline_parallel_degree {degree} in the command line"
        )


def _for_this_torch(config: Any) -> None:
    """Stand in for what torchtitan 0.3 finds in PyTorch from 2.14 on, and not in 2.13.

    FSDP of 2.13 reads no types of ``spmd_types``; DTensors on the axes of the model shard alike.
    Schedules of 2.13 cut a batch themselves, and take no micro-batches.
    """
    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        kind.step = _step_of_micro_batches
    torch.distributed.set_timeout = distributed_c10d._set_pg_timeout  # noqa: SLF001 - its name there
    if config.parallelism.spmd_backend == "spmd_types":
        config.parallelism.spmd_backend = "partial_dtensor"


def _stage_told(config: Any) -> Callable[..., Any]:
    """Return what makes a stage, told what the one before sends, which runs in another process."""
    from torchtitan.config import TORCH_DTYPE_MAP

    parallelism, training = config.parallelism, config.training
    if parallelism.tensor_parallel_degree > 1:
        raise UnsupportedError(
            "stages with tensor parallelism send each other shards, and what torchtitan's send is "
            "not known here; use a tensor_parallel_degree or a pipeline_parallel_degree of 1"
        )
    num_rows, seq_len = parallelism.pipeline_parallel_microbatch_size, training.seq_len
    shape = (num_rows, seq_len // parallelism.context_parallel_degree, config.model_spec.model.dim)
    dtype = TORCH_DTYPE_MAP[training.mixed_precision_param]
    make = pipeline_parallel.PipelineStage

    def stage(module: Any, index: int, *args: Any, **how: Any) -> Any:
        sent = torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
        return make(module, index, *args, **how, **({"input_args": (sent,)} if index else {}))

    return stage


def _step_of_micro_batches(
    schedule: Any, *, arg_mbs: Any, kwarg_mbs: Any, target_mbs: Any, **how: Any
) -> None:
    """Run a schedule over micro-batches that have been cut already."""
    for stage in getattr(schedule, "_stages", None) or [schedule._stage]:  # noqa: SLF001
        stage.has_backward = schedule._has_backward  # noqa: SLF001
        stage.clear_runtime_states()
    schedule._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, **how)  # noqa: SLF001


def _global_batch(config: Any) -> int:
    """Return rows of a step: of at most two micro-batches, where a pipeline's are one."""
    dims: Any = ParallelDims.from_config(config.parallelism, int(os.environ["WORLD_SIZE"]))
    each: int = config.training.local_batch_size * dims.dp_replicate * dims.dp_shard
    asked: int = config.training.global_batch_size
    return min(asked, MOST_MICRO_BATCHES * each) if asked > 0 else each


def main() -> None:
    """Train."""
    folder, num_stages, *arguments = sys.argv[1:]
    sys.argv = [sys.argv[0], *arguments]
    sys.path[:0] = [folder, os.getcwd()]  # noqa: PTH109 - where python -m looks
    importlib.invalidate_caches()
    ConfigManager.parse_args = _changed(ConfigManager.parse_args, folder, int(num_stages))
    trainer.time.sleep = lambda _: None  # for other processes, of which there are none
    train.main()


if __name__ == "__main__":
    main()
