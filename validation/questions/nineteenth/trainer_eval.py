"""Qwen3 0.6B on our tickets with the Trainer: trains fine, and in the first evaluation it runs out of memory."""
import argparse

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Qwen3Config, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--per_device_eval_batch_size", type=int, default=8)
parser.add_argument("--eval_rows", type=int, default=64)
parser.add_argument("--seq_len", type=int, default=1024)
parser.add_argument("--layers", type=int, default=28)
cli = parser.parse_args()
config = Qwen3Config(
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=cli.layers,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    tie_word_embeddings=True,
)


class Tickets(Dataset):
    def __init__(self, rows):
        self.ids = torch.randint(0, 151643, (rows, cli.seq_len))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index].clone()}


def compute_metrics(eval_pred):
    predicted = np.argmax(eval_pred.predictions[:, :-1], axis=-1)
    labels = eval_pred.label_ids
    return {"token_accuracy": float((predicted == labels[:, 1:]).mean())}


model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
model.config.use_cache = False
args = TrainingArguments(
    output_dir="/tmp/tickets",
    per_device_train_batch_size=4,
    per_device_eval_batch_size=cli.per_device_eval_batch_size,
    gradient_accumulation_steps=2,
    gradient_checkpointing=True,
    bf16=True,
    max_steps=2,
    eval_strategy="steps",
    eval_steps=2,
    save_strategy="no",
    report_to="none",
)
data = {"train_dataset": Tickets(32), "eval_dataset": Tickets(cli.eval_rows)}
Trainer(model=model, args=args, compute_metrics=compute_metrics, **data).train()
