"""QLoRA of Llama 3.1 8B, as in the blog posts: bitsandbytes, PEFT, the Trainer."""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="meta-llama/Llama-3.1-8B-Instruct")
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--max-length", type=int, default=2048)
parser.add_argument("--gradient-checkpointing", action="store_true")
cli = parser.parse_args()


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 128000, (cli.max_length,))
        return {"input_ids": ids, "labels": ids.clone()}


bnb = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)
model = AutoModelForCausalLM.from_pretrained(cli.model, quantization_config=bnb, dtype=torch.bfloat16, device_map={"": 0})
model.config.use_cache = False
if cli.gradient_checkpointing:
    model.enable_input_require_grads()
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
model = get_peft_model(model, LoraConfig(r=64, lora_alpha=16, lora_dropout=0.1, target_modules=targets, task_type="CAUSAL_LM"))

args = TrainingArguments(
    output_dir="/tmp/qlora",
    per_device_train_batch_size=cli.batch_size,
    gradient_accumulation_steps=8,
    gradient_checkpointing=cli.gradient_checkpointing,
    optim="paged_adamw_32bit",
    learning_rate=2e-4,
    bf16=True,
    max_steps=2,
    save_strategy="no",
    logging_steps=1,
    report_to="none",
)
Trainer(model=model, args=args, train_dataset=Rows()).train()
