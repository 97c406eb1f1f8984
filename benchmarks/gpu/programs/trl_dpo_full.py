"""TRL's DPOTrainer with every parameter trained and a second model as reference, bf16 weights."""

import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import DPOConfig, DPOTrainer

torch.manual_seed(0)
random.seed(0)
words = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(31997))]
backend = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
backend.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)


def sentence(low, high):
    return " ".join(f"w{random.randrange(31997)}" for _ in range(random.randint(low, high)))


config = Qwen2Config(
    vocab_size=32000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24,
    num_attention_heads=16, num_key_value_heads=4,
)  # fmt: skip
model = Qwen2ForCausalLM(config).to(torch.bfloat16)
reference = Qwen2ForCausalLM(config).to(torch.bfloat16)
rows = [(sentence(50, 200), sentence(50, 700), sentence(50, 700)) for _ in range(64)]
dataset = Dataset.from_dict(
    dict(zip(("prompt", "chosen", "rejected"), map(list, zip(*rows)), strict=True))
)
args = DPOConfig(
    per_device_train_batch_size=4,
    max_length=1024,
    gradient_checkpointing=False,
    output_dir=tempfile.mkdtemp(),
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    bf16=True,
)
DPOTrainer(
    model=model, ref_model=reference, args=args, train_dataset=dataset, processing_class=tokenizer
).train()
