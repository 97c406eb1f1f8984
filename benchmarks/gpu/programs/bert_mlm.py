"""BERT-base as a masked language model on batches padded to their longest row, fp16 autocast."""

import random

import torch
from transformers import BertConfig, BertForMaskedLM, get_linear_schedule_with_warmup

torch.manual_seed(0)
random.seed(0)
config = BertConfig()
model = BertForMaskedLM(config).cuda().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
schedule = get_linear_schedule_with_warmup(optimizer, 2, 6)
scaler = torch.amp.GradScaler()
MASK = 103


def batch(size):
    lengths = [random.randint(32, 512) for _ in range(size)]
    ids = torch.zeros(size, max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(1000, config.vocab_size, (length,))
    masked = (torch.rand(ids.shape) < 0.15) & (ids > 0)
    labels = ids.masked_fill(~masked, -100)
    return ids.masked_fill(masked, MASK), (ids > 0).long(), labels


for step in range(6):
    ids, mask, labels = (t.cuda() for t in batch(48))
    with torch.autocast("cuda", torch.float16):
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    optimizer.zero_grad()
    print(step, loss.item())
