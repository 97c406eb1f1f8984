"""Two steps of TRL's SFTTrainer on a Qwen3 in bf16, as TRL chooses its own kernels."""

import sys

import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from trl import SFTConfig, SFTTrainer

BATCH, LENGTH, WIDTH, MLP, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = map(int, sys.argv[1:10])

words = {"<unk>": 0, "<pad>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, VOCAB)}
special = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"}
made = Tokenizer(models.WordLevel(words, special["unk_token"]))
made.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)
config = transformers.Qwen3Config(
    hidden_size=WIDTH,
    intermediate_size=MLP,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    vocab_size=VOCAB,
    use_cache=False,
)
rows = [[5 + (i * j) % (VOCAB - 5) for j in range(LENGTH)] for i in range(2 * BATCH)]
SFTTrainer(
    model=transformers.Qwen3ForCausalLM(config).to(torch.bfloat16),
    args=SFTConfig(
        output_dir="out",
        per_device_train_batch_size=BATCH,
        max_steps=2,
        max_length=LENGTH,
        bf16=True,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
    ),
    train_dataset=Dataset.from_dict({"input_ids": rows}),
    processing_class=tokenizer,
).train()
