"""Adapters on sharded models: AnswerDotAI's fsdp_qlora of March 2024, rebuilt as its rank 0.

Owns what its ``train.py`` does around a model: loading layer by layer through the GPU, PEFT's
adapters in bf16, one FSDP1 unit per adapter matrix, per block and for the rest, re-entrant
checkpoints inside the units, the loop. The model is in ``llama_2024``, the layers in ``hf_linear``.

What was published is the allocator's peak reserved since the model was wrapped; what wrapping
reserved is still held then, so the replay begins with loading.

Run ``python validation/published/fsdp_qlora.py --all`` or ``--row ID``, with ``--json`` for all
fields.
"""

import functools
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from fsdp1_moves import pretending
from hf_decoder import Shape
from hf_linear import Linear4bit, Lora, LoraLinear
from llama_2024 import Block, CausalLM, Mask
from row import Row, Simulated, compared_bytes, main, read_rows, summarise
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import CPUOffload, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817
from torch.distributed.fsdp.wrap import (
    _or_policy,
    lambda_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

from brimful import pretend
from brimful.errors import InputError

ROWS = Path(__file__).parent / "rows" / "fsdp_qlora.json"
NUM_STEPS = 2
CODES = 256
DTYPE = torch.bfloat16
LORA = Lora(
    rank=64,
    alpha=16,
    dropout=0.1,
    targets=("k_proj", "q_proj", "v_proj", "up_proj", "down_proj", "gate_proj"),
)
SHAPES = {
    "llama-2-7b": Shape(
        width=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
        ffn_width=11008,
        vocab=32000,
        max_positions=4096,
    ),
    "llama-2-70b": Shape(
        width=8192,
        num_layers=80,
        num_heads=64,
        num_kv_heads=8,
        ffn_width=28672,
        vocab=32000,
        max_positions=4096,
    ),
    "yi-34b": Shape(
        width=7168,
        num_layers=60,
        num_heads=56,
        num_kv_heads=8,
        ffn_width=20480,
        vocab=64000,
        max_positions=4096,
    ),
    "mistral-7b-v0.2": Shape(
        width=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        ffn_width=14336,
        vocab=32000,
        max_positions=32768,
    ),
}
"""From the configuration files of the models."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fine-tune.

    Attributes:
        model: Name of a shape.
        quantized: Whether the frozen weights are in 4 bits, stored as bf16.
        batch: Samples per step and GPU.
        seq_len: Tokens per sample.
        strategy: How FSDP shards; ``ddp`` keeps everything whole.
        offload: Whether parameters, gradients and optimizer live on the host.
        world_size: Number of GPUs.
        mask: Whether the model writes its causal mask out.
        gpu: Whose kernels and workspaces.
    """

    model: str
    quantized: bool
    batch: int
    seq_len: int
    strategy: Literal["full_shard", "ddp"]
    offload: bool
    world_size: int
    mask: Mask
    gpu: str


STRATEGIES = {"full_shard": ShardingStrategy.FULL_SHARD, "ddp": ShardingStrategy.NO_SHARD}


def build(config: Config, device: torch.device) -> nn.Module:
    """Load the model to the host, its linear layers through the GPU if they are quantized.

    Args:
        config: The fine-tune.
        device: The GPU.
    """
    with torch.device("cpu"):
        model = CausalLM(SHAPES[config.model], mask=config.mask)
    model.requires_grad_(False)
    # A quantized model is made first and filled with bf16 weights then: its buffers stay fp32.
    tensors = [*model.parameters(), *([] if config.quantized else model.buffers())]
    for tensor in tensors:
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(DTYPE)
    if config.quantized:
        codes = torch.empty(CODES, dtype=torch.float32, device=device)
        _quantize(model.model, codes, device)
        torch.get_device_module(device).empty_cache()
    _add_adapters(model.model)
    return model


def _quantize(model: nn.Module, codes: Tensor, device: torch.device) -> None:
    """Pack each linear layer on the GPU; the weight goes back to the host, its scales stay."""
    for parent, name, layer in _linears(model):
        layer.weight = _frozen(layer.weight.detach().to(device))
        packed = Linear4bit(layer, codes=codes, keeps_input=True)
        # The storage type is that of the other parameters, for FSDP joins them in one tensor.
        packed.weight = _frozen(packed.weight.detach().flatten().view(DTYPE).to("cpu"))
        layer.weight = None
        packed.compute_dtype, packed.is_compute_dtype_set = DTYPE, True
        setattr(parent, name, packed)


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def _add_adapters(model: nn.Module) -> None:
    for parent, name, layer in _linears(model):
        if name in LORA.targets:
            setattr(parent, name, LoraLinear(layer, LORA, dtype=DTYPE))


def _linears(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, (nn.Linear, Linear4bit))
    ]


def wrap(config: Config, model: nn.Module, device: torch.device) -> nn.Module:
    """Shard the model and checkpoint its blocks.

    Args:
        config: The fine-tune.
        model: From ``build``.
        device: The GPU.
    """
    policies = [
        functools.partial(lambda_auto_wrap_policy, lambda_fn=_is_adapter_matrix),
        functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
    ]
    wrapped = FSDP(
        model,
        sharding_strategy=STRATEGIES[config.strategy],
        auto_wrap_policy=functools.partial(_or_policy, policies=policies),
        use_orig_params=False,
        cpu_offload=CPUOffload(offload_params=True) if config.offload else None,
        limit_all_gathers=True,
        device_id=device,
        sync_module_states=True,
    )
    model.model.embed_tokens.register_forward_hook(_require_grad)
    apply_activation_checkpointing(
        wrapped,
        checkpoint_wrapper_fn=functools.partial(
            checkpoint_wrapper, checkpoint_impl=CheckpointImpl.REENTRANT
        ),
        check_fn=lambda module: isinstance(module, Block),
    )
    return wrapped


def _is_adapter_matrix(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return not list(module.children()) and weight is not None and weight.requires_grad


def _require_grad(_module: nn.Module, _args: Any, output: Tensor) -> None:
    output.requires_grad_(True)


def train(config: Config, model: nn.Module, device: torch.device) -> None:
    """Take steps as ``train.py`` does; the output stays bound until the step is over.

    Args:
        config: The fine-tune.
        model: From ``wrap``.
        device: The GPU.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-5, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1
    )
    model.train()
    ddp_loss = torch.zeros(2, device=device)
    for _ in range(NUM_STEPS):
        batch = [
            torch.empty((config.batch, config.seq_len), dtype=torch.int64, device=device)
            for _ in range(2)
        ]
        output = model(*batch)
        del batch
        loss = output[0]
        loss = loss / 1
        loss.backward()
        torch.get_device_module(device).synchronize()
        optimizer.step()
        optimizer.zero_grad()
        output = None
        loss = None
    del ddp_loss, output, loss


def simulate(row: Row[Config]) -> Simulated:
    """Run a row's program on the pretend GPU.

    Args:
        row: What was published.

    Raises:
        InputError: The row offloads its parameters.
    """
    config = row.config
    if config.offload:
        raise InputError(
            "FSDP1's offload sets the data of a parameter on one device to a tensor on another, "
            "which fake tensors refuse; use a row without offload"
        )
    with (
        pretend.gpu(config.gpu, world_size=config.world_size, says_cuda=False) as run,
        pretending(run.tape),
    ):
        device = torch.device("gpu:0")
        model = wrap(config, build(config, device), device)
        run.tape.mark()
        train(config, model, device)
        run.tape.mark()
        recording = run.recording()
    start, end = recording.marks.tolist()[-2:]
    return summarise(recording, start=start, end=end)


if __name__ == "__main__":
    sys.exit(main(read_rows(ROWS, Config), simulate, compared_bytes))
