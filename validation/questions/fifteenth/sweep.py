"""What is the largest batch of Qwen2.5-0.5B that fits my A100 40GB, at each length?"""

import brimful

for seq_len in (1024, 2048, 4096):
    best = None
    for batch in (1, 2, 4, 8, 16, 32, 64):
        answer = brimful.estimate(
            "Qwen/Qwen2.5-0.5B",
            gpus="a100-40gb",
            precision="bf16",
            seq_len=seq_len,
            micro_batch=batch,
            global_batch=batch,
        )
        if answer.fits:
            best = batch, answer.values["predicted_peak_allocated_bytes"] / 2**30
    print(seq_len, best)

print(answer)
