"""XLS-R 300M learns to write down Low German, after the blog post on fine-tuning XLS-R; clips of 3 to 18 seconds."""

import argparse
import json
import os
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    Trainer,
    TrainingArguments,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2Processor,
)

parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, default=16)
parser.add_argument("--max_seconds", type=float, default=18.0)
parser.add_argument("--gradient_checkpointing", action="store_true")
args = parser.parse_args()

letters = "abcdefghijklmnopqrstuvwxyzäöüß'"
vocab = {letter: n for n, letter in enumerate(letters)} | {"|": 31, "[UNK]": 32, "[PAD]": 33}
os.makedirs("/tmp/xlsr-plattdeutsch", exist_ok=True)
with open("/tmp/xlsr-plattdeutsch/vocab.json", "w") as file:
    json.dump(vocab, file)

tokenizer = Wav2Vec2CTCTokenizer(
    "/tmp/xlsr-plattdeutsch/vocab.json", unk_token="[UNK]", pad_token="[PAD]", word_delimiter_token="|"
)
feature_extractor = Wav2Vec2FeatureExtractor(
    feature_size=1, sampling_rate=16000, padding_value=0.0, do_normalize=True, return_attention_mask=True
)
processor = Wav2Vec2Processor(feature_extractor=feature_extractor, tokenizer=tokenizer)


class Clips(Dataset):
    """Stand-in for the recordings: the same lengths."""

    def __init__(self, n):
        rng = np.random.default_rng(0)
        self.seconds = rng.uniform(3.0, args.max_seconds, n)

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, index):
        samples = int(16000 * self.seconds[index])
        audio = np.random.default_rng(index).standard_normal(samples).astype(np.float32)
        text = ("dat weer is hüüt bannig schöön un wi gaht an de elv " * 6)[: int(14 * self.seconds[index])]
        return {
            "input_values": processor(audio, sampling_rate=16000).input_values[0],
            "labels": tokenizer(text).input_ids,
        }


@dataclass
class DataCollatorCTCWithPadding:
    processor: Wav2Vec2Processor

    def __call__(self, features):
        inputs = [{"input_values": each["input_values"]} for each in features]
        labels = [{"input_ids": each["labels"]} for each in features]
        batch = self.processor.feature_extractor.pad(inputs, padding=True, return_tensors="pt")
        padded = self.processor.tokenizer.pad(labels, padding=True, return_tensors="pt")
        batch["labels"] = padded["input_ids"].masked_fill(padded.attention_mask.ne(1), -100)
        return batch


model = Wav2Vec2ForCTC.from_pretrained(
    "facebook/wav2vec2-xls-r-300m",
    attention_dropout=0.0,
    hidden_dropout=0.0,
    feat_proj_dropout=0.0,
    mask_time_prob=0.05,
    layerdrop=0.0,
    ctc_loss_reduction="mean",
    pad_token_id=processor.tokenizer.pad_token_id,
    vocab_size=len(processor.tokenizer),
)
model.freeze_feature_encoder()

trainer = Trainer(
    model=model,
    data_collator=DataCollatorCTCWithPadding(processor),
    args=TrainingArguments(
        output_dir="/tmp/xlsr-plattdeutsch",
        per_device_train_batch_size=args.per_device_train_batch_size,
        gradient_accumulation_steps=2,
        gradient_checkpointing=args.gradient_checkpointing,
        fp16=True,
        learning_rate=3e-4,
        warmup_steps=500,
        max_steps=4,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        remove_unused_columns=False,
    ),
    train_dataset=Clips(256),
)
trainer.train()
print(f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
