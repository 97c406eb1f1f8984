"""Hugging Face's Trainer with LoRA of peft on a 1.1B Llama in bf16."""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, LlamaConfig, LlamaForCausalLM


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
    vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
    num_attention_heads=32, num_key_value_heads=4,
)  # fmt: skip
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear")
model = get_peft_model(model, lora)
model.print_trainable_parameters()
args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    bf16=True,
    learning_rate=2e-4,
    max_steps=5,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
Trainer(model=model, args=args, train_dataset=RandomTokens(config.vocab_size, 1024)).train()
