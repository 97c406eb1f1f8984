"""GRPO by Unsloth as in its notebook: Qwen2.5 3B learns to do sums aloud, 4-bit base, vLLM in the same card."""

import argparse
import re

from unsloth import FastLanguageModel  # before trl, it patches it

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="Qwen/Qwen2.5-3B-Instruct")
parser.add_argument("--max-seq-length", type=int, default=1024)
parser.add_argument("--num-generations", type=int, default=8)
parser.add_argument("--lora-rank", type=int, default=64)
parser.add_argument("--gpu-memory-utilization", type=float, default=0.5)
parser.add_argument("--no-vllm", action="store_true")
args = parser.parse_args()

model, tokenizer = FastLanguageModel.from_pretrained(
    model_name=args.model,
    max_seq_length=args.max_seq_length,
    load_in_4bit=True,
    fast_inference=not args.no_vllm,
    max_lora_rank=args.lora_rank,
    gpu_memory_utilization=args.gpu_memory_utilization,
)
model = FastLanguageModel.get_peft_model(
    model,
    r=args.lora_rank,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    lora_alpha=args.lora_rank,
    use_gradient_checkpointing="unsloth",
    random_state=3407,
)

SYSTEM = "Think between <reasoning> and </reasoning>, then give a number between <answer> and </answer>."
rows = Dataset.from_list(
    [
        {
            "prompt": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": f"Anna has {n} sheep and buys {2 * n + 3} more. How many has she?"},
            ],
            "answer": str(3 * n + 3),
        }
        for n in range(2, 66)
    ]
)


def said(completion):
    found = re.search(r"<answer>\s*(.*?)\s*</answer>", completion[0]["content"], re.DOTALL)
    return found.group(1) if found else ""


def correct(prompts, completions, answer, **kwargs):
    return [2.0 if said(each) == right else 0.0 for each, right in zip(completions, answer)]


def is_a_number(completions, **kwargs):
    return [0.5 if said(each).isdigit() else 0.0 for each in completions]


trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=[is_a_number, correct],
    args=GRPOConfig(
        output_dir="/tmp/grpo-sums",
        learning_rate=5e-6,
        adam_beta2=0.99,
        weight_decay=0.1,
        warmup_ratio=0.1,
        lr_scheduler_type="cosine",
        optim="paged_adamw_8bit",
        bf16=True,
        per_device_train_batch_size=args.num_generations,
        gradient_accumulation_steps=1,
        num_generations=args.num_generations,
        max_prompt_length=256,
        max_completion_length=args.max_seq_length - 256,
        max_steps=3,
        max_grad_norm=0.1,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=rows,
)
trainer.train()
