"""CI: nobody may make our encoder's step larger than a T4 takes without noticing."""
import pytest
import torch
from torch import nn


def step(width, depth, batch, length, checkpoint=False):
    layers = nn.ModuleList(
        nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, norm_first=True, dropout=0.0)
        for _ in range(depth)
    ).to("cuda")
    optimizer = torch.optim.AdamW(layers.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        x = torch.randn(batch, length, width, device="cuda")
        with torch.autocast("cuda", torch.float16):
            for layer in layers:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) if checkpoint else layer(x)
            loss = x.float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_fits_a_t4(pretend_gpu, checkpoint):
    with pretend_gpu("t4") as run:
        step(768, 12, 16, 512, checkpoint)
    print(f"{run.peak_allocated_bytes / 2**30:.2f} GiB", run.report().at_capacity.outcome)
    assert run.peak_allocated_bytes < 14 * 2**30


def test_checkpointing_saves_half(pretend_gpu):
    run = pretend_gpu("t4")
    run(step)(768, 12, 16, 512)
    run(step)(768, 12, 16, 512, True)
    plain, checkpointed = run.peaks_allocated_bytes
    assert checkpointed < plain / 2
