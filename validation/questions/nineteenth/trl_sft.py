"""SFT of Qwen2.5 1.5B with TRL on chats of mine, everything trained."""

import argparse

from datasets import Dataset
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="Qwen/Qwen2.5-1.5B-Instruct")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--max-length", type=int, default=2048)
parser.add_argument("--liger", action="store_true")
cli = parser.parse_args()

answer = "You can return it within thirty days, and we send you the label by mail. " * 150
rows = [
    {"messages": [{"role": "user", "content": f"May I return order {n}?"}, {"role": "assistant", "content": answer}]}
    for n in range(64)
]

trainer = SFTTrainer(
    model=cli.model,
    args=SFTConfig(
        output_dir="/tmp/sft",
        max_length=cli.max_length,
        per_device_train_batch_size=cli.batch_size,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        use_liger_kernel=cli.liger,
        model_init_kwargs={"dtype": "bfloat16"},
        bf16=True,
        learning_rate=1e-5,
        max_steps=2,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=Dataset.from_list(rows),
    processing_class=AutoTokenizer.from_pretrained(cli.model),
)
trainer.train()
