"""DPO of Qwen2.5 1.5B by hand: the policy in full, a frozen reference beside it."""

import argparse

import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM

MODEL = "Qwen/Qwen2.5-1.5B-Instruct"


def log_probability(model, ids, mask):
    logits = model(ids).logits[:, :-1].float()
    chosen = torch.gather(logits.log_softmax(-1), 2, ids[:, 1:, None]).squeeze(2)
    return (chosen * mask[:, 1:]).sum(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--max-length", type=int, default=1024)
    parser.add_argument("--beta", type=float, default=0.1)
    args = parser.parse_args()
    policy = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).cuda()
    reference = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).cuda().eval()
    policy.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-7)
    for step in range(3):
        shape = (2 * args.batch_size, args.max_length)
        ids = torch.randint(0, 150000, shape, device="cuda")
        mask = torch.ones(shape, device="cuda")
        with torch.no_grad():
            before = log_probability(reference, ids, mask)
        now = log_probability(policy, ids, mask)
        won, lost = (now - before).chunk(2)
        loss = -logsigmoid(args.beta * (won - lost)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item())


if __name__ == "__main__":
    main()
