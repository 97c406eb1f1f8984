# contrastive fine-tuning of a text embedder on (query, document) pairs, in-batch negatives
import sys

import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoTokenizer

NAME = "intfloat/multilingual-e5-large"
BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 256
QLEN, DLEN = 64, 384
TEMP = 0.02
EPOCHS = 1

tok = AutoTokenizer.from_pretrained(NAME)
model = AutoModel.from_pretrained(NAME).cuda()
model.train()


def mean_pool(hidden, mask):
    mask = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


def encode(enc):
    enc = {k: v.cuda(non_blocking=True) for k, v in enc.items()}
    out = model(**enc)
    return F.normalize(mean_pool(out.last_hidden_state, enc["attention_mask"]), dim=-1)


def pairs():
    try:
        with open("pairs.tsv", encoding="utf-8") as f:
            rows = [line.rstrip("\n").split("\t")[:2] for line in f]
    except FileNotFoundError:
        rows = [
            (f"what does section {i} say about deposits", f"Section {i}. " + "The deposit is returned after the tenant leaves. " * 60)
            for i in range(4 * BATCH)
        ]
    for i in range(0, len(rows) - BATCH + 1, BATCH):
        yield rows[i : i + BATCH]


no_decay = ("bias", "LayerNorm.weight")
groups = [
    {"params": [p for n, p in model.named_parameters() if not n.endswith(no_decay)], "weight_decay": 0.01},
    {"params": [p for n, p in model.named_parameters() if n.endswith(no_decay)], "weight_decay": 0.0},
]
opt = torch.optim.AdamW(groups, lr=2e-5)
scaler = torch.amp.GradScaler("cuda")

for epoch in range(EPOCHS):
    for step, rows in enumerate(pairs()):
        q = tok(["query: " + a for a, _ in rows], padding="max_length", truncation=True, max_length=QLEN, return_tensors="pt")
        d = tok(["passage: " + b for _, b in rows], padding="max_length", truncation=True, max_length=DLEN, return_tensors="pt")
        with torch.autocast("cuda", dtype=torch.float16):
            zq, zd = encode(q), encode(d)
            scores = zq @ zd.T / TEMP
            target = torch.arange(len(rows), device=scores.device)
            loss = (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        print("step", step, "loss", loss.item(), "mem", torch.cuda.max_memory_allocated() // 2**20, "MiB")
