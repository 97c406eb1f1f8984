# GRPO without a framework: sample a group per question, score, one policy gradient step.
# single GPU, policy in bf16, frozen reference beside it
import argparse
import re

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

ap = argparse.ArgumentParser()
ap.add_argument("--model", default="Qwen/Qwen2.5-1.5B-Instruct")
ap.add_argument("--group", type=int, default=8)
ap.add_argument("--questions", type=int, default=2)
ap.add_argument("--prompt-len", type=int, default=256)
ap.add_argument("--new-tokens", type=int, default=512)
ap.add_argument("--micro", type=int, default=4)
ap.add_argument("--beta", type=float, default=0.04)
ap.add_argument("--steps", type=int, default=200)
args = ap.parse_args()

tok = AutoTokenizer.from_pretrained(args.model, padding_side="left")
policy = AutoModelForCausalLM.from_pretrained(args.model, torch_dtype=torch.bfloat16).to("cuda")
ref = AutoModelForCausalLM.from_pretrained(args.model, torch_dtype=torch.bfloat16).to("cuda").eval()
ref.requires_grad_(False)
policy.gradient_checkpointing_enable()
optim = torch.optim.AdamW(policy.parameters(), lr=1e-6, weight_decay=0.0)

problems = [(f"What is {a} times {b}? Think step by step, end with #### and the number.", a * b)
            for a in range(11, 60) for b in range(11, 40)]


def logprobs(model, ids, mask, start):
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, start - 1 : -1]
    logp = F.log_softmax(logits.float(), dim=-1)
    return logp.gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)


def reward(text, answer):
    found = re.search(r"####\s*(-?\d+)", text)
    return 1.0 if found and int(found.group(1)) == answer else 0.0


for step in range(args.steps):
    batch = [problems[(step * args.questions + i) % len(problems)] for i in range(args.questions)]
    texts = [q for q, _ in batch for _ in range(args.group)]
    answers = [a for _, a in batch for _ in range(args.group)]
    enc = tok(texts, return_tensors="pt", padding="max_length", max_length=args.prompt_len, truncation=True).to("cuda")

    policy.eval()
    with torch.no_grad():
        ids = policy.generate(**enc, do_sample=True, temperature=1.0,
                              min_new_tokens=args.new_tokens, max_new_tokens=args.new_tokens,
                              pad_token_id=tok.eos_token_id)
    policy.train()
    start = enc["input_ids"].shape[1]
    mask = torch.cat([enc["attention_mask"], torch.ones_like(ids[:, start:])], dim=1)

    completions = tok.batch_decode(ids[:, start:], skip_special_tokens=True)
    r = torch.tensor([reward(c, a) for c, a in zip(completions, answers)], device="cuda").view(args.questions, args.group)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1)

    total = ids.shape[0]
    for i in range(0, total, args.micro):
        part = slice(i, i + args.micro)
        with torch.no_grad():
            ref_lp = logprobs(ref, ids[part], mask[part], start)
        lp = logprobs(policy, ids[part], mask[part], start)
        kl = torch.exp(ref_lp - lp) - (ref_lp - lp) - 1
        ratio = torch.exp(lp - lp.detach())
        loss = -(ratio * adv[part].unsqueeze(1) - args.beta * kl).mean()
        (loss * args.micro / total).backward()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.1)
    optim.step()
    optim.zero_grad(set_to_none=True)
    print(f"step {step} reward {r.mean().item():.3f} peak {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
