"""torchao's float8 training or int4 QAT of linear layers, under bf16.

Told: ``float8`` or ``qat``, tokens, width, layers.
"""

import sys

import torch
from torch import nn

kind = sys.argv[1]
tokens, width, layers = map(int, sys.argv[2:5])
model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
model = model.to("cuda", torch.bfloat16)
if kind == "float8":
    from torchao.float8 import convert_to_float8_training

    convert_to_float8_training(model)
else:
    from torchao.quantization import Int4WeightOnlyConfig, quantize_
    from torchao.quantization.qat import QATConfig

    quantize_(model, QATConfig(Int4WeightOnlyConfig(group_size=32), step="prepare"))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(3):
    x = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
