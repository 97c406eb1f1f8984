"""PaliGemma 2 3B at 448 pixels answers questions about gauges; after the notebook of the PaliGemma post."""

import argparse

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import PaliGemmaForConditionalGeneration, PaliGemmaProcessor, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--model-id", default="google/paligemma2-3b-pt-448")
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--lora", action="store_true")
args = parser.parse_args()

device = "cuda"
rng = np.random.default_rng(0)
rows = [
    {
        "image": Image.fromarray(rng.integers(0, 255, (600, 800, 3), dtype=np.uint8)),
        "question": "Which pressure does the gauge show?",
        "answer": f"{n / 10:.1f} bar",
    }
    for n in range(32)
]

processor = PaliGemmaProcessor.from_pretrained(args.model_id)


def collate_fn(examples):
    tokens = processor(
        text=["<image>answer en " + example["question"] for example in examples],
        images=[example["image"].convert("RGB") for example in examples],
        suffix=[example["answer"] for example in examples],
        return_tensors="pt",
        padding="longest",
    )
    return tokens.to(torch.bfloat16)


model = PaliGemmaForConditionalGeneration.from_pretrained(args.model_id, dtype=torch.bfloat16).to(device)
if args.lora:
    model = get_peft_model(
        model,
        LoraConfig(
            r=8,
            target_modules=["q_proj", "o_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"],
            task_type="CAUSAL_LM",
        ),
    )
    model.print_trainable_parameters()
else:
    for name, parameter in model.named_parameters():
        if "vision_tower" in name or "multi_modal_projector" in name:
            parameter.requires_grad = False

trainer = Trainer(
    model=model,
    train_dataset=rows,
    data_collator=collate_fn,
    args=TrainingArguments(
        output_dir="/tmp/paligemma2-gauges",
        max_steps=3,
        remove_unused_columns=False,
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=2,
        warmup_steps=2,
        learning_rate=2e-5,
        weight_decay=1e-6,
        adam_beta2=0.999,
        optim="adamw_torch",
        bf16=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        dataloader_pin_memory=False,
    ),
)
trainer.train()
