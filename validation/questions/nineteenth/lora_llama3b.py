"""LoRA of Llama 3.2 3B on support mails with PEFT, a plain loop. Weights: random here, the hub's on the training box."""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, get_cosine_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--max-length", type=int, default=2048)
parser.add_argument("--layers", type=int, default=28)
parser.add_argument("--hidden", type=int, default=3072)
parser.add_argument("--lr", type=float, default=2e-4)
args = parser.parse_args()

config = LlamaConfig(
    vocab_size=128256,
    hidden_size=args.hidden,
    intermediate_size=8192,
    num_hidden_layers=args.layers,
    num_attention_heads=24,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
)


class Mails(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        ids = torch.randint(0, 128000, (args.max_length,))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


model = AutoModelForCausalLM.from_config(config)
lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM")
model = get_peft_model(model, lora).to("cuda")
model.print_trainable_parameters()

loader = DataLoader(Mails(), batch_size=args.batch_size, shuffle=True)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.lr)
scheduler = get_cosine_schedule_with_warmup(optimizer, 10, 1000)

model.train()
for step, batch in enumerate(loader):
    batch = {k: v.to("cuda") for k, v in batch.items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.4f} mem {torch.cuda.max_memory_allocated() / 1e9:.1f} GB")
