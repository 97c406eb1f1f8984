"""Multilingual E5 large on our search logs: InfoNCE with the other passages of the batch."""

import argparse

import torch
import torch.nn.functional as F
from transformers import AutoModel

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="intfloat/multilingual-e5-large")
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--query-length", type=int, default=64)
parser.add_argument("--passage-length", type=int, default=512)
parser.add_argument("--temperature", type=float, default=0.02)
parser.add_argument("--checkpointing", action="store_true")
parser.add_argument("--steps", type=int, default=2)
args = parser.parse_args()

device = torch.device("cuda")
model = AutoModel.from_pretrained(args.model, add_pooling_layer=False).to(device)
if args.checkpointing:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)


def embed(ids):
    mask = torch.ones_like(ids)
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    mean = (hidden * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    return F.normalize(mean.float(), dim=-1)


def batch(length):
    return torch.randint(5, model.config.vocab_size, (args.batch_size, length), device=device)


for step in range(args.steps):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        queries = embed(batch(args.query_length))
        passages = embed(batch(args.passage_length))
    scores = queries @ passages.T / args.temperature
    loss = F.cross_entropy(scores, torch.arange(args.batch_size, device=device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step + 1}: {loss.item():.4f}")
