"""ByT5 large mends what OCR misread in old newspapers: Seq2SeqTrainer, Adafactor, 1,024 bytes each way."""

import argparse
import random

import numpy as np
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path", default="google/byt5-large")
parser.add_argument("--per_device_train_batch_size", type=int, default=8)
parser.add_argument("--max_length", type=int, default=1024)
parser.add_argument("--gradient_checkpointing", action="store_true")
parser.add_argument("--evaluate", action="store_true", help="write 32 texts afterwards")
args = parser.parse_args()

rng = random.Random(0)
letters = "abcdefghijklmnopqrstuvwxyz        eeeennnnrrss"


def misread(text):
    return "".join(rng.choice("cl1iftm") if rng.random() < 0.07 else letter for letter in text)


clean = ["".join(rng.choice(letters) for _ in range(1400)) for _ in range(96)]
data = Dataset.from_dict({"ocr": [misread(text) for text in clean], "text": clean}).train_test_split(32, seed=0)

tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
model = AutoModelForSeq2SeqLM.from_pretrained(args.model_name_or_path)
model.config.use_cache = not args.gradient_checkpointing


def tokenize(rows):
    inputs = tokenizer(rows["ocr"], max_length=args.max_length, truncation=True)
    inputs["labels"] = tokenizer(text_target=rows["text"], max_length=args.max_length, truncation=True)["input_ids"]
    return inputs


data = data.map(tokenize, batched=True, remove_columns=["ocr", "text"])


def share_of_right_letters(prediction):
    said, wanted = prediction
    width = min(said.shape[1], wanted.shape[1])
    return {"right": float(np.mean(said[:, :width] == wanted[:, :width]))}


trainer = Seq2SeqTrainer(
    model=model,
    args=Seq2SeqTrainingArguments(
        output_dir="/tmp/byt5-ocr",
        per_device_train_batch_size=args.per_device_train_batch_size,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=4,
        gradient_checkpointing=args.gradient_checkpointing,
        optim="adafactor",
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        bf16=True,
        max_steps=2,
        predict_with_generate=True,
        generation_max_length=args.max_length,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=data["train"],
    eval_dataset=data["test"],
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model, padding="longest"),
    compute_metrics=share_of_right_letters,
)
trainer.train()
if args.evaluate:
    print(trainer.evaluate())
