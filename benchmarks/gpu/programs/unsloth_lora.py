"""Unsloth: LoRA with its kernels and its checkpointing on a Llama of sixteen layers, 4-bit."""

from unsloth import FastLanguageModel  # isort: skip
import tempfile

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=16,
    num_attention_heads=32, num_key_value_heads=4,
)  # fmt: skip
folder = tempfile.mkdtemp()
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
words = ["<s>", "</s>", "<pad>", "<unk>", *(f"w{i}" for i in range(31996))]
PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>")),
    bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
).save_pretrained(folder)  # fmt: skip
model, _ = FastLanguageModel.from_pretrained(
    folder, max_seq_length=2048, load_in_4bit=True, dtype=torch.bfloat16
)
model = FastLanguageModel.get_peft_model(
    model, r=16, lora_alpha=16, use_gradient_checkpointing="unsloth",
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
)  # fmt: skip
FastLanguageModel.for_training(model)
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=2e-4)
for step in range(4):
    ids = torch.randint(32000, (4, 2048), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
