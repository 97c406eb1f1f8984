"""FSDP1 on one device, as in PyTorch's tutorial: wrapped by decoder layer, bf16, checkpointed."""

import functools
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

torch.manual_seed(0)
torch.cuda.set_device(0)
store = tempfile.mktemp()
dist.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)
config = LlamaConfig(
    vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=16,
    num_attention_heads=32, num_key_value_heads=4, use_cache=False,
)  # fmt: skip
model = FullyShardedDataParallel(
    LlamaForCausalLM(config),
    auto_wrap_policy=functools.partial(
        transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer}
    ),
    mixed_precision=MixedPrecision(
        param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16
    ),
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    device_id=torch.cuda.current_device(),
    limit_all_gathers=True,
)
apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, LlamaDecoderLayer))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(4):
    ids = torch.randint(32000, (4, 2048), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
dist.destroy_process_group()
