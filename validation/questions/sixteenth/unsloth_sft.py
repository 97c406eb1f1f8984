"""Unsloth's own example, as people copy it."""

from datasets import Dataset
from trl import SFTConfig, SFTTrainer
from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", max_seq_length=2048, load_in_4bit=True
)
model = FastLanguageModel.get_peft_model(
    model, r=16, lora_alpha=16, lora_dropout=0, bias="none", use_gradient_checkpointing="unsloth",
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
)  # fmt: skip
rows = Dataset.from_list([{"text": "The quick brown fox jumps over the lazy dog. " * 200}] * 64)
trainer = SFTTrainer(
    model=model, tokenizer=tokenizer, train_dataset=rows,
    args=SFTConfig(
        dataset_text_field="text", max_length=2048, per_device_train_batch_size=2,
        gradient_accumulation_steps=4, max_steps=60, learning_rate=2e-4, optim="adamw_8bit",
        output_dir="outputs",
    ),
)  # fmt: skip
trainer.train()
