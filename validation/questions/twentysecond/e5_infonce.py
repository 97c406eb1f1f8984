"""Contrastive fine-tuning of multilingual E5 for a product search: in-batch negatives, one hard negative each.

The larger the batch the better, so the only question is how large it can be.
"""

import argparse
import random

import torch
import torch.nn.functional as F
from transformers import AutoModel, AutoTokenizer

COLOURS = ["red", "black", "olive", "white", "petrol", "silver"]
THINGS = ["rain jacket", "hiking boot", "tent for two", "stove", "headlamp", "rope of 60 m", "sleeping bag"]


def triples(n):
    rng = random.Random(3)
    for _ in range(n):
        colour, other = rng.sample(COLOURS, 2)
        thing = rng.choice(THINGS)
        query = f"query: {colour} {thing} for winter"
        text = f"{thing}, very light, tested in the Alps, with a guarantee of five years. " * 12
        yield query, f"passage: {colour} {text}", f"passage: {other} {text}"


def mean_pool(hidden, mask):
    hidden = hidden.masked_fill(~mask[..., None].bool(), 0.0)
    return F.normalize(hidden.sum(1) / mask.sum(1)[..., None], dim=-1)


def encode(model, tokenizer, texts, length):
    batch = tokenizer(texts, max_length=length, padding="max_length", truncation=True, return_tensors="pt").to("cuda")
    out = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    return mean_pool(out.last_hidden_state, batch["attention_mask"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="intfloat/multilingual-e5-large")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--query-length", type=int, default=48)
    parser.add_argument("--passage-length", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--checkpointing", action="store_true")
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModel.from_pretrained(args.model).cuda()
    if args.checkpointing:
        model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    rows = list(triples(args.batch_size * args.steps))

    for step in range(args.steps):
        part = rows[step * args.batch_size : (step + 1) * args.batch_size]
        queries, positives, negatives = (list(column) for column in zip(*part))
        with torch.autocast("cuda", dtype=torch.bfloat16):
            q = encode(model, tokenizer, queries, args.query_length)
            d = encode(model, tokenizer, positives + negatives, args.passage_length)
            scores = q @ d.T / args.temperature
            loss = F.cross_entropy(scores, torch.arange(len(part), device="cuda"))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item())


if __name__ == "__main__":
    main()
