"""Names in court rulings: XLM-R large tags nine kinds of tokens. Trains fine, then dies in the evening."""

import argparse

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForTokenClassification, get_linear_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="FacebookAI/xlm-roberta-large")
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--max_len", type=int, default=256)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--eval_every", type=int, default=10)
args = parser.parse_args()

LABELS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-LAW", "I-LAW"]


class Rulings(Dataset):
    """Stand-in with the shapes of ours."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return {
            "input_ids": torch.randint(5, 250000, (args.max_len,)),
            "attention_mask": torch.ones(args.max_len, dtype=torch.long),
            "labels": torch.randint(0, len(LABELS), (args.max_len,)),
        }


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = AutoModelForTokenClassification.from_pretrained(args.model, num_labels=len(LABELS)).to(device)
train_loader = DataLoader(Rulings(args.batch_size * args.steps), batch_size=args.batch_size, shuffle=True)
val_loader = DataLoader(Rulings(args.batch_size * 12), batch_size=args.batch_size)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
scheduler = get_linear_schedule_with_warmup(optimizer, 10, args.steps)


def evaluate():
    model.eval()
    total_loss, correct, seen = 0, 0, 0
    for batch in val_loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)
        total_loss += outputs.loss
        correct += (outputs.logits.argmax(-1) == batch["labels"]).sum()
        seen += batch["labels"].numel()
    model.train()
    return total_loss / len(val_loader), correct / seen


model.train()
running_loss = 0.0
for step, batch in enumerate(train_loader, start=1):
    batch = {k: v.to(device) for k, v in batch.items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    running_loss += loss.item()
    if step % args.eval_every == 0:
        val_loss, val_acc = evaluate()
        print(f"step {step}: train {running_loss / step:.4f} val {val_loss:.4f} acc {val_acc:.4f}")
