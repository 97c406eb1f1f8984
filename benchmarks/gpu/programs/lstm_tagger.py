"""A bidirectional LSTM with dropout over packed sentences of varied length: a tagger, fp32."""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

torch.manual_seed(0)
random.seed(0)


class Tagger(nn.Module):
    def __init__(self, vocab_size=50000, width=512, hidden=1024, num_tags=45):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width, padding_idx=0)
        self.lstm = nn.LSTM(
            width, hidden, num_layers=3, dropout=0.3, bidirectional=True, batch_first=True
        )
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(2 * hidden, num_tags))

    def forward(self, words, lengths):
        packed = pack_padded_sequence(
            self.embed(words), lengths, batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(states)


model = Tagger().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(5):
    lengths = [random.randint(20, 200) for _ in range(256)]
    words = pad_sequence([torch.randint(1, 50000, (n,)) for n in lengths], batch_first=True)
    tags = torch.randint(45, words.shape).masked_fill(words == 0, -100)
    scores = model(words.cuda(), torch.tensor(lengths))
    loss = F.cross_entropy(scores.flatten(0, 1), tags.cuda().flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    print(step, loss.item())
