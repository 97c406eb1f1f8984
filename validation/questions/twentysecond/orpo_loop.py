"""ORPO (Hong et al. 2024) by hand, no trl: one model, no reference. Pairs are support answers, good and bad."""

import argparse

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, get_linear_schedule_with_warmup


class Pairs(Dataset):
    """Prompt, the answer we want, the one we do not want."""

    def __init__(self, tokenizer, max_length, n=64):
        self.rows = []
        for i in range(n):
            prompt = f"Customer {i}: my router of type RX-{i % 7} blinks red since the update. What now?\n"
            chosen = prompt + "Hold the button for ten seconds, wait until it blinks green, then log in again. " * 40
            rejected = prompt + "Buy a new one. We do not know. Please call someone else, the office is closed. " * 40
            self.rows.append(
                tuple(
                    tokenizer(text, max_length=max_length, truncation=True, padding="max_length", return_tensors="pt")
                    for text in (chosen, rejected)
                )
            )

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        chosen, rejected = self.rows[i]
        return {
            "chosen_ids": chosen["input_ids"][0],
            "chosen_mask": chosen["attention_mask"][0],
            "rejected_ids": rejected["input_ids"][0],
            "rejected_mask": rejected["attention_mask"][0],
        }


def mean_logps(logits, ids, mask):
    logits, labels, mask = logits[:, :-1].float(), ids[:, 1:], mask[:, 1:]
    logps = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    return (logps * mask).sum(-1) / mask.sum(-1)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default="Qwen/Qwen3-1.7B")
    p.add_argument("--batch", type=int, default=2)
    p.add_argument("--accum", type=int, default=8)
    p.add_argument("--max-length", type=int, default=1024)
    p.add_argument("--lr", type=float, default=8e-6)
    p.add_argument("--lam", type=float, default=0.1)
    p.add_argument("--epochs", type=int, default=1)
    args = p.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16).cuda()
    model.gradient_checkpointing_enable()
    model.config.use_cache = False
    model.train()

    loader = DataLoader(Pairs(tokenizer, args.max_length), batch_size=args.batch, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
    total = args.epochs * len(loader) // args.accum
    scheduler = get_linear_schedule_with_warmup(optimizer, total // 10, total)

    for epoch in range(args.epochs):
        for i, batch in enumerate(loader):
            batch = {k: v.cuda() for k, v in batch.items()}
            ids = torch.cat([batch["chosen_ids"], batch["rejected_ids"]])
            mask = torch.cat([batch["chosen_mask"], batch["rejected_mask"]])
            logits = model(input_ids=ids, attention_mask=mask).logits
            logps = mean_logps(logits, ids, mask)
            good, bad = logps.chunk(2)
            log_odds = (good - bad) - (torch.log1p(-torch.exp(good)) - torch.log1p(-torch.exp(bad)))
            loss = -good.mean() - args.lam * F.logsigmoid(log_odds).mean()
            (loss / args.accum).backward()
            if (i + 1) % args.accum == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)
                print(f"epoch {epoch} batch {i + 1} loss {loss.item():.4f}")
    model.save_pretrained("orpo-out")


if __name__ == "__main__":
    main()
