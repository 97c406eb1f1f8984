"""PPO from scratch: Pythia 1.4B writes kinder film reviews; policy, reference, value head, reward model."""

import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="EleutherAI/pythia-1.4b")
parser.add_argument("--reward-model", default="EleutherAI/pythia-410m")
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--mini-batch-size", type=int, default=8)
parser.add_argument("--prompt-len", type=int, default=64)
parser.add_argument("--new-tokens", type=int, default=192)
parser.add_argument("--ppo-epochs", type=int, default=2)
parser.add_argument("--iterations", type=int, default=2)
parser.add_argument("--kl", type=float, default=0.05)
args = parser.parse_args()

device = "cuda"


class ActorCritic(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.lm = AutoModelForCausalLM.from_pretrained(name)
        self.value_head = nn.Sequential(nn.Dropout(0.1), nn.Linear(self.lm.config.hidden_size, 1))

    def forward(self, ids, mask):
        output = self.lm(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        return output.logits, self.value_head(output.hidden_states[-1]).squeeze(-1)


def log_probs(logits, ids):
    return F.log_softmax(logits[:, :-1].float(), dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


policy = ActorCritic(args.model).to(device)
reference = copy.deepcopy(policy.lm)
reward_model = AutoModelForSequenceClassification.from_pretrained(args.reward_model, num_labels=1).to(device).eval()
reward_model.config.pad_token_id = 0
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6, betas=(0.9, 0.95))

for iteration in range(args.iterations):
    # 1. write
    prompts = torch.randint(2, 50000, (args.batch_size, args.prompt_len), device=device)
    with torch.no_grad():
        ids = policy.lm.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=args.new_tokens,
            min_new_tokens=args.new_tokens,
            do_sample=True,
            top_k=0,
            pad_token_id=0,
        )
    mask = torch.ones_like(ids)

    # 2. judge
    logits, values = policy(ids, mask)
    old = log_probs(logits, ids).detach()
    values = values.detach()
    with torch.no_grad():
        scores = reward_model(input_ids=ids, attention_mask=mask).logits.squeeze(-1)
    distance = old - log_probs(reference(input_ids=ids, attention_mask=mask).logits, ids)
    rewards = -args.kl * distance
    rewards[:, -1] = rewards[:, -1] + scores

    # 3. advantages, from behind
    gae, advantages = torch.zeros(args.batch_size, device=device), []
    for t in reversed(range(rewards.shape[1])):
        following = values[:, t + 1] if t + 1 < rewards.shape[1] else 0.0
        gae = rewards[:, t] + following - values[:, t] + 0.95 * gae
        advantages.insert(0, gae)
    advantages = torch.stack(advantages, dim=1)
    returns = advantages + values[:, :-1]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    # 4. learn
    for _ in range(args.ppo_epochs):
        for first in range(0, args.batch_size, args.mini_batch_size):
            part = slice(first, first + args.mini_batch_size)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                logits, new_values = policy(ids[part], mask[part])
            ratio = (log_probs(logits, ids[part]) - old[part]).exp()
            gain = advantages[part]
            policy_loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)[:, args.prompt_len - 1 :].mean()
            value_loss = F.mse_loss(new_values[:, :-1].float(), returns[part])
            optimizer.zero_grad()
            (policy_loss + 0.1 * value_loss).backward(retain_graph=True)
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
    print(f"iteration {iteration}: reward {scores.mean().item():.3f}, kl {distance.sum(1).mean().item():.3f}")
