"""A word-level LSTM language model, truncated backpropagation: PyTorch's old example, larger."""

import torch
from torch import nn

torch.manual_seed(1111)


class RNNModel(nn.Module):
    def __init__(self, num_tokens, width, num_layers, dropout=0.2):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(num_tokens, width)
        self.rnn = nn.LSTM(width, width, num_layers, dropout=dropout)
        self.decoder = nn.Linear(width, num_tokens)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return self.decoder(self.drop(output)).flatten(0, 1), hidden


num_tokens, width, num_layers, batch, bptt = 33278, 1500, 3, 128, 128
model = RNNModel(num_tokens, width, num_layers).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = torch.randint(num_tokens, (6 * bptt + 1, batch)).cuda()
hidden = tuple(torch.zeros(num_layers, batch, width, device="cuda") for _ in range(2))
for step, start in enumerate(range(0, len(data) - 1, bptt)):
    hidden = tuple(state.detach() for state in hidden)
    model.zero_grad()
    output, hidden = model(data[start : start + bptt], hidden)
    loss = criterion(output, data[start + 1 : start + 1 + bptt].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    print(step, loss.item())
