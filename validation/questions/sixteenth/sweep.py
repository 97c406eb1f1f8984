"""Which optimizer lets Llama 3.1 8B be trained in full on one 80 GB card, and how fast is it?"""

import brimful

for optimizer in ("adamw", "adamw-8bit", "adafactor", "sgd", "muon"):
    answer = brimful.plan(
        "meta-llama/Llama-3.1-8B", gpus="h100", optimizer=optimizer, precision="bf16",
        seq_len=4096, global_batch=16, offload="none",
    )  # fmt: skip
    peak = answer.values.get("predicted_peak_allocated_bytes")
    speed = answer.values.get("predicted_tokens_per_s")
    print(optimizer, answer.fits, peak and round(peak / 2**30, 1), speed and round(speed))
