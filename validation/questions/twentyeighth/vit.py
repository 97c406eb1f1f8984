import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import ViTConfig, ViTForImageClassification
from brimful import pretend
for world in (2, 8, 64):
    with pretend.gpu("l40s", world_size=world) as run:
        mesh = init_device_mesh("cuda", (world,))
        model = ViTForImageClassification(ViTConfig(hidden_size=1280, num_hidden_layers=16, num_attention_heads=16, intermediate_size=5120, num_labels=1000))
        for part in model.modules():
            if type(part).__name__ == "ViTLayer":
                fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.to_empty(device="cuda")
        opt = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            loss = model(torch.randn(16, 3, 224, 224, device="cuda"), labels=torch.zeros(16, dtype=torch.long, device="cuda")).loss
            loss.backward()
            opt.step()
            opt.zero_grad()
    print(world, round(run.peak_allocated_bytes / 2**20, 1), "MiB")
print(run.report())
