"""Two towers for a shop: 40 million articles, 25 million customers, in-batch negatives."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, rows, dim, out, sparse):
        super().__init__()
        self.table = nn.Embedding(rows, dim, sparse=sparse)
        self.mlp = nn.Sequential(nn.Linear(dim, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, out))

    def forward(self, ids):
        return F.normalize(self.mlp(self.table(ids).mean(dim=1)), dim=-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16384)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--sparse", action="store_true")
    args = parser.parse_args()
    customers = Tower(25_000_000, args.dim, 128, args.sparse).cuda()
    articles = Tower(40_000_000, args.dim, 128, args.sparse).cuda()
    towers = nn.ModuleList([customers, articles])
    if args.sparse:
        tables = [customers.table.weight, articles.table.weight]
        optimizers = [
            torch.optim.SparseAdam(tables, lr=1e-3),
            torch.optim.AdamW([*customers.mlp.parameters(), *articles.mlp.parameters()], lr=1e-3),
        ]
    else:
        optimizers = [torch.optim.Adam(towers.parameters(), lr=1e-3)]
    running = 0
    for step in range(5):
        who = torch.randint(0, 25_000_000, (args.batch_size, 1), device="cuda")
        what = torch.randint(0, 40_000_000, (args.batch_size, 20), device="cuda")
        scores = customers(who) @ articles(what).T / 0.07
        loss = F.cross_entropy(scores, torch.arange(args.batch_size, device="cuda"))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        running = running + loss
        print(step, running.item() / (step + 1))


if __name__ == "__main__":
    main()
