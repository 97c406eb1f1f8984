"""Rainbow without the rain: DQN on Atari with the whole replay buffer on the card (so that sampling is free)."""

import argparse
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--buffer-size", type=int, default=200_000)
parser.add_argument("--batch-size", type=int, default=512)
parser.add_argument("--num-envs", type=int, default=64)
parser.add_argument("--actions", type=int, default=18)
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--learn-every", type=int, default=4)
parser.add_argument("--total-steps", type=int, default=16)
args = parser.parse_args()
device = torch.device("cuda")


class QNetwork(nn.Module):
    """The Impala net, twice as wide."""

    def __init__(self, actions, widths=(32, 64, 64)):
        super().__init__()
        layers, c = [], 4
        for w in widths:
            layers += [nn.Conv2d(c, w, 3, padding=1), nn.MaxPool2d(3, 2, 1), Residual(w), Residual(w)]
            c = w
        self.body = nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(c * 11 * 11, 512), nn.ReLU())
        self.value, self.advantage = nn.Linear(512, 1), nn.Linear(512, actions)

    def forward(self, x):
        h = self.body(x.float() / 255.0)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(dim=1, keepdim=True)


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(F.relu(x))))


class ReplayBuffer:
    def __init__(self, size):
        self.size, self.pos, self.full = size, 0, False
        self.obs = torch.zeros(size, 4, 84, 84, dtype=torch.uint8, device=device)
        self.next_obs = torch.zeros(size, 4, 84, 84, dtype=torch.uint8, device=device)
        self.actions = torch.zeros(size, dtype=torch.int64, device=device)
        self.rewards = torch.zeros(size, device=device)
        self.dones = torch.zeros(size, device=device)

    def add(self, obs, next_obs, actions, rewards, dones):
        idx = (torch.arange(len(obs), device=device) + self.pos) % self.size
        self.obs[idx], self.next_obs[idx] = obs, next_obs
        self.actions[idx], self.rewards[idx], self.dones[idx] = actions, rewards, dones
        self.full = self.full or self.pos + len(obs) >= self.size
        self.pos = (self.pos + len(obs)) % self.size

    def sample(self, n):
        idx = torch.randint(0, self.size if self.full else self.pos, (n,), device=device)
        return self.obs[idx], self.next_obs[idx], self.actions[idx], self.rewards[idx], self.dones[idx]


q = QNetwork(args.actions).to(device)
target = QNetwork(args.actions).to(device)
target.load_state_dict(q.state_dict())
optimizer = torch.optim.Adam(q.parameters(), lr=1e-4, eps=1.5e-4)
buffer = ReplayBuffer(args.buffer_size)
obs = torch.randint(0, 256, (args.num_envs, 4, 84, 84), dtype=torch.uint8, device=device)

for step in range(args.total_steps):
    epsilon = max(0.01, 1 - step / 250_000)
    if random.random() < epsilon:
        actions = torch.randint(0, args.actions, (args.num_envs,), device=device)
    else:
        with torch.no_grad():
            actions = q(obs).argmax(dim=1)
    # envpool's step; frames come as uint8 from the host
    frames = torch.randint(0, 256, (args.num_envs, 4, 84, 84), dtype=torch.uint8).to(device)
    rewards = torch.randn(args.num_envs).sign().to(device)
    dones = (torch.rand(args.num_envs) < 0.001).float().to(device)
    buffer.add(obs, frames, actions, rewards, dones)
    obs = frames

    if step >= 4 and step % args.learn_every == 0:
        o, n, a, r, d = buffer.sample(args.batch_size)
        with torch.no_grad():
            best = q(n).argmax(dim=1, keepdim=True)
            y = r + args.gamma * (1 - d) * target(n).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(q(o).gather(1, a[:, None]).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(q.parameters(), 10)
        optimizer.step()
        print(f"{step}: {loss.item():.4f}")
    if step % 2000 == 0:
        target.load_state_dict(q.state_dict())
