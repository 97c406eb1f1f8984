"""A plain loop over a wide MLP in fp16: autocast and a GradScaler, as in PyTorch's AMP recipe."""

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda"
batch_size, width, num_layers = 16384, 4096, 12

layers = []
for _ in range(num_layers):
    layers += [nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1)]
model = nn.Sequential(*layers, nn.Linear(width, 1000)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")
criterion = nn.CrossEntropyLoss()

for step in range(6):
    inputs = torch.randn(batch_size, width, device=device)
    targets = torch.randint(1000, (batch_size,), device=device)
    with torch.autocast(device_type=device, dtype=torch.float16):
        loss = criterion(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(step, loss.item())
