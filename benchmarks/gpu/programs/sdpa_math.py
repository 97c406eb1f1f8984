"""An encoder of torch.nn in fp32 with PyTorch's math attention and a mask of padding."""

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, norm_first=True)
model = nn.Sequential(nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)).cuda()
head = nn.Linear(1024, 10).cuda()
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-4)
lengths = torch.randint(200, 513, (16,))
padding = (torch.arange(512) >= lengths[:, None]).cuda()
for step in range(4):
    inputs = torch.randn(16, 512, 1024, device="cuda")
    labels = torch.randint(10, (16,), device="cuda")
    with sdpa_kernel(SDPBackend.MATH):
        hidden = model[0](inputs, src_key_padding_mask=padding)
        loss = nn.functional.cross_entropy(head(hidden.mean(1)), labels)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
