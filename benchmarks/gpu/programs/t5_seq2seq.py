"""T5-base by Seq2SeqTrainer with sources and targets of varied lengths, padded by its collator."""

import random
import tempfile

import torch
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

torch.manual_seed(0)
random.seed(0)
config = T5Config(
    d_model=768, d_ff=3072, d_kv=64, num_layers=12, num_heads=12, decoder_start_token_id=0
)
model = T5ForConditionalGeneration(config)
backend = Tokenizer(WordLevel({"<pad>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>"))
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="</s>")


def tokens(low, high):
    return [random.randrange(3, config.vocab_size) for _ in range(random.randint(low, high))]


dataset = [{"input_ids": tokens(64, 512), "labels": tokens(16, 128)} for _ in range(200)]
for row in dataset:
    row["attention_mask"] = [1] * len(row["input_ids"])
args = Seq2SeqTrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=16,
    learning_rate=1e-4,
    bf16=True,
    max_steps=6,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
collator = DataCollatorForSeq2Seq(tokenizer, model=model, pad_to_multiple_of=8)
Seq2SeqTrainer(model=model, args=args, train_dataset=dataset, data_collator=collator).train()
