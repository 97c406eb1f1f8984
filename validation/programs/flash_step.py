"""One forward and backward of an attention of flash-attn, by itself."""

import sys

import flash_attn
import torch

KIND, BATCH, LENGTH, HEADS, KV_HEADS, HEAD_DIM = sys.argv[1], *map(int, sys.argv[2:7])

rows = (LENGTH,) if KIND == "flash_packed" else (BATCH, LENGTH)
q, k, v = (
    torch.randn((*rows, heads, HEAD_DIM), device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for heads in (HEADS, KV_HEADS, KV_HEADS)
)
if KIND == "flash_packed":
    step = LENGTH // BATCH
    begins = torch.arange(0, LENGTH + 1, step, device="cuda", dtype=torch.int32)
    out = flash_attn.flash_attn_varlen_func(q, k, v, begins, begins, step, step, causal=True)
else:
    out = flash_attn.flash_attn_func(q, k, v, causal=True)
out.backward(torch.ones_like(out))
