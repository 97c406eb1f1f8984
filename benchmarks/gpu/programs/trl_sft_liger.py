"""TRL's SFTTrainer with Liger's kernels: prompts and completions, loss on completions alone."""

import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

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
model = Qwen2ForCausalLM(config)
dataset = Dataset.from_dict(
    {
        "prompt": [sentence(100, 300) for _ in range(64)],
        "completion": [sentence(200, 900) for _ in range(64)],
    }
)
args = SFTConfig(
    per_device_train_batch_size=8,
    max_length=1024,
    use_liger_kernel=True,
    gradient_checkpointing=False,
    output_dir=tempfile.mkdtemp(),
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    bf16=True,
)
SFTTrainer(model=model, args=args, train_dataset=dataset, processing_class=tokenizer).train()
