"""A torchtitan of TOML files (until early 2026) as it is, on rows of one word: a few steps.

Arguments: a folder that has a tokenizer and takes what it writes; how many stages there are; the
script, or the module behind ``-m``; then torchtitan's own. It parses its configuration, loads its
data set and makes its tokenizer itself: what they would download is stood in for, and what is saved
or logged is off. Where PyTorch has changed since in what it allocates, it is as it was then.
"""

import importlib
import os
import runpy
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import datasets  # type: ignore[import-untyped]
import torch
from torch.distributed import pipelining
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.pipelining import PipelineStage
from torch.utils import checkpoint

from brimful.errors import UnsupportedError
from brimful.programs.mock_rows import MOST_MICRO_BATCHES

_STEPS = 2
_ROWS, _WORDS = 256, 1 << 15
_BASE_TOKENS = 128_000
"""Of Llama 3's ``tokenizer.model``, without those that are reserved."""
_PIECES = 32_000
"""Of Llama 2's."""
_CONFIGS = ("torchtitan.config", "torchtitan.config_manager", "torchtrain.config_manager")
"""Where the parser was, the newest first."""
_SECTIONS = ("parallelism", "training", "experimental")
_SET: dict[str, tuple[tuple[str, Any], ...]] = {
    "training": (("steps", _STEPS),),
    "checkpoint": (("enable", False), ("enable_checkpoint", False)),
    "validation": (("enable", False), ("enabled", False)),
    "profiling": (("enable_profiling", False), ("enable_memory_snapshot", False)),
    "metrics": (("enable_tensorboard", False), ("enable_wandb", False)),
}
"""What is set, by section, where a version has it."""


def _changed(config: Any, folder: str) -> None:
    """Have a configuration run for a few steps without files."""
    for section, values in _SET.items():
        for name, value in values:
            _put(config, section, name, value)
    _put(config, "job", "dump_folder", folder)
    _put(config, "training", "dataset_path", None)
    is_newer = hasattr(getattr(config, "model", None), "hf_assets_path")
    _put(config, "model", "hf_assets_path", folder)
    _put(config, "model", "tokenizer_path", folder if is_newer else f"{folder}/tokenizer.model")


def _put(config: Any, section: str, name: str, value: Any) -> None:
    part = getattr(config, section, None)
    if hasattr(part, name):
        setattr(part, name, value)


def _degree(config: Any, name: str) -> int:
    """Return a degree of parallelism, which three sections have had."""
    sections = (getattr(config, section, None) for section in _SECTIONS)
    found = (getattr(section, f"{name}_parallel_degree", None) for section in sections)
    return int(next(filter(None, found), 1))


def _micro_batch(config: Any) -> int:
    """Return the rows that go through a pipeline at once; until 2025 their number was said."""
    section = getattr(config, "parallelism", None) or config.experimental
    num_rows = getattr(section, "pipeline_parallel_microbatch_size", None)
    if num_rows is not None:
        return int(num_rows)
    num = section.pipeline_parallel_microbatches or _degree(config, "pipeline")
    return int(config.training.batch_size // num)


def _few_batches(config: Any) -> None:
    """Leave a step at most two micro-batches, where a version accumulates them."""
    training = config.training
    asked = getattr(training, "global_batch_size", -1)
    if asked <= 0:
        return
    others = int(os.environ["WORLD_SIZE"])
    for name in ("tensor", "context", "pipeline"):
        others //= _degree(config, name)
    training.global_batch_size = min(asked, MOST_MICRO_BATCHES * training.local_batch_size * others)


def _parsing(parse: Callable[..., Any], folder: str, parsed: list[Any]) -> Callable[..., Any]:
    """Return a parser: of a manager that returns the configuration, or of one that is it."""

    def parse_args(manager: Any, *args: Any) -> Any:
        found = parse(manager, *(args or (sys.argv[1:],)))
        config = manager if found is None else found
        _changed(config, folder)
        _few_batches(config)
        parsed.append(config)
        return found

    return parse_args


def _load_dataset(*_: Any, **__: Any) -> Any:
    """Return rows of text, whatever data set is asked for."""
    return datasets.Dataset.from_dict({"text": ["a " * _WORDS] * _ROWS})


def _ranks(_path: str) -> dict[bytes, int]:
    """Return a vocabulary as large as Llama 3's: every byte, and words that no text has."""
    more = (b"\xff" + n.to_bytes(3, "big") for n in range(_BASE_TOKENS - 256))
    return {word: n for n, word in enumerate([*(bytes([n]) for n in range(256)), *more])}


class _Pieces:
    """A tokenizer as large as Llama 2's."""

    def __init__(self, **_: Any) -> None:
        """Read nothing."""

    def vocab_size(self) -> int:
        """Return the number of its pieces."""
        return _PIECES

    get_piece_size = vocab_size

    def bos_id(self) -> int:
        """Return what begins a text."""
        return 1

    def eos_id(self) -> int:
        """Return what ends a text."""
        return 2

    def pad_id(self) -> int:
        """Return that there is none."""
        return -1

    def encode(self, text: str) -> list[int]:
        """Return a piece for each word."""
        return [3] * len(text.split())


def _saves(policy: Callable[..., bool]) -> Any:
    """Return the contexts of a checkpoint that keeps what a policy says, as PyTorch 2.4 on has."""
    kept, again = checkpoint.CheckpointPolicy.MUST_SAVE, checkpoint.CheckpointPolicy.MUST_RECOMPUTE

    def decide(context: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        mode = "recompute" if context.is_recompute else "forward"
        return kept if policy(mode, func, *args, **kwargs) else again

    return checkpoint.create_selective_checkpoint_contexts(decide)


def _no_mask(*_: Any, **__: Any) -> Any:
    raise UnsupportedError(
        "FlexAttention beside context parallelism was another program then; leave one of them out"
    )


def _were_there() -> None:
    """Put back names that this PyTorch has no longer, and old torchtitans import."""
    for module, name, value in (
        ("torch.utils.checkpoint", "_pt2_selective_checkpoint_context_fn_gen", _saves),
        ("torch.distributed.tensor.experimental._attention", "create_cp_block_mask", _no_mask),
    ):
        where = importlib.import_module(module)
        if not hasattr(where, name):
            setattr(where, name, value)
    if importlib.util.find_spec("torchao"):
        kind: Any = importlib.import_module("torchao.float8.config").ScalingType
        if not hasattr(kind, "DELAYED"):
            kind.DELAYED = "delayed"  # which nothing is, as nothing can be asked for it


def _root_stays() -> None:
    """Let FSDP's root keep its parameters while the loss is computed, whatever it is told.

    So did PyTorch until June 2025 (pull request 154704). Since then torchtitan's root has no
    parameters: embedding and head are units of their own (its pull request 1094).
    """
    begin = FSDPState._lazy_init  # noqa: SLF001 - has no other name

    def lazy_init(state: Any) -> None:
        if state._is_root is None:  # noqa: SLF001 - as above
            state._auto_reshard_after_forward = True  # noqa: SLF001 - as above
        begin(state)

    FSDPState._lazy_init = lazy_init  # noqa: SLF001 - as above


def _recompute_what_is_new() -> None:
    """Let selective checkpoints compute again what they have not seen in the forward pass.

    PyTorch 2.13 refuses it, as it stores of each operation that it is not kept; before, a policy
    was asked. FSDP inside of a checkpoint, as around experts, gathers otherwise the second time.
    """
    mode: Any = checkpoint._CachedTorchDispatchMode  # noqa: SLF001 - has no other name
    again = mode.__torch_dispatch__

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        key = checkpoint._sac_storage_key(func, args)  # noqa: SLF001 - as above
        if func in checkpoint.SAC_IGNORED_OPS or self.func_counter[key] in self.storage[key]:
            return again(self, func, types, args, kwargs)
        return func(*args, **(kwargs or {}))

    mode.__torch_dispatch__ = dispatch


def _groups_of_a_mesh() -> None:
    """Let a mesh of several axes return all its groups, as it did in 2024."""
    one = DeviceMesh.get_group

    def get_group(mesh: Any, mesh_dim: Any = None) -> Any:
        every = mesh_dim is None and mesh.ndim > 1
        return mesh.get_all_groups() if every else one(mesh, mesh_dim)

    DeviceMesh.get_group = get_group


def _tell_stages(parsed: list[Any]) -> None:
    """Tell each stage of a pipeline what the one before sends: that runs in another process."""

    class Stage(PipelineStage):  # type: ignore[misc]  # torch is untyped to mypy
        def __init__(self, module: Any, index: int, *args: Any, **how: Any) -> None:
            config = parsed[-1]
            # With tensor parallelism blocks hand on the tokens of one device each.
            split = _degree(config, "context") * _degree(config, "tensor")
            shape = (_micro_batch(config), config.training.seq_len // split, module.model_args.dim)
            dtype = getattr(torch, config.training.mixed_precision_param)
            sent = torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)
            told = {"input_args": (sent,)} if index else {}
            super().__init__(module, index, *args, **how, **told)

    pipelining.PipelineStage = Stage


def _stand_in() -> None:
    """Stand in for what is downloaded."""
    datasets.load_dataset = _load_dataset
    if importlib.util.find_spec("tiktoken"):
        load: Any = importlib.import_module("tiktoken.load")
        load.load_tiktoken_bpe = _ranks
    pieces: Any = types.ModuleType("sentencepiece")
    pieces.SentencePieceProcessor = _Pieces
    sys.modules["sentencepiece"] = pieces
    time.sleep = lambda _: None  # for other processes, of which there are none


def main() -> None:
    """Train."""
    folder, num_stages, *program = sys.argv[1:]
    sys.path[:0] = [os.getcwd()]  # noqa: PTH109 - where python -m looks
    importlib.invalidate_caches()
    _were_there()
    _root_stays()
    _recompute_what_is_new()
    _groups_of_a_mesh()
    _stand_in()
    parsed: list[Any] = []
    if int(num_stages) > 1:
        _tell_stages(parsed)
    name = next(name for name in _CONFIGS if _exists(name))
    config = importlib.import_module(name)
    parser: Any = getattr(config, "ConfigManager", None) or config.JobConfig
    parser.parse_args = _parsing(parser.parse_args, folder, parsed)
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        runpy.run_path(program[0], run_name="__main__")


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


if __name__ == "__main__":
    main()
