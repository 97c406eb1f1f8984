"""CLIP ViT-L/14 goes on with satellite pictures; the features of all GPUs are negatives for each."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as distnn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import CLIPModel

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="openai/clip-vit-large-patch14")
parser.add_argument("--batch-size", type=int, default=128, help="of each GPU")
parser.add_argument("--grad-checkpointing", action="store_true")
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

dist.init_process_group(backend="nccl")
rank, world = dist.get_rank(), dist.get_world_size()
local = int(os.environ.get("LOCAL_RANK", 0))
torch.cuda.set_device(local)
device = torch.device("cuda", local)

clip = CLIPModel.from_pretrained(args.model).to(device)
if args.grad_checkpointing:
    clip.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


class Towers(torch.nn.Module):
    def __init__(self, clip):
        super().__init__()
        self.clip = clip

    def forward(self, pixels, ids, mask):
        out = self.clip(pixel_values=pixels, input_ids=ids, attention_mask=mask)
        return out.image_embeds, out.text_embeds, self.clip.logit_scale.exp()


model = DDP(Towers(clip), device_ids=[local], gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-6, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)
scaler = torch.amp.GradScaler("cuda")

for step in range(args.steps):
    pixels = torch.randn(args.batch_size, 3, 224, 224, device=device)
    ids = torch.randint(0, 49405, (args.batch_size, 77), device=device)
    ids[:, -1] = 49407
    mask = torch.ones_like(ids)
    with torch.autocast("cuda", dtype=torch.float16):
        image, text, scale = model(pixels, ids, mask)
        all_image = torch.cat(distnn.all_gather(image), dim=0)
        all_text = torch.cat(distnn.all_gather(text), dim=0)
        labels = torch.arange(args.batch_size, device=device) + rank * args.batch_size
        loss = (F.cross_entropy(scale * image @ all_text.T, labels) + F.cross_entropy(scale * text @ all_image.T, labels)) / 2
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        clip.logit_scale.clamp_(0, 4.6052)
    if rank == 0:
        print(f"{step}: {loss.item():.4f}, {world * args.batch_size} pairs")
