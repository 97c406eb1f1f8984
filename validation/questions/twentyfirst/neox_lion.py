"""A GPT-NeoX of 410M from nothing on Faroese, with Lion (Chen 2023) because it keeps one moment only."""

import argparse

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--micro-batch", type=int, default=8)
parser.add_argument("--accumulate", type=int, default=4)
parser.add_argument("--seq-len", type=int, default=2048)
parser.add_argument("--checkpoint", action="store_true", help="recompute blocks in backward")
parser.add_argument("--adamw", action="store_true", help="instead of Lion")
parser.add_argument("--steps", type=int, default=2)
args = parser.parse_args()

torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = True


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg = state["exp_avg"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                update = exp_avg.clone().mul_(beta1).add_(p.grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-group["lr"])
                exp_avg.mul_(beta2).add_(p.grad, alpha=1 - beta2)


config = GPTNeoXConfig(
    vocab_size=50304,
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    max_position_embeddings=args.seq_len,
    rotary_pct=0.25,
    use_cache=False,
)
model = GPTNeoXForCausalLM(config).cuda()
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
if args.checkpoint:
    model.gradient_checkpointing_enable()
model.train()

decay = [p for p in model.parameters() if p.dim() >= 2]
plain = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95)) if args.adamw else Lion(groups, lr=1e-4)

text = torch.randint(0, config.vocab_size, (4_000_000,))


def batch():
    starts = torch.randint(len(text) - args.seq_len, (args.micro_batch,))
    rows = torch.stack([text[start : start + args.seq_len] for start in starts.tolist()])
    return rows.pin_memory().cuda(non_blocking=True)


for step in range(args.steps):
    losses = 0.0
    for _ in range(args.accumulate):
        ids = batch()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss / args.accumulate
        loss.backward()
        losses += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(f"step {step}: loss {losses:.3f}, peak {peak:.2f} GiB")
