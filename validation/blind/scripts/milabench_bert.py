"""BERT-base masked language modelling as milabench's description says: Adam, gradients never zeroed."""

import argparse

import torch
from transformers import BertConfig, BertForMaskedLM

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--precision", choices=["fp32", "tf32", "fp16"], default="fp32")
args = parser.parse_args()

torch.backends.cuda.matmul.allow_tf32 = args.precision == "tf32"
torch.backends.cudnn.allow_tf32 = args.precision == "tf32"
half = args.precision == "fp16"
config = BertConfig()
model = BertForMaskedLM(config).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", enabled=half)

model.train()
for step in range(4):
    ids = torch.randint(0, config.vocab_size, (args.batch, 512)).cuda()
    labels = torch.randint(0, config.vocab_size, (args.batch, 512)).cuda()
    with torch.autocast("cuda", torch.float16, enabled=half):
        loss = model(input_ids=ids, labels=labels).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
