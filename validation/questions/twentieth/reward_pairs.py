"""A reward model from 30,000 pairs of answers: Qwen3 4B with one number as its head, LoRA, the Trainer with our own loss."""

import argparse

import torch
import torch.nn.functional as F
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="Qwen/Qwen3-4B")
parser.add_argument("--batch-size", type=int, default=8, help="pairs")
parser.add_argument("--max-length", type=int, default=1024)
parser.add_argument("--full", action="store_true", help="everything trains, no adapters")
args = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(args.model)
if tokenizer.pad_token is None:
    tokenizer.pad_token = tokenizer.eos_token


class Pairs(Dataset):
    def __len__(self):
        return 4 * args.batch_size

    def __getitem__(self, index):
        question = f"Customer {index}: my order has not come yet, what shall I do? "
        return {
            "chosen": question + "I am sorry to hear that, let me look where the parcel is. " * 120,
            "rejected": question + "Please read our terms and conditions on the web page. " * 120,
        }


def collate(rows):
    texts = [row["chosen"] for row in rows] + [row["rejected"] for row in rows]
    return dict(
        tokenizer(texts, truncation=True, max_length=args.max_length, padding="longest", return_tensors="pt")
    )


class RewardTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        rewards = model(**inputs).logits.squeeze(-1)
        chosen, rejected = rewards.chunk(2)
        loss = -F.logsigmoid(chosen - rejected).mean()
        return (loss, {"rewards": rewards}) if return_outputs else loss


model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=1, dtype=torch.bfloat16)
model.config.pad_token_id = tokenizer.pad_token_id
model.config.use_cache = False
if not args.full:
    model = get_peft_model(
        model,
        LoraConfig(
            task_type=TaskType.SEQ_CLS,
            r=32,
            lora_alpha=64,
            lora_dropout=0.05,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
            modules_to_save=["score"],
        ),
    )
    model.print_trainable_parameters()

trainer = RewardTrainer(
    model=model,
    args=TrainingArguments(
        output_dir="/tmp/reward",
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=4,
        learning_rate=1e-5 if args.full else 1e-4,
        bf16=True,
        max_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        remove_unused_columns=False,
    ),
    train_dataset=Pairs(),
    data_collator=collate,
)
trainer.train()
