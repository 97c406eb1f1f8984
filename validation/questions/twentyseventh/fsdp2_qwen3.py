"""torchrun --nnodes 2 --nproc-per-node 8 fsdp2_qwen3.py: Qwen3 14B, all weights, FSDP2 by hand."""
import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM, Qwen3Config

parser = argparse.ArgumentParser()
parser.add_argument("--seq-len", type=int, default=8192)
parser.add_argument("--micro", type=int, default=1)
parser.add_argument("--accumulate", type=int, default=4)
parser.add_argument("--ac-every", type=int, default=1, help="recompute every so many blocks, 0: none")
args = parser.parse_args()

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (dist.get_world_size(),))

config = Qwen3Config(
    vocab_size=151936, hidden_size=5120, intermediate_size=17408, num_hidden_layers=40, num_attention_heads=40,
    num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, rope_theta=1e6, tie_word_embeddings=False,
    use_cache=False,
)
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)

policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for i, layer in enumerate(model.model.layers):
    if args.ac_every and i % args.ac_every == 0:
        layer = model.model.layers[i] = checkpoint_wrapper(layer)
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cuda")
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.02)
for module in model.modules():
    if hasattr(module, "inv_freq"):
        half = config.head_dim // 2
        module.inv_freq = 1.0 / (1e6 ** (torch.arange(half, device="cuda").float() / half))

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), fused=True)
for step in range(4):
    for micro in range(args.accumulate):
        model.set_requires_gradient_sync(micro == args.accumulate - 1)
        ids = torch.randint(0, config.vocab_size, (args.micro, args.seq_len), device="cuda")
        loss = model(input_ids=ids, labels=ids).loss / args.accumulate
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print("step", step, loss.item(), torch.cuda.max_memory_allocated() / 2**30)
dist.destroy_process_group()
