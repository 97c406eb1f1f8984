"""Fine-tune whisper large-v3 on our dialect recordings with accelerate."""
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset
from transformers import WhisperConfig, WhisperForConditionalGeneration, get_linear_schedule_with_warmup


class Recordings(Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, index):
        return {"input_features": torch.randn(128, 3000), "labels": torch.randint(0, 50000, (160,))}


accelerator = Accelerator(gradient_accumulation_steps=2)
config = WhisperConfig(
    vocab_size=51866,
    d_model=1280,
    encoder_layers=32,
    decoder_layers=32,
    encoder_attention_heads=20,
    decoder_attention_heads=20,
    encoder_ffn_dim=5120,
    decoder_ffn_dim=5120,
    num_mel_bins=128,
    max_source_positions=1500,
    max_target_positions=448,
    use_cache=False,
)
model = WhisperForConditionalGeneration(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
loader = DataLoader(Recordings(), batch_size=8, shuffle=True)
schedule = get_linear_schedule_with_warmup(optimizer, 50, 400)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

model.train()
for step, batch in enumerate(loader):
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    accelerator.print(step, loss.item())
