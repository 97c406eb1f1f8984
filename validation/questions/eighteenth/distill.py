"""Qwen3 8B teaches Qwen3 0.6B on our domain: KL of all words at every token, plus the usual loss."""

import argparse

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--teacher", default="Qwen/Qwen3-8B")
parser.add_argument("--student", default="Qwen/Qwen3-0.6B")
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--seq-len", type=int, default=2048)
parser.add_argument("--temperature", type=float, default=2.0)
parser.add_argument("--alpha", type=float, default=0.7)
parser.add_argument("--steps", type=int, default=2)
args = parser.parse_args()

device = "cuda"
teacher = AutoModelForCausalLM.from_pretrained(args.teacher, dtype=torch.bfloat16, device_map=device)
teacher.eval()
for p in teacher.parameters():
    p.requires_grad = False

student = AutoModelForCausalLM.from_pretrained(args.student, dtype=torch.float32).to(device)
student.gradient_checkpointing_enable()
student.train()
optimizer = torch.optim.AdamW(student.parameters(), lr=3e-5, betas=(0.9, 0.95))
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)


def kd_loss(student_logits, teacher_logits, T):
    s = F.log_softmax(student_logits.float() / T, dim=-1)
    t = F.softmax(teacher_logits.float() / T, dim=-1)
    return F.kl_div(s, t, reduction="none").sum(-1).mean() * T * T


for step in range(args.steps):
    input_ids = torch.randint(0, 151643, (args.batch_size, args.seq_len), device=device)
    with torch.no_grad():
        teacher_logits = teacher(input_ids=input_ids, use_cache=False).logits
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        out = student(input_ids=input_ids, labels=input_ids, use_cache=False)
        kd = kd_loss(out.logits, teacher_logits, args.temperature)
        loss = args.alpha * kd + (1 - args.alpha) * out.loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(f"step {step}: kd {kd.item():.4f} ce {out.loss.item():.4f}")
