"""TRL's SFTTrainer with QLoRA: nf4 doubly quantised, checkpointed, a 1.1B Llama."""

import random
import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
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


config = LlamaConfig(
    vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
    num_attention_heads=32, num_key_value_heads=4,
)  # fmt: skip
folder = tempfile.mkdtemp()
with torch.device("cuda"):
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
quantization = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)  # fmt: skip
model = AutoModelForCausalLM.from_pretrained(
    folder, quantization_config=quantization, device_map={"": 0}, dtype=torch.bfloat16
)
dataset = Dataset.from_dict({"text": [sentence(300, 1000) for _ in range(64)]})
args = SFTConfig(
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    gradient_checkpointing=True,
    max_length=1024,
    output_dir=tempfile.mkdtemp(),
    max_steps=3,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    bf16=True,
    optim="paged_adamw_8bit",
)
SFTTrainer(
    model=model,
    args=args,
    train_dataset=dataset,
    processing_class=tokenizer,
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
).train()
