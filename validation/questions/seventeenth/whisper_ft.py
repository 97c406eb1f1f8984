"""Whisper large-v3 on dialect recordings: full fine-tuning with the Seq2SeqTrainer."""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, WhisperForConditionalGeneration

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="openai/whisper-large-v3")
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--label-length", type=int, default=256)
parser.add_argument("--max-steps", type=int, default=2)
args = parser.parse_args()

model = WhisperForConditionalGeneration.from_pretrained(args.model)
model.config.use_cache = False


class Recordings(Dataset):
    """Thirty seconds each: 3,000 frames of log-mel features, and the text's tokens."""

    def __init__(self, clips=512):
        self.clips = clips

    def __len__(self):
        return self.clips

    def __getitem__(self, index):
        return {
            "input_features": torch.randn(model.config.num_mel_bins, 3000),
            "labels": torch.randint(0, 50000, (args.label_length,)),
        }


def collate(rows):
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


trainer = Seq2SeqTrainer(
    model=model,
    args=Seq2SeqTrainingArguments(
        output_dir="whisper-dialect",
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=2,
        learning_rate=1e-5,
        warmup_steps=500,
        max_steps=args.max_steps,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        fp16=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        dataloader_num_workers=0,
    ),
    train_dataset=Recordings(),
    data_collator=collate,
)
trainer.train()
