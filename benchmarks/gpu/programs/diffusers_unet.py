"""A UNet2DModel of diffusers learns to take noise away, by accelerate with fp16."""

import torch
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel
from torch.nn import functional as F

torch.manual_seed(0)
accelerator = Accelerator(mixed_precision="fp16")
model = UNet2DModel(
    sample_size=128, in_channels=3, out_channels=3, layers_per_block=2,
    block_out_channels=(128, 128, 256, 256, 512, 512),
    down_block_types=("DownBlock2D",) * 4 + ("AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D") + ("UpBlock2D",) * 4,
)  # fmt: skip
scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(5):
    images = torch.randn(16, 3, 128, 128, device=accelerator.device)
    noise = torch.randn_like(images)
    timesteps = torch.randint(0, 1000, (16,), device=accelerator.device)
    noisy = scheduler.add_noise(images, noise, timesteps)
    predicted = model(noisy, timesteps, return_dict=False)[0]
    loss = F.mse_loss(predicted, noise)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
