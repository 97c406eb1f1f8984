"""PPO from 84 x 84 frames, 64 games at once, written after CleanRL. OOM on my 3060 at "num_steps 512"."""
import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical

p = argparse.ArgumentParser()
p.add_argument("--num-envs", type=int, default=64)
p.add_argument("--num-steps", type=int, default=128)
p.add_argument("--minibatches", type=int, default=4)
p.add_argument("--epochs", type=int, default=3)
args = p.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class FakeAtari:
    """Stands in for the vector of emulators."""

    def __init__(self, n):
        self.n, self.rng = n, np.random.default_rng(0)

    def reset(self):
        return self.rng.integers(0, 255, (self.n, 4, 84, 84), dtype=np.uint8)

    def step(self, action):
        assert action.shape == (self.n,)
        return self.reset(), self.rng.normal(size=self.n).astype(np.float32), self.rng.random(self.n) < 0.01


def layer(l, std=2**0.5):
    nn.init.orthogonal_(l.weight, std)
    nn.init.zeros_(l.bias)
    return l


class ConvSequence(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, padding=1)
        self.res = nn.ModuleList(
            nn.Sequential(nn.ReLU(), nn.Conv2d(c_out, c_out, 3, padding=1), nn.ReLU(), nn.Conv2d(c_out, c_out, 3, padding=1))
            for _ in range(2))

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv(x), 3, 2, 1)
        for r in self.res:
            x = x + r(x)
        return x


class Agent(nn.Module):
    def __init__(self, actions=18):
        super().__init__()
        self.body = nn.Sequential(ConvSequence(4, 32), ConvSequence(32, 64), ConvSequence(64, 64), nn.Flatten(), nn.ReLU(),
                                  layer(nn.Linear(64 * 11 * 11, 512)), nn.ReLU())
        self.actor, self.critic = layer(nn.Linear(512, actions), 0.01), layer(nn.Linear(512, 1), 1)

    def act(self, x, action=None):
        h = self.body(x / 255.0)
        pi = Categorical(logits=self.actor(h))
        action = pi.sample() if action is None else action
        return action, pi.log_prob(action), pi.entropy(), self.critic(h).squeeze(-1)


envs, agent = FakeAtari(args.num_envs), Agent().to(device)
opt = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
T, N = args.num_steps, args.num_envs
obs = torch.zeros(T, N, 4, 84, 84, device=device)
obs_now = torch.tensor(envs.reset(), device=device, dtype=torch.float32)
for update in range(100):
    actions, logps, rewards, values, dones = [], [], [], [], []
    for t in range(T):
        obs[t] = obs_now
        action, logp, _, value = agent.act(obs_now)
        frame, reward, done = envs.step(action.cpu().numpy())
        actions.append(action); logps.append(logp); values.append(value)
        rewards.append(torch.tensor(reward, device=device)); dones.append(torch.tensor(done, device=device).float())
        obs_now = torch.tensor(frame, device=device, dtype=torch.float32)
    with torch.no_grad():
        last = agent.act(obs_now)[3]
        advantage, running = torch.zeros(T, N, device=device), 0
        for t in reversed(range(T)):
            following = last if t == T - 1 else values[t + 1]
            delta = rewards[t] + 0.99 * following * (1 - dones[t]) - values[t]
            running = delta + 0.99 * 0.95 * (1 - dones[t]) * running
            advantage[t] = running
    b_obs, b_act = obs.flatten(0, 1), torch.cat(actions)
    b_logp, b_val, b_adv = torch.cat(logps).detach(), torch.cat(values).detach(), advantage.flatten()
    ret = b_adv + b_val
    for _ in range(args.epochs):
        for index in torch.randperm(T * N, device=device).chunk(args.minibatches):
            _, logp, entropy, value = agent.act(b_obs[index], b_act[index])
            ratio = (logp - b_logp[index]).exp()
            adv = (b_adv[index] - b_adv[index].mean()) / (b_adv[index].std() + 1e-8)
            loss = torch.max(-adv * ratio, -adv * ratio.clamp(0.9, 1.1)).mean() + 0.5 * (value - ret[index]).pow(2).mean() - 0.01 * entropy.mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            opt.step()
    print(update, loss.item())
