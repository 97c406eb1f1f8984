"""Full fine-tuning of a 14B by FSDP2, started by torchrun on two nodes: every block a unit, bf16 compute, fp32 masters."""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from transformers import AutoConfig, AutoModelForCausalLM


class Packed(Dataset):
    """Rows of exactly seq_len tokens; here of random ones."""

    def __init__(self, vocab, seq_len, rows):
        g = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, vocab, (rows, seq_len), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i]


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="Qwen/Qwen3-14B")
    p.add_argument("--seq-len", type=int, default=8192)
    p.add_argument("--micro-batch", type=int, default=1)
    p.add_argument("--accum", type=int, default=4)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--lr", type=float, default=1e-5)
    p.add_argument("--cpu-offload", action="store_true")
    p.add_argument("--no-ac", action="store_true")
    return p.parse_args()


def main():
    args = parse()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp",))

    config = AutoConfig.from_pretrained(args.model)
    config.use_cache = False
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    block_class = type(model.model.layers[0])
    if not args.no_ac:
        apply_activation_checkpointing(
            model,
            checkpoint_wrapper_fn=lambda m: checkpoint_wrapper(m, checkpoint_impl=CheckpointImpl.NO_REENTRANT),
            check_fn=lambda m: isinstance(m, block_class),
        )

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy() if args.cpu_offload else OffloadPolicy()
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)
    model.to_empty(device="cpu" if args.cpu_offload else "cuda")
    with torch.no_grad():  # the real weights are read by dcp.load here
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
        model.model.rotary_emb = type(model.model.rotary_emb)(config=config).cuda()

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), fused=True)
    data = Packed(config.vocab_size, args.seq_len, args.steps * args.accum * args.micro_batch * dist.get_world_size())
    loader = DataLoader(data, batch_size=args.micro_batch, sampler=DistributedSampler(data))

    model.train()
    for i, ids in enumerate(loader):
        last = (i + 1) % args.accum == 0
        model.set_requires_gradient_sync(last)
        ids = ids.cuda(non_blocking=True)
        loss = model(input_ids=ids, labels=ids).loss / args.accum
        loss.backward()
        if last:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if dist.get_rank() == 0:
                peak = torch.cuda.max_memory_allocated() / 2**30
                print(f"step {(i + 1) // args.accum} loss {loss.item() * args.accum:.3f} peak {peak:.1f} GiB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
