import torch
from transformers import WhisperForConditionalGeneration
model = WhisperForConditionalGeneration.from_pretrained("openai/whisper-large-v3", dtype=torch.float32).cuda()
model.gradient_checkpointing_enable()
opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(3):
    audio = torch.randn(8, 128, 3000, device="cuda")
    labels = torch.randint(0, 50000, (8, 200), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_features=audio, labels=labels).loss
    loss.backward()
    opt.step()
    opt.zero_grad()
