"""GRPO in sixty lines: Qwen3 1.7B writes 8 answers to each of 4 questions, and learns from the better ones."""
import copy

import torch
from transformers import AutoConfig, AutoModelForCausalLM

NAME, QUESTIONS, ANSWERS, PROMPT, NEW = "Qwen/Qwen3-1.7B", 4, 8, 256, 512
MICRO, CLIP, BETA = 8, 0.2, 0.02

policy = AutoModelForCausalLM.from_pretrained(NAME, dtype=torch.bfloat16).to("cuda")
reference = copy.deepcopy(policy).eval().requires_grad_(False)
policy.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, weight_decay=0.0)
vocab = policy.config.vocab_size


def logprobs(model, ids):
    logits = model(ids, use_cache=False).logits[:, PROMPT - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(-1, ids[:, PROMPT:, None]).squeeze(-1)


for step in range(20):
    prompts = torch.randint(0, vocab, (QUESTIONS, PROMPT), device="cuda").repeat_interleave(ANSWERS, 0)
    policy.eval()
    with torch.no_grad():
        ids = policy.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=NEW,
                              min_new_tokens=NEW, do_sample=True, temperature=1.0, pad_token_id=0)
    policy.train()
    rewards = (ids[:, PROMPT:] % 2 == 0).float().mean(-1).view(QUESTIONS, ANSWERS)
    advantages = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    with torch.no_grad():
        old = torch.cat([logprobs(policy, part) for part in ids.split(MICRO)])
        ref = torch.cat([logprobs(reference, part) for part in ids.split(MICRO)])
    total = 0.0
    for i in range(0, len(ids), MICRO):
        now = logprobs(policy, ids[i : i + MICRO])
        ratio = torch.exp(now - old[i : i + MICRO])
        a = advantages[i : i + MICRO, None]
        gain = torch.minimum(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a)
        gap = ref[i : i + MICRO] - now
        kl = torch.exp(gap) - gap - 1
        loss = -(gain - BETA * kl).mean() * MICRO / len(ids)
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, "loss", total, "reward", rewards.mean().item())
