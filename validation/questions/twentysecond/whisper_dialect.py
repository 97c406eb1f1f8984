"""Whisper on Swiss German: the recipe of the Hugging Face blog, with made-up features until the audio is released."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperForConditionalGeneration,
)

MODEL = "openai/whisper-large-v3"
MEL_BINS = 128  # 80 before v3
FRAMES = 3000  # 30 seconds
LABELS = 160  # tokens of a segment, about


class Segments(torch.utils.data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        length = 80 + i % (LABELS - 80)
        return {
            "input_features": torch.randn(MEL_BINS, FRAMES, generator=generator),
            "labels": torch.randint(5, 50000, (length,), generator=generator),
        }


@dataclass
class Collator:
    decoder_start_token_id: int

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        features = torch.stack([row["input_features"] for row in rows])
        longest = max(len(row["labels"]) for row in rows)
        labels = torch.full((len(rows), longest), -100)
        for k, row in enumerate(rows):
            labels[k, : len(row["labels"])] = row["labels"]
        return {"input_features": features, "labels": labels}


model = WhisperForConditionalGeneration.from_pretrained(MODEL)
model.generation_config.language = "german"
model.generation_config.task = "transcribe"
model.generation_config.forced_decoder_ids = None
model.config.use_cache = False
model.model.encoder.conv1.requires_grad_(False)
model.model.encoder.conv2.requires_grad_(False)

args = Seq2SeqTrainingArguments(
    output_dir="./whisper-large-v3-gsw",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=1e-5,
    warmup_steps=500,
    max_steps=4,
    gradient_checkpointing=True,
    fp16=True,
    eval_strategy="no",
    save_strategy="no",
    logging_steps=1,
    report_to=[],
    remove_unused_columns=False,
    label_names=["labels"],
)

trainer = Seq2SeqTrainer(
    args=args,
    model=model,
    train_dataset=Segments(512),
    data_collator=Collator(model.config.decoder_start_token_id),
)
trainer.train()
