"""Hugging Face's Trainer with the paged 8-bit AdamW of bitsandbytes on Llama-3.2-1B's shape."""

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
    vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
    num_attention_heads=32, num_key_value_heads=8, head_dim=64, tie_word_embeddings=True,
)  # fmt: skip
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    gradient_checkpointing=True,
    optim="paged_adamw_8bit",
    bf16=True,
    learning_rate=1e-5,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
Trainer(model=model, args=args, train_dataset=RandomTokens(config.vocab_size, 1024)).train()
