"""Whisper-small learns to transcribe log-mel features, bf16 autocast, gradient checkpointing."""

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

torch.manual_seed(0)
config = WhisperConfig(
    d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12,
    decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
)  # fmt: skip
model = WhisperForConditionalGeneration(config).cuda().train()
model.gradient_checkpointing_enable()
model.config.use_cache = False
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(5):
    features = torch.randn(16, 80, 3000).cuda()
    labels = torch.randint(50000, (16, 224)).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_features=features, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
