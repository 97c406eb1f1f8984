import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import AutoModel

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="intfloat/multilingual-e5-base")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--max-len", type=int, default=256)
args = parser.parse_args()

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)

model = AutoModel.from_pretrained(args.model).cuda()
model = DDP(model, device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
scaler = torch.amp.GradScaler("cuda")


def embed(ids, mask):
    h = model(input_ids=ids, attention_mask=mask).last_hidden_state
    m = mask.unsqueeze(-1)
    return F.normalize((h * m).sum(1) / m.sum(1), dim=-1)


for step in range(200):
    # query, then positive passage; pretokenized in the real run
    ids = torch.randint(5, 30000, (2 * args.batch_size, args.max_len), device="cuda")
    mask = torch.ones_like(ids)
    with torch.autocast("cuda", dtype=torch.float16):
        e = embed(ids, mask)
        q, d = e.chunk(2)
        loss = F.cross_entropy(q @ d.T / 0.02, torch.arange(len(q), device="cuda"))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if step % 20 == 0 and local_rank == 0:
        print(step, loss.item())
dist.destroy_process_group()
