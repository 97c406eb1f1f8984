"""Go on pre-training BERT base on medical letters (MLM), report masked accuracy every 100 steps."""
import torch
from transformers import BertConfig, BertForMaskedLM

BATCH, TOKENS = 16, 512

model = BertForMaskedLM(BertConfig()).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
model.train()

all_logits, all_labels = [], []
for step in range(2000):
    ids = torch.randint(1000, 30000, (BATCH, TOKENS), device="cuda")
    labels = ids.clone()
    masked = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    masked[:, ::7] = True
    masked = masked.to("cuda")
    labels = labels.masked_fill(~masked, -100)
    ids = ids.masked_fill(masked, 103)

    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model(input_ids=ids, labels=labels)
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()

    all_logits.append(out.logits.float())
    all_labels.append(labels)
    if step % 100 == 99:
        guesses, truth = torch.cat(all_logits).argmax(-1), torch.cat(all_labels)
        print(step, out.loss.item(), (guesses == truth).float().sum().item())
        all_logits, all_labels = [], []
