"""Bradley-Terry reward model on pairs of answers. python reward_bt.py --pairs 4 --max-len 1536"""
import argparse
import json
import math
import os
import random

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_cosine_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="Qwen/Qwen2.5-3B-Instruct")
parser.add_argument("--data", default="pairs.jsonl")
parser.add_argument("--pairs", type=int, default=4, help="pairs per forward")
parser.add_argument("--max-len", type=int, default=1536)
parser.add_argument("--accum", type=int, default=8)
parser.add_argument("--lr", type=float, default=9e-6)
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--center", type=float, default=0.01)
args = parser.parse_args()

torch.manual_seed(7)
device = "cuda"
tok = AutoTokenizer.from_pretrained(args.model)
if tok.pad_token is None:
    tok.pad_token = tok.eos_token


class Pairs(Dataset):
    def __init__(self, path):
        if os.path.exists(path):
            with open(path) as f:
                self.rows = [json.loads(line) for line in f]
        else:  # a smoke test without data
            rnd = random.Random(0)
            words = "the cat sat on a mat and looked at seven green birds for hours".split()
            text = lambda n: " ".join(rnd.choice(words) for _ in range(n))
            self.rows = [
                {"prompt": text(200), "chosen": text(2000), "rejected": text(1800)} for _ in range(256)
            ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        r = self.rows[i]
        return r["prompt"] + "\n" + r["chosen"], r["prompt"] + "\n" + r["rejected"]


def collate(batch):
    texts = [c for c, _ in batch] + [r for _, r in batch]  # chosen first, then rejected
    return tok(texts, padding="max_length", truncation=True, max_length=args.max_len, return_tensors="pt")


loader = DataLoader(Pairs(args.data), batch_size=args.pairs, shuffle=True, drop_last=True, collate_fn=collate)

model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=1, torch_dtype=torch.bfloat16)
model.config.pad_token_id = tok.pad_token_id
model.config.use_cache = False
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.to(device)
model.train()

optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0)
scheduler = get_cosine_schedule_with_warmup(optimizer, int(0.03 * args.steps), args.steps)

step = 0
micro = 0
while step < args.steps:
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        rewards = model(**batch).logits.squeeze(-1).float()
        chosen, rejected = rewards.chunk(2)
        loss = -F.logsigmoid(chosen - rejected).mean() + args.center * (chosen + rejected).pow(2).mean()
        (loss / args.accum).backward()
        micro += 1
        if micro % args.accum:
            continue
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 10 == 0:
            acc = (chosen > rejected).float().mean().item()
            print(f"{step:5d} loss {loss.item():.4f} acc {acc:.2f} norm {float(norm):.2f}")
        if step >= args.steps:
            break
model.save_pretrained("rm-out")
