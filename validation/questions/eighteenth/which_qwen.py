"""I have one 16 GB card. Which is the largest Qwen3 that I can train, and how?"""

import brimful

CARD = "rtx-4070-ti-super"
SIZES = ("0.6B", "1.7B", "4B", "8B", "14B", "32B")
METHODS = ("full", "lora", "qlora")

largest = {}
for method in METHODS:
    for size in SIZES:
        answer = brimful.estimate(
            f"Qwen/Qwen3-{size}",
            gpus=CARD,
            method=method,
            precision="bf16",
            optimizer="adamw-8bit" if method == "full" else "adamw",
            seq_len=4096,
            micro_batch=1,
            global_batch=16,
            activation_checkpointing="full",
            loss_chunks=16,
        )
        peak = answer.values["predicted_peak_allocated_bytes"] / 2**30
        room = answer.values["usable_bytes"] / 2**30
        print(f"{method:>6} {size:>5} {peak:8.2f} of {room:.2f} GiB  {'yes' if answer.fits else 'no'}")
        if answer.fits:
            largest[method] = (size, answer.values["tokens_per_s"])

for method, (size, speed) in largest.items():
    print(f"{method}: Qwen3 {size}, {speed:,.0f} tokens/s")
