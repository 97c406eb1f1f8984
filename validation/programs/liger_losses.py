"""One forward and backward of a loss of Liger's, by itself."""

import sys

import liger_kernel.transformers as liger
import torch

LOSS, TOKENS, WIDTH, VOCAB = sys.argv[1], *map(int, sys.argv[2:5])


def made(*shape: int, dtype: torch.dtype = torch.bfloat16, trained: bool = True) -> torch.Tensor:
    """Return random numbers on the GPU."""
    return torch.randn(shape, device="cuda", dtype=dtype, requires_grad=trained)


labels = torch.randint(0, VOCAB, (TOKENS,), device="cuda")
if LOSS in {"cross_entropy", "fused_fp32"}:
    hidden, head = made(TOKENS, WIDTH), made(VOCAB, WIDTH)
    if LOSS == "cross_entropy":
        logits = torch.nn.functional.linear(hidden, head)
        loss = liger.LigerCrossEntropyLoss()(logits, labels)
        del logits
    else:
        fused = liger.LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.float32)
        loss = fused(head, hidden, labels)
elif LOSS in {"kl_div", "jsd"}:
    student = made(TOKENS, VOCAB, dtype=torch.float32)
    teacher = made(TOKENS, VOCAB, dtype=torch.float32, trained=False)
    wanted = liger.LigerKLDIVLoss(log_target=True) if LOSS == "kl_div" else liger.LigerJSD()
    loss = wanted(student, teacher)
else:
    hidden, head = made(TOKENS, WIDTH), made(VOCAB, WIDTH)
    others = made(TOKENS, WIDTH, trained=False), made(VOCAB, WIDTH, trained=False)
    loss = liger.LigerFusedLinearJSD()(hidden, head, *others, labels)
loss.backward()
