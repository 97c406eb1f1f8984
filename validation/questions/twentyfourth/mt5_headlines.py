"""mT5-base writes headlines for Swahili news. Rows are random here; the real ones have the same lengths."""
import argparse

import torch
from transformers import MT5Config, MT5ForConditionalGeneration, Seq2SeqTrainer, Seq2SeqTrainingArguments


class Rows(torch.utils.data.Dataset):
    def __init__(self, n, source, target):
        self.n, self.source, self.target = n, source, target

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return {
            "input_ids": torch.randint(2, 250000, (self.source,), generator=generator),
            "attention_mask": torch.ones(self.source, dtype=torch.long),
            "labels": torch.randint(2, 250000, (self.target,), generator=generator),
        }


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--source-len", type=int, default=512)
parser.add_argument("--target-len", type=int, default=128)
args = parser.parse_args()

config = MT5Config(
    vocab_size=250112, d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_decoder_layers=12, num_heads=12,
    feed_forward_proj="gated-gelu", decoder_start_token_id=0,
)
model = MT5ForConditionalGeneration(config)
trainer = Seq2SeqTrainer(
    model=model,
    args=Seq2SeqTrainingArguments(
        output_dir="out-mt5",
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=args.batch_size * 2,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=3,
        fp16=True,
        learning_rate=5e-4,
        optim="adafactor",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=Rows(4000, args.source_len, args.target_len),
    eval_dataset=Rows(64, args.source_len, args.target_len),
)
trainer.train()
