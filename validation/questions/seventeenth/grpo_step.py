"""The learner's half of GRPO. vLLM writes the completions on another card; this one only learns.

Eight completions of each of two prompts, at most 256 + 768 tokens, Qwen2.5 1.5B in full.
"""

import argparse

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="Qwen/Qwen2.5-1.5B-Instruct")
parser.add_argument("--prompts", type=int, default=2)
parser.add_argument("--group", type=int, default=8)
parser.add_argument("--prompt-length", type=int, default=256)
parser.add_argument("--completion-length", type=int, default=768)
parser.add_argument("--micro-batch", type=int, default=4)
parser.add_argument("--beta", type=float, default=0.04)
parser.add_argument("--clip", type=float, default=0.2)
parser.add_argument("--steps", type=int, default=2)
args = parser.parse_args()

device = "cuda"
policy = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).to(device)
policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
reference = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).to(device)
reference.requires_grad_(False).eval()
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, weight_decay=0.0)


def log_probabilities(model, ids):
    """Of the completion's tokens, each given what stands before it."""
    logits = model(input_ids=ids, use_cache=False).logits[:, args.prompt_length - 1 : -1]
    targets = ids[:, args.prompt_length :]
    return torch.gather(F.log_softmax(logits.float(), dim=-1), 2, targets[..., None]).squeeze(-1)


def rollouts():
    """What the server of completions sends: tokens, a mask and a reward of each."""
    rows = args.prompts * args.group
    length = args.prompt_length + args.completion_length
    ids = torch.randint(0, policy.config.vocab_size, (rows, length))
    mask = torch.ones(rows, args.completion_length)
    rewards = torch.randint(0, 2, (rows,)).float()
    return ids.to(device), mask.to(device), rewards.to(device)


for step in range(args.steps):
    ids, mask, rewards = rollouts()
    grouped = rewards.view(args.prompts, args.group)
    spread = grouped.std(dim=1, keepdim=True) + 1e-4
    advantages = ((grouped - grouped.mean(dim=1, keepdim=True)) / spread).view(-1, 1)

    with torch.no_grad():
        old = torch.cat([log_probabilities(policy, part) for part in ids.split(args.micro_batch)])
        ref = torch.cat(
            [log_probabilities(reference, part) for part in ids.split(args.micro_batch)]
        )

    policy.train()
    for start in range(0, len(ids), args.micro_batch):
        part = slice(start, start + args.micro_batch)
        new = log_probabilities(policy, ids[part])
        ratio = torch.exp(new - old[part])
        clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
        gain = torch.minimum(ratio * advantages[part], clipped * advantages[part])
        distance = torch.exp(ref[part] - new) - (ref[part] - new) - 1
        token_loss = -(gain - args.beta * distance)
        loss = (token_loss * mask[part]).sum() / mask.sum()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"step {step + 1}: loss {loss.item():.4f}")
