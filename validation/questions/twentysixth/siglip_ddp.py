"""Image-text pairs with the sigmoid loss, 8 cards, DDP, embeddings gathered from everybody.

torchrun --nproc_per_node 8 siglip_ddp.py --per-gpu 512
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import SiglipTextConfig, SiglipTextModel, SiglipVisionConfig, SiglipVisionModel


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision = SiglipVisionModel(SiglipVisionConfig(
            hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16,
            image_size=256, patch_size=16, attn_implementation="sdpa"))
        self.text = SiglipTextModel(SiglipTextConfig(
            hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16,
            vocab_size=32000, max_position_embeddings=64, projection_size=1152, attn_implementation="sdpa"))
        self.scale = nn.Parameter(torch.tensor(2.3))
        self.bias = nn.Parameter(torch.tensor(-10.0))

    def forward(self, image, tokens):
        i = F.normalize(self.vision(pixel_values=image).pooler_output, dim=-1)
        t = F.normalize(self.text(input_ids=tokens).pooler_output, dim=-1)
        return i, t, self.scale.exp(), self.bias


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--per-gpu", type=int, default=512)
    p.add_argument("--checkpointing", action="store_true")
    args = p.parse_args()
    dist.init_process_group("nccl")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    model = TwoTowers().cuda()
    if args.checkpointing:
        model.vision.gradient_checkpointing_enable()
        model.text.gradient_checkpointing_enable()
    model = DDP(model, device_ids=[local], gradient_as_bucket_view=True, static_graph=True)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=1e-4, fused=True)
    for step in range(1000):
        image = torch.randn(args.per_gpu, 3, 256, 256, device="cuda", dtype=torch.bfloat16)
        tokens = torch.randint(0, 32000, (args.per_gpu, 64), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            i, t, scale, bias = model(image, tokens)
            every_i, every_t = torch.cat(all_gather(i.float())), torch.cat(all_gather(t.float()))
            logits = every_i @ every_t.t() * scale + bias
            sign = 2 * torch.eye(logits.shape[0], device="cuda") - 1
            loss = -F.logsigmoid(sign * logits).sum() / logits.shape[0]
        loss.backward()
        opt.step()
        opt.zero_grad()
        if rank == 0 and step % 10 == 0:
            print(step, loss.item(), flush=True)


main()
