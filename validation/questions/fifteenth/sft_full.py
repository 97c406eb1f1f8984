"""Full fine-tuning of Llama 3.2 3B with the Hugging Face Trainer, on one card."""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

MODEL = "meta-llama/Llama-3.2-3B-Instruct"


class Rows(torch.utils.data.Dataset):
    def __init__(self, tokenizer, count=64, length=1024):
        text = "The quick brown fox jumps over the lazy dog. " * length
        self.ids = tokenizer(text, truncation=True, max_length=length)["input_ids"]
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        ids = torch.tensor(self.ids)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def main():
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    args = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_train_epochs=1,
        max_steps=3,
        learning_rate=1e-5,
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    Trainer(model=model, args=args, train_dataset=Rows(tokenizer)).train()


if __name__ == "__main__":
    main()
