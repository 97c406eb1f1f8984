"""Hugging Face's Trainer with NEFTune, accumulated twice and clipped, on Qwen3-0.6B's shape."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM, Trainer, TrainingArguments


class RandomTokens(Dataset):
    def __init__(self, vocab_size, seq_len, num_samples=256):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(vocab_size, (num_samples, seq_len), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
    num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
)  # fmt: skip
model = Qwen3ForCausalLM(config).to(torch.bfloat16)
args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    neftune_noise_alpha=5.0,
    bf16=True,
    max_grad_norm=1.0,
    learning_rate=1e-5,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
Trainer(model=model, args=args, train_dataset=RandomTokens(config.vocab_size, 1024)).train()
