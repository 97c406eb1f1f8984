"""Hugging Face's Trainer with torch_compile=True on a Llama of eight layers, bf16."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class RandomTokens(Dataset):
    def __init__(self, vocab_size, seq_len, num_samples=256):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(vocab_size, (num_samples, seq_len), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32000, hidden_size=1536, intermediate_size=4096, num_hidden_layers=8,
    num_attention_heads=12, num_key_value_heads=4,
)  # fmt: skip
model = LlamaForCausalLM(config)
args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    torch_compile=True,
    bf16=True,
    learning_rate=1e-4,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
Trainer(model=model, args=args, train_dataset=RandomTokens(config.vocab_size, 1024)).train()
