"""A DiT of diffusers in bf16 autocast with an EMA, classes and gradient checkpointing."""

import torch
from diffusers import DDPMScheduler, DiTTransformer2DModel
from diffusers.training_utils import EMAModel

torch.manual_seed(0)
model = DiTTransformer2DModel(
    num_attention_heads=16, attention_head_dim=64, num_layers=16, sample_size=32, in_channels=4,
    out_channels=4, num_embeds_ada_norm=1000,
).cuda()  # fmt: skip
model.enable_gradient_checkpointing()
model.train()
ema = EMAModel(model.parameters(), decay=0.999)
scheduler = DDPMScheduler()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(5):
    latents = torch.randn(64, 4, 32, 32, device="cuda")
    noise, labels = torch.randn_like(latents), torch.randint(1000, (64,), device="cuda")
    timesteps = torch.randint(1000, (64,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        noisy = scheduler.add_noise(latents, noise, timesteps)
        predicted = model(noisy, timestep=timesteps, class_labels=labels).sample
    loss = torch.nn.functional.mse_loss(predicted.float(), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    ema.step(model.parameters())
    print(step, loss.item())
