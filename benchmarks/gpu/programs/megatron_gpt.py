"""Megatron-core's GPT by its quick start: a local layer spec, mock tokens, bf16, twelve layers."""

import os

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

os.environ.update(
    RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29605"
)
torch.cuda.set_device(0)
torch.distributed.init_process_group("nccl", world_size=1, rank=0)
parallel_state.initialize_model_parallel(1, 1)
model_parallel_cuda_manual_seed(123)

VOCAB, LENGTH, BATCH = 50304, 1024, 8
config = TransformerConfig(
    num_layers=12, hidden_size=1024, num_attention_heads=16, use_cpu_initialization=False,
    pipeline_dtype=torch.bfloat16, params_dtype=torch.bfloat16, bf16=True,
    bias_dropout_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False,
)  # fmt: skip
model = GPTModel(
    config=config, transformer_layer_spec=get_gpt_layer_local_spec(normalization="LayerNorm"),
    vocab_size=VOCAB, max_sequence_length=LENGTH,
).cuda()  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
positions = torch.arange(LENGTH, device="cuda").expand(BATCH, LENGTH)
mask = torch.tril(torch.ones(1, 1, LENGTH, LENGTH, device="cuda")) < 0.5
for step in range(4):
    data = torch.randint(VOCAB, (BATCH, LENGTH + 1), device="cuda")
    losses = model(data[:, :-1].contiguous(), positions, mask, labels=data[:, 1:].contiguous())
    loss = losses.float().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
torch.distributed.destroy_process_group()
