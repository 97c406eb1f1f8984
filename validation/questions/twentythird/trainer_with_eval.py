"""Fine-tune a 0.5B on our support mails with the Trainer; accuracy before and after."""
import numpy as np
import torch
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments, default_data_collator

LENGTH = 1024

config = Qwen2Config(
    vocab_size=151936,
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    max_position_embeddings=32768,
    tie_word_embeddings=True,
    use_cache=False,
)
model = Qwen2ForCausalLM(config)


def rows(count, seed):
    ids = np.random.default_rng(seed).integers(0, 151000, (count, LENGTH))
    return Dataset.from_dict({"input_ids": ids.tolist(), "labels": ids.tolist()})


def compute_metrics(prediction):
    logits, labels = prediction
    guesses = logits.argmax(-1)[:, :-1]
    return {"token_accuracy": float((guesses == labels[:, 1:]).mean())}


args = TrainingArguments(
    output_dir="out/mails-05b",
    per_device_train_batch_size=4,
    per_device_eval_batch_size=8,
    gradient_accumulation_steps=4,
    gradient_checkpointing=True,
    learning_rate=2e-5,
    num_train_epochs=1,
    bf16=True,
    logging_steps=5,
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=rows(256, 0),
    eval_dataset=rows(64, 1),
    data_collator=default_data_collator,
    compute_metrics=compute_metrics,
)
print("before:", trainer.evaluate())
trainer.train()
print("after:", trainer.evaluate())
