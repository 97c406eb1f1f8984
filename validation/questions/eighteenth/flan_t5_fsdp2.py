"""FLAN-T5 XL writes summaries of minutes. FSDP2, bf16, four small cards.

torchrun --nproc_per_node 4 flan_t5_fsdp2.py
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing, checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForSeq2SeqLM
from transformers.models.t5.modeling_t5 import T5Block

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="google/flan-t5-xl")
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--source-len", type=int, default=1024)
parser.add_argument("--target-len", type=int, default=256)
parser.add_argument("--ac", action="store_true")
parser.add_argument("--steps", type=int, default=2)
args = parser.parse_args()

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("cuda", (world,), mesh_dim_names=("dp",))

model = AutoModelForSeq2SeqLM.from_pretrained(args.model, dtype=torch.float32)
model.config.use_cache = False
if args.ac:
    apply_activation_checkpointing(
        model, checkpoint_wrapper_fn=checkpoint_wrapper, check_fn=lambda m: isinstance(m, T5Block)
    )
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for stack in (model.encoder, model.decoder):
    for block in stack.block:
        fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
model.train()
for step in range(args.steps):
    source = torch.randint(3, 32000, (args.batch_size, args.source_len), device="cuda")
    target = torch.randint(3, 32000, (args.batch_size, args.target_len), device="cuda")
    out = model(input_ids=source, attention_mask=torch.ones_like(source), labels=target)
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"step {step} loss {out.loss.item():.4f} max mem {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")
dist.destroy_process_group()
