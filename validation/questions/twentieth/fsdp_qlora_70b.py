"""Llama 3.3 70B on four 24 GB cards: FSDP and QLoRA together, as in Answer.AI's post, with PEFT and the Trainer.

accelerate launch --config_file fsdp_qlora.yaml fsdp_qlora_70b.py
"""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from peft.utils.other import fsdp_auto_wrap_policy
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="meta-llama/Llama-3.3-70B-Instruct")
parser.add_argument("--max-seq-length", type=int, default=2048)
parser.add_argument("--batch-size", type=int, default=1)
args = parser.parse_args()


class Manuals(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 128000, (args.max_seq_length,))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


model = AutoModelForCausalLM.from_pretrained(
    args.model,
    quantization_config=BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.bfloat16,
        bnb_4bit_quant_storage=torch.bfloat16,
    ),
    attn_implementation="sdpa",
    dtype=torch.bfloat16,
    use_cache=False,
)
model = get_peft_model(
    model,
    LoraConfig(r=16, lora_alpha=8, lora_dropout=0.05, bias="none", target_modules="all-linear", task_type="CAUSAL_LM"),
)
model.print_trainable_parameters()

trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="/tmp/llama70b-qlora",
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": True},
        optim="adamw_torch",
        learning_rate=2e-4,
        lr_scheduler_type="constant",
        max_grad_norm=0.3,
        bf16=True,
        tf32=True,
        max_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=Manuals(),
)
if getattr(trainer.accelerator.state, "fsdp_plugin", None):
    trainer.accelerator.state.fsdp_plugin.auto_wrap_policy = fsdp_auto_wrap_policy(trainer.model)
trainer.train()
