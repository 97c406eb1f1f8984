"""A small GPT under torch.compile(mode="reduce-overhead"): CUDA graphs and their own pool."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class GPT(nn.Module):
    def __init__(self, vocab_size, length, width, num_layers, num_heads):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, num_heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab_size, bias=False)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.layers(x, mask=self.mask.to(x.dtype), is_causal=True))


model = GPT(32000, 1024, 1024, 8, 16).to("cuda", torch.bfloat16)
step_fn = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for step in range(6):
    data = torch.randint(32000, (8, 1025), device="cuda")
    logits = step_fn(data[:, :-1].contiguous())
    loss = F.cross_entropy(logits.flatten(0, 1), data[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(step, loss.item())
