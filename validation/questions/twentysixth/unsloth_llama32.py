# From the Unsloth notebook, flattened into a file. !pip install unsloth
import torch
from unsloth import FastLanguageModel

max_seq_length = 4096
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="unsloth/Llama-3.2-3B-Instruct",
    max_seq_length=max_seq_length,
    dtype=None,
    load_in_4bit=True,
)
model = FastLanguageModel.get_peft_model(
    model,
    r=16,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    lora_alpha=16,
    lora_dropout=0,
    bias="none",
    use_gradient_checkpointing="unsloth",
    random_state=3407,
)

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

rows = Dataset.from_dict({"text": ["Frage: Was ist ein Hebel? Antwort: " + "Ein Hebel ist ein Balken. " * 400] * 256})
trainer = SFTTrainer(
    model=model,
    processing_class=tokenizer,
    train_dataset=rows,
    args=SFTConfig(
        dataset_text_field="text",
        max_length=max_seq_length,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        warmup_steps=5,
        max_steps=60,
        learning_rate=2e-4,
        optim="adamw_8bit",
        weight_decay=0.01,
        lr_scheduler_type="linear",
        seed=3407,
        output_dir="outputs",
        report_to="none",
    ),
)
trainer.train()
print(torch.cuda.max_memory_reserved() / 1024**3, "GB peak")
