"""BERT-large masked language modelling, as FlagPerf's bert_hf trains it: plain PyTorch, AdamW, eager attention."""

import argparse
import os

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForMaskedLM

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=12)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--amp", action="store_true")
parser.add_argument("--ddp", action="store_true")
args = parser.parse_args()

torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
rank = int(os.environ.get("LOCAL_RANK", 0))
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
if args.ddp:
    torch.distributed.init_process_group("nccl")

config = BertConfig(
    vocab_size=30522,
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
)
config._attn_implementation = "eager"
model = BertForMaskedLM(config)
model.to(device)
if args.bf16:
    model.to(torch.bfloat16)
if args.ddp:
    model = DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, foreach=False)
scaler = torch.amp.GradScaler("cuda") if args.amp else None


def batch():
    ids = torch.randint(1000, 30000, (args.batch, 512))
    labels = ids.clone()
    labels[:, 51:] = -100
    return ids.to(device), labels.to(device)


model.train()
for step in range(4):
    ids, labels = batch()
    optimizer.zero_grad()
    if scaler:
        with torch.autocast("cuda", torch.float16):
            loss = model(input_ids=ids, labels=labels).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()

model.eval()
with torch.no_grad():
    ids, labels = batch()
    output = model(input_ids=ids, labels=labels)
    output.logits.argmax(dim=-1)
print(torch.cuda.max_memory_reserved() / 2**30)
