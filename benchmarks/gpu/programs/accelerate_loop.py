"""Accelerate's loop: bf16, gradients accumulated over four batches, clipped, cosine schedule."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import Qwen2Config, Qwen2ForCausalLM, get_cosine_schedule_with_warmup

torch.manual_seed(0)
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=4)
config = Qwen2Config(
    vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
    num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True, use_cache=False,
)  # fmt: skip
model = Qwen2ForCausalLM(config)
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
schedule = get_cosine_schedule_with_warmup(optimizer, 2, 100)
loader = DataLoader(TensorDataset(torch.randint(151936, (128, 1024))), batch_size=4)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for step, (ids,) in zip(range(12), loader, strict=False):
    with accelerator.accumulate(model):
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print(step, loss.item())
