"""A small Qwen learns from a large one: Qwen2.5 0.5B from 7B, on logits (Hinton 2015), DDP by torchrun.

torchrun --nproc_per_node 2 distill_qwen_ddp.py
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from transformers import AutoModelForCausalLM, get_cosine_schedule_with_warmup

parser = argparse.ArgumentParser()
parser.add_argument("--teacher", default="Qwen/Qwen2.5-7B-Instruct")
parser.add_argument("--student", default="Qwen/Qwen2.5-0.5B")
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--seq-len", type=int, default=1024)
parser.add_argument("--temperature", type=float, default=2.0)
parser.add_argument("--alpha", type=float, default=0.5)
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
device = torch.device("cuda", local_rank)


class Recipes(Dataset):
    def __len__(self):
        return args.steps * args.batch_size * dist.get_world_size()

    def __getitem__(self, index):
        return torch.randint(0, 151643, (args.seq_len,))


teacher = AutoModelForCausalLM.from_pretrained(args.teacher, dtype=torch.bfloat16).to(device)
teacher.eval()
student = AutoModelForCausalLM.from_pretrained(args.student, dtype=torch.float32).to(device)
words = student.config.vocab_size
student = DistributedDataParallel(student, device_ids=[local_rank])

optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, weight_decay=0.01)
schedule = get_cosine_schedule_with_warmup(optimizer, 1, args.steps)
rows = Recipes()
sampler = DistributedSampler(rows)
loader = DataLoader(rows, batch_size=args.batch_size, sampler=sampler, pin_memory=True)


def soft_loss(student_logits, teacher_logits):
    """Kullback-Leibler distance at a temperature, over the words that both know."""
    t = args.temperature
    wanted = F.softmax(teacher_logits[..., :words].float() / t, dim=-1)
    said = F.log_softmax(student_logits.float() / t, dim=-1)
    return F.kl_div(said, wanted, reduction="none").sum(-1).mean() * t * t


history = []
for step, ids in enumerate(loader):
    ids = ids.to(device, non_blocking=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        teacher_logits = teacher(input_ids=ids).logits
        output = student(input_ids=ids, labels=ids)
        loss = args.alpha * output.loss + (1 - args.alpha) * soft_loss(output.logits, teacher_logits)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    history.append(loss)
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)

if dist.get_rank() == 0:
    print("mean loss", torch.stack(history).mean().item())
    student.module.save_pretrained("/tmp/qwen-distilled")
dist.destroy_process_group()
