"""TRL's GRPOTrainer on a small Qwen2: eight completions of 64 tokens each, by its own generate."""

import random
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

torch.manual_seed(0)
random.seed(0)
words = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(31997))]
backend = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
backend.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
config = Qwen2Config(
    vocab_size=32000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
    num_attention_heads=16, num_key_value_heads=4,
)  # fmt: skip
model = Qwen2ForCausalLM(config)
prompts = [" ".join(f"w{random.randrange(31997)}" for _ in range(200)) for _ in range(64)]


def reward(completions, **kwargs):
    return [float(len(set(completion.split()))) for completion in completions]


args = GRPOConfig(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=32,
    num_generations=8,
    max_completion_length=64,
    bf16=True,
    max_steps=4,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
GRPOTrainer(
    model=model,
    args=args,
    reward_funcs=reward,
    train_dataset=Dataset.from_dict({"prompt": prompts}),
    processing_class=tokenizer,
).train()
