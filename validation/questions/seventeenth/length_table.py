"""For the appendix: peak and speed of Mistral 7B with LoRA against the length of a text."""

import brimful

print(f"{'tokens':>8} {'peak GiB':>10} {'of GiB':>8} {'tokens/s':>10}  fits")
for seq_len in (2048, 4096, 8192, 16384, 32768):
    answer = brimful.estimate(
        "mistralai/Mistral-7B-v0.3",
        gpus="a100-80gb",
        method="lora",
        lora_rank=64,
        precision="bf16",
        seq_len=seq_len,
        micro_batch=1,
        global_batch=8,
        ac="full",
        loss_chunks=8,
    )
    values = answer.values
    print(
        f"{seq_len:>8} {values['predicted_peak_allocated_bytes'] / 2**30:>10.2f}"
        f" {values['usable_bytes'] / 2**30:>8.2f} {values['tokens_per_s']:>10,.0f}  {answer.fits}"
    )
