"""Distil a Qwen3 8B into a Qwen3 0.6B: accelerate launch --config_file accelerate_4gpu.yaml distill_accelerate.py"""
import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, Qwen3Config

TEACHER = Qwen3Config(
    vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
    num_key_value_heads=8, head_dim=128, tie_word_embeddings=False,
)
STUDENT = Qwen3Config(
    vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
    num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--seq_len", type=int, default=2048)
    parser.add_argument("--temperature", type=float, default=2.0)
    args = parser.parse_args()

    accelerator = Accelerator()
    teacher = AutoModelForCausalLM.from_config(TEACHER, dtype=torch.bfloat16).to(accelerator.device)
    teacher.eval()
    student = AutoModelForCausalLM.from_config(STUDENT, dtype=torch.float32)
    rows = [torch.randint(0, 151936, (args.seq_len,)) for _ in range(256)]
    loader = DataLoader(rows, batch_size=args.batch_size, shuffle=True)
    optimizer = torch.optim.AdamW(student.parameters(), lr=5e-5)
    student, optimizer, loader = accelerator.prepare(student, optimizer, loader)

    history = []
    for step, ids in enumerate(loader):
        if step == 4:
            break
        target = teacher(input_ids=ids).logits
        predicted = student(input_ids=ids).logits
        t = args.temperature
        loss = F.kl_div(
            F.log_softmax(predicted.float() / t, dim=-1), F.softmax(target.float() / t, dim=-1), reduction="batchmean"
        ) * t * t / args.seq_len
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        history.append(loss)
        accelerator.print(step, loss.item())


if __name__ == "__main__":
    main()
