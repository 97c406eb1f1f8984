import re

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

rows = [{"prompt": f"What is {a} * {b}? Put the answer in \\boxed{{}}.", "answer": str(a * b)}
        for a in range(10, 60) for b in range(10, 20)]


def correct(completions, answer, **kwargs):
    found = [re.search(r"\\boxed\{(-?\d+)\}", c) for c in completions]
    return [1.0 if m and m.group(1) == a else 0.0 for m, a in zip(found, answer)]


args = GRPOConfig(
    output_dir="out/grpo-qwen",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_generations=8,
    max_completion_length=512,
    learning_rate=1e-6,
    beta=0.04,
    bf16=True,
    gradient_checkpointing=True,
    max_steps=300,
    logging_steps=5,
    report_to="none",
)
trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-1.5B-Instruct",
    reward_funcs=correct,
    args=args,
    train_dataset=Dataset.from_list(rows),
)
trainer.train()
