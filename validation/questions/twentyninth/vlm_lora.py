"""LoRA of Qwen3-VL on invoices. Made-up pages for now, to see whether it runs at all."""
import torch
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

name = "Qwen/Qwen3-VL-4B-Instruct"
processor = AutoProcessor.from_pretrained(name)
model = AutoModelForImageTextToText.from_pretrained(name, dtype=torch.bfloat16, device_map="cuda")
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model = get_peft_model(model, LoraConfig(
    r=16, lora_alpha=32, lora_dropout=0.05,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
model.print_trainable_parameters()


def batch(n):
    images = [Image.new("RGB", (1240, 1754), "white") for _ in range(n)]
    chats = [[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Total amount?"}]},
              {"role": "assistant", "content": [{"type": "text", "text": "1,284.00 EUR"}]}]] * n
    texts = [processor.apply_chat_template(c, tokenize=False) for c in chats]
    out = processor(text=texts, images=images, padding=True, return_tensors="pt")
    out["labels"] = out["input_ids"].clone()
    return out.to("cuda")


optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)
model.train()
for step in range(50):
    loss = model(**batch(2)).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
