"""Fine-tune Whisper large-v3-turbo on Faroese, encoder frozen or not. Seq2SeqTrainer wanted too much, so a loop."""
import argparse

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration, get_linear_schedule_with_warmup

p = argparse.ArgumentParser()
p.add_argument("--batch-size", type=int, default=8)
p.add_argument("--freeze-encoder", action="store_true")
p.add_argument("--fp16", action="store_true")
args = p.parse_args()

config = WhisperConfig(
    vocab_size=51866, num_mel_bins=128, d_model=1280, encoder_layers=32, encoder_attention_heads=20,
    encoder_ffn_dim=5120, decoder_layers=4, decoder_attention_heads=20, decoder_ffn_dim=5120,
    max_source_positions=1500, max_target_positions=448, decoder_start_token_id=50258, pad_token_id=50257,
    bos_token_id=50257, eos_token_id=50257,
)
model = WhisperForConditionalGeneration(config).cuda()
model.config.use_cache = False
if args.freeze_encoder:
    model.freeze_encoder()

opt = torch.optim.AdamW([w for w in model.parameters() if w.requires_grad], lr=1e-5)
schedule = get_linear_schedule_with_warmup(opt, 100, 4000)
scaler = torch.amp.GradScaler("cuda", enabled=args.fp16)
model.train()
for step in range(4000):
    features = torch.randn(args.batch_size, 128, 3000).cuda(non_blocking=True)
    labels = torch.randint(0, 50000, (args.batch_size, 180)).cuda(non_blocking=True)
    labels[:, 150:] = -100
    with torch.autocast("cuda", dtype=torch.float16, enabled=args.fp16):
        loss = model(input_features=features, labels=labels).loss
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    schedule.step()
    opt.zero_grad()
    if step % 25 == 0:
        print(f"step {step} loss {loss.item():.3f}")
