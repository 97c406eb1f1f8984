"""Train a small decoder on the bytes of Python's standard library, in plain PyTorch.

It says ``cuda`` where there is one. Run it, or ask what it would need on a GPU you do not have::

    python examples/plain_loop.py --bf16
    brimful pretend --gpu a100-40gb -- examples/plain_loop.py --bf16
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_BYTES = 256


class Block(nn.Module):
    """Attention and a feed-forward part, each behind a norm."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x_BTW: Tensor) -> Tensor:  # noqa: N803
        batch, tokens, width = x_BTW.shape
        heads = (batch, tokens, 3, self.num_heads, width // self.num_heads)
        qkv = self.queries_keys_values(self.attention_norm(x_BTW)).view(heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x_BTW + self.attention_out(attended.transpose(1, 2).reshape(x_BTW.shape))
        return x + self.feed_forward(x)


class Decoder(nn.Module):
    """Predicts the next byte."""

    def __init__(self, width: int, num_layers: int, num_heads: int, num_tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_BYTES, width)
        self.position = nn.Embedding(num_tokens, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, NUM_BYTES, bias=False)

    def forward(self, ids_BT: Tensor) -> Tensor:  # noqa: N803
        x = self.embedding(ids_BT) + self.position.weight[: ids_BT.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def standard_library() -> Tensor:
    """Return some of the bytes of Python's own sources."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py"))[:40])
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = standard_library()
    model = Decoder(args.width, args.layers, args.width // 64, args.tokens).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(args.steps):
        starts = torch.randint(len(data) - args.tokens - 1, (args.batch,)).tolist()
        window = torch.stack([data[i : i + args.tokens + 1] for i in starts]).long().to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = model(window[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
