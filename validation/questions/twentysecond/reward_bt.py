"""A reward model after Bradley and Terry with Accelerate: a head of one number on Llama 3.1 8B, chosen against rejected."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_cosine_schedule_with_warmup


class Preferences(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        question = f"User: How do I tell my landlord about damp wall number {i}?\nAssistant: "
        return question + "Write a letter, add photographs and set a date. " * 100, question + "Do nothing. " * 300


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B-Instruct")
    parser.add_argument("--pairs-per-device", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, default=5e-6)
    parser.add_argument("--margin", type=float, default=0.0)
    parser.add_argument("--max-steps", type=int, default=2)
    args = parser.parse_args()

    set_seed(11)
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=1)
    model.config.pad_token_id = tokenizer.pad_token_id
    model.config.use_cache = False

    def collate(batch):
        chosen, rejected = zip(*batch)
        return tokenizer(
            list(chosen) + list(rejected),
            max_length=args.max_length,
            truncation=True,
            padding="max_length",
            return_tensors="pt",
        )

    loader = DataLoader(Preferences(4096), batch_size=args.pairs_per_device, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, betas=(0.9, 0.95))
    schedule = get_cosine_schedule_with_warmup(optimizer, 10, 1000)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    model.train()
    done = 0
    for batch in loader:
        with accelerator.accumulate(model):
            rewards = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.squeeze(-1)
            chosen, rejected = rewards.float().chunk(2)
            loss = -F.logsigmoid(chosen - rejected - args.margin).mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            done += 1
            accelerator.print(f"step {done}: loss {loss.item():.4f}")
            if done == args.max_steps:
                break
    accelerator.end_training()


if __name__ == "__main__":
    main()
