"""Full fine-tuning of Qwen3 14B by FSDP2 on one node.

torchrun --nproc_per_node 8 fsdp2_qwen14b.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForCausalLM, Qwen3Config

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=1)
parser.add_argument("--seq-len", type=int, default=4096)
parser.add_argument("--layers", type=int, default=40)
parser.add_argument("--meta", action="store_true", help="build on the meta device and fill the shards afterwards")
args = parser.parse_args()

config = Qwen3Config(
    vocab_size=151936,
    hidden_size=5120,
    intermediate_size=17408,
    num_hidden_layers=args.layers,
    num_attention_heads=40,
    num_key_value_heads=8,
    head_dim=128,
    use_cache=False,
)

dist.init_process_group("nccl")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
mesh = init_device_mesh("cuda", (dist.get_world_size(),))

with torch.device("meta" if args.meta else device):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
if args.meta:
    model.to_empty(device=device)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
model.train()
for step in range(2):
    ids = torch.randint(0, 151643, (args.batch_size, args.seq_len), device=device)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(step, loss.item(), f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
dist.destroy_process_group()
