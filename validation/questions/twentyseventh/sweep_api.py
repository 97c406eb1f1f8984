"""A table for our wiki: Qwen3 by size and length, LoRA, on one L40S; and what fails, in words."""
import brimful
from brimful.errors import BrimfulError

print(f"{'model':12} {'length':>7} {'fits':5} {'GiB':>7} {'of':>6} {'tokens/s':>9}")
for model in ("qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-900b"):
    for length in (2048, 8192, 32768):
        try:
            answer = brimful.estimate(model, gpus="l40s", method="lora", precision="bf16", seq_len=length,
                                      activation_checkpointing="full", loss_chunks=8)
        except BrimfulError as error:
            print(model, length, "-", error)
            break
        v = answer.values
        print(f"{model:12} {length:7} {answer.fits!s:5} {v['predicted_peak_allocated_bytes'] / 2**30:7.2f} "
              f"{v['usable_bytes'] / 2**30:6.2f} {v['tokens_per_s']:9.0f}")

plan = brimful.plan("qwen3-8b", gpus="l40s", method="lora", precision="bf16", seq_len=8192, global_batch=16,
                    tokens="20M", no_proof=True)
print(plan.values["strategy"], plan.values["cost"], plan.exit_code)
