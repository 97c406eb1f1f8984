"""Distil Qwen2.5 7B (frozen, bf16) into Qwen2.5 0.5B: KL between their words, 2,048 tokens."""

import argparse

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=2048)
    args = parser.parse_args()
    teacher = AutoModelForCausalLM.from_pretrained(
        "Qwen/Qwen2.5-7B-Instruct", torch_dtype=torch.bfloat16, device_map="auto"
    )
    teacher.requires_grad_(False)
    student = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct").to("cuda")
    words = student.config.vocab_size
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-5)
    for _ in range(2):
        ids = torch.randint(0, 150000, (args.batch, args.seq), device="cuda")
        with torch.no_grad():
            wanted = teacher(ids).logits[..., :words]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = student(ids).logits
        loss = F.kl_div(
            F.log_softmax(logits.float() / 2, -1), F.softmax(wanted.float() / 2, -1),
            reduction="batchmean",
        )  # fmt: skip
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("done", loss.item())


if __name__ == "__main__":
    main()
