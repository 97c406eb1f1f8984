"""Pre-training with FSDP2 x tensor parallel. torchrun --nnodes 2 --nproc-per-node 8 fsdp2_tp_qwen.py --tp 4"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

p = argparse.ArgumentParser()
p.add_argument("--tp", type=int, default=4)
p.add_argument("--dim", type=int, default=5120)
p.add_argument("--layers", type=int, default=64)
p.add_argument("--heads", type=int, default=40)
p.add_argument("--kv-heads", type=int, default=8)
p.add_argument("--ffn", type=int, default=27648)
p.add_argument("--vocab", type=int, default=152064)
p.add_argument("--seq", type=int, default=8192)
p.add_argument("--batch", type=int, default=1)
p.add_argument("--steps", type=int, default=1000)
p.add_argument("--no-ac", action="store_true")
a = p.parse_args()

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
world = dist.get_world_size()
mesh = init_device_mesh("cuda", (world // a.tp, a.tp), mesh_dim_names=("dp", "tp"))
HEAD = a.dim // a.heads

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(a.dim, a.heads * HEAD)
        self.wk = nn.Linear(a.dim, a.kv_heads * HEAD)
        self.wv = nn.Linear(a.dim, a.kv_heads * HEAD)
        self.wo = nn.Linear(a.heads * HEAD, a.dim, bias=False)

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(o.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(a.dim, a.ffn, bias=False)
        self.up = nn.Linear(a.dim, a.ffn, bias=False)
        self.down = nn.Linear(a.ffn, a.dim, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(a.dim), nn.RMSNorm(a.dim)
        self.attn, self.mlp = Attention(), MLP()

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(a.vocab, a.dim)
        self.layers = nn.ModuleList(Layer() for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.dim)
        self.head = nn.Linear(a.dim, a.vocab, bias=False)

    def forward(self, ids):
        x = self.emb(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


with torch.device("meta"):
    model = Model()
tp = mesh["tp"]
gather = lambda: PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
parallelize_module(model, tp, {
    "emb": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
})
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for i, layer in enumerate(model.layers):
    plan = {"n1": SequenceParallel(), "n2": SequenceParallel(), "attn": gather(), "mlp": gather()}
    plan |= {n: ColwiseParallel() for n in ("attn.wq", "attn.wk", "attn.wv", "mlp.gate", "mlp.up")}
    plan |= {n: RowwiseParallel(output_layouts=Shard(1)) for n in ("attn.wo", "mlp.down")}
    parallelize_module(layer, tp, plan)
    if not a.no_ac:
        model.layers[i] = layer = checkpoint_wrapper(layer)
    fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
fully_shard(model, mesh=mesh["dp"], mp_policy=policy)
model.to_empty(device="cuda")
for w in model.parameters():
    nn.init.normal_(w, std=0.02)

opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
for step in range(a.steps):
    ids = torch.randint(0, a.vocab, (a.batch, a.seq + 1), device="cuda")
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    if dist.get_rank() == 0 and step % 10 == 0:
        print(step, loss.item(), torch.cuda.max_memory_allocated() / 2**30, "GiB")
