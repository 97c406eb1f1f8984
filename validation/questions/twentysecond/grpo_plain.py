"""GRPO in a hundred lines: sample a group, score it by a rule, push up what beat the group's mean. No trl, no vLLM."""

import argparse
import re

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def question(i):
    a, b = 11 + 7 * i % 89, 3 + 5 * i % 97
    return f"What is {a} times {b}? Think first, then write 'Answer: NUMBER'.", a * b


def reward(text, truth):
    found = re.search(r"Answer:\s*(-?\d+)", text)
    if found is None:
        return 0.0
    return 1.0 if int(found.group(1)) == truth else 0.1


def token_logps(model, ids, mask, prompt_len):
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, prompt_len - 1 : -1]
    targets = ids[:, prompt_len:]
    return torch.log_softmax(logits.float(), -1).gather(-1, targets[..., None]).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=384)
    parser.add_argument("--beta", type=float, default=0.02)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    policy = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).to("cuda")
    reference = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).to("cuda").eval()
    reference.requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)

    for step in range(args.steps):
        pairs = [question(step * args.prompts + k) for k in range(args.prompts)]
        texts = [
            tokenizer.apply_chat_template([{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True)
            for q, _ in pairs
        ]
        inputs = tokenizer(texts, return_tensors="pt", padding=True).to("cuda")
        prompt_len = inputs["input_ids"].shape[1]

        policy.eval()
        with torch.no_grad():
            ids = policy.generate(
                **inputs, do_sample=True, temperature=1.0, max_new_tokens=args.new_tokens, num_return_sequences=args.group
            )
        completions = tokenizer.batch_decode(ids[:, prompt_len:], skip_special_tokens=True)
        truths = [truth for _, truth in pairs for _ in range(args.group)]
        rewards = torch.tensor([reward(c, t) for c, t in zip(completions, truths)], device="cuda")
        groups = rewards.view(-1, args.group)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()

        mask = torch.cat(
            [
                inputs["attention_mask"].repeat_interleave(args.group, 0),
                (ids[:, prompt_len:] != tokenizer.pad_token_id).long(),
            ],
            dim=1,
        )
        keep = mask[:, prompt_len:].float()
        with torch.no_grad():
            old = token_logps(policy, ids, mask, prompt_len)
            ref = token_logps(reference, ids, mask, prompt_len)

        policy.train()
        new = token_logps(policy, ids, mask, prompt_len)
        ratio = torch.exp(new - old)
        clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
        gain = torch.minimum(ratio * advantages[:, None], clipped * advantages[:, None])
        kl = torch.exp(ref - new) - (ref - new) - 1
        loss = -((gain - args.beta * kl) * keep).sum() / keep.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} reward {rewards.mean().item():.3f} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
