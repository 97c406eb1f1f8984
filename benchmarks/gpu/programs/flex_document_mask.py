"""FlexAttention, compiled, with a mask of documents packed into rows of 4,096 tokens, bf16."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

torch.manual_seed(0)
flex_attention = torch.compile(flex_attention, dynamic=False)
create_block_mask = torch.compile(create_block_mask, dynamic=False)


class Block(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, self.num_heads, -1).unbind(2)
        y = flex_attention(*(h.transpose(1, 2) for h in (q, k, v)), block_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


LENGTH, VOCAB, WIDTH = 4096, 32000, 1024
embed, head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
blocks = nn.ModuleList(Block(WIDTH, 16) for _ in range(12))
model = nn.ModuleList([embed, blocks, head]).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(4):
    data = torch.randint(VOCAB, (2, LENGTH + 1), device="cuda")
    lengths = torch.tensor([512, 1024, 256, 1536, 768], device="cuda")
    document = torch.repeat_interleave(torch.arange(5, device="cuda"), lengths, output_size=LENGTH)

    def same_document(b, h, q, k, document=document):
        return (q >= k) & (document[q] == document[k])

    mask = create_block_mask(same_document, None, None, LENGTH, LENGTH, device="cuda")
    x = embed(data[:, :-1])
    for block in blocks:
        x = block(x, mask)
    loss = F.cross_entropy(head(x).flatten(0, 1).float(), data[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
