"""BGE-M3 on our help desk: question and the article that answered it, sentence-transformers v3+ trainer."""

import argparse
import random

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import CachedMultipleNegativesRankingLoss, MultipleNegativesRankingLoss
from sentence_transformers.training_args import BatchSamplers

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--max-seq-length", type=int, default=512)
parser.add_argument("--cached", action="store_true", help="GradCache in pieces of 16")
args = parser.parse_args()

words = "printer invoice password screen account network update licence delivery mailbox error driver".split()
rng = random.Random(0)


def text(n):
    return " ".join(rng.choice(words) for _ in range(n))


train = Dataset.from_dict(
    {"anchor": [text(24) + f" {n}" for n in range(1024)], "positive": [text(500) + f" {n}" for n in range(1024)]}
)

model = SentenceTransformer("BAAI/bge-m3")
model.max_seq_length = args.max_seq_length

if args.cached:
    loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=16)
else:
    loss = MultipleNegativesRankingLoss(model)

trainer = SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(
        output_dir="models/bge-m3-helpdesk",
        max_steps=3,
        per_device_train_batch_size=args.batch_size,
        learning_rate=2e-5,
        bf16=True,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
    ),
    train_dataset=train,
    loss=loss,
)
trainer.train()
