"""Distil a 7B into a 0.5B (both of Qwen 2.5's shapes; vocabularies cut alike) by the whole distribution of words."""
import argparse

import torch
import torch.nn.functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=4)
p.add_argument("--length", type=int, default=2048)
p.add_argument("--accumulate", type=int, default=8)
p.add_argument("--temperature", type=float, default=2.0)
args = p.parse_args()

VOCAB = 151936
teacher_config = Qwen2Config(vocab_size=VOCAB, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
                             num_attention_heads=28, num_key_value_heads=4, max_position_embeddings=32768)
student_config = Qwen2Config(vocab_size=VOCAB, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                             num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=32768, tie_word_embeddings=True)
with torch.device("cuda"):
    torch.set_default_dtype(torch.bfloat16)
    teacher = Qwen2ForCausalLM(teacher_config).eval()
    torch.set_default_dtype(torch.float32)
    student = Qwen2ForCausalLM(student_config)
student.gradient_checkpointing_enable()
opt = torch.optim.AdamW(student.parameters(), lr=5e-5)

for step in range(200):
    for micro in range(args.accumulate):
        tokens = torch.randint(0, VOCAB, (args.batch, args.length), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            wanted = teacher(tokens, use_cache=False).logits
            out = student(tokens, labels=tokens, use_cache=False)
            t = args.temperature
            kl = F.kl_div(
                F.log_softmax(out.logits / t, dim=-1).flatten(0, 1),
                F.softmax(wanted / t, dim=-1).flatten(0, 1),
                reduction="batchmean",
            )
            loss = (0.5 * out.loss + 0.5 * t * t * kl) / args.accumulate
        loss.backward()
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    print(step, loss.item())
