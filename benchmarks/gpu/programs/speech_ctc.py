"""Speech by convolutions, GRUs and CTC, as DeepSpeech 2: spectrograms of eight seconds, fp32."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class DeepSpeech(nn.Module):
    def __init__(self, num_mels=128, hidden=768, num_letters=29):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, (11, 41), stride=(1, 2), padding=(5, 20)), nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (11, 21), stride=(2, 2), padding=(5, 10)), nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )  # fmt: skip
        self.gru = nn.GRU(32 * num_mels // 4, hidden, 5, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * hidden, num_letters)

    def forward(self, spectrograms):
        x = self.conv(spectrograms)
        states, _ = self.gru(x.permute(0, 2, 1, 3).flatten(2))
        return self.head(states).log_softmax(-1)


model = DeepSpeech().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(5):
    spectrograms = torch.randn(64, 1, 800, 128).cuda()
    letters = torch.randint(1, 29, (64, 120)).cuda()
    scores = model(spectrograms).transpose(0, 1)
    sizes = torch.full((64,), scores.shape[0], dtype=torch.long)
    loss = F.ctc_loss(scores, letters, sizes, torch.full((64,), 120, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 400)
    optimizer.step()
    print(step, loss.item())
