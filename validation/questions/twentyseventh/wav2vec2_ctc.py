"""Speech to text for a small language: wav2vec 2.0 large (300 million), CTC, clips of up to 20 s."""
import argparse

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC, get_linear_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--seconds", type=float, default=20.0)
parser.add_argument("--checkpointing", action="store_true")
args = parser.parse_args()


class Clips(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(int(16000 * args.seconds), generator=g), torch.randint(1, 45, (180,), generator=g)


config = Wav2Vec2Config(
    vocab_size=45, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
    feat_extract_norm="layer", do_stable_layer_norm=True, conv_bias=True, mask_time_prob=0.05, layerdrop=0.0,
    ctc_loss_reduction="mean", pad_token_id=0,
)
model = Wav2Vec2ForCTC(config).cuda()
model.freeze_feature_encoder()
if args.checkpointing:
    model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-4)
schedule = get_linear_schedule_with_warmup(optimizer, 500, 10000)
scaler = torch.amp.GradScaler("cuda")
loader = DataLoader(Clips(), batch_size=args.batch, shuffle=True, num_workers=2, pin_memory=True)

model.train()
for epoch in range(2):
    for step, (audio, labels) in enumerate(loader):
        audio, labels = audio.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.float16):
            loss = model(audio, labels=labels).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(epoch, step, loss.item())
