"""For the order form: QLoRA of three models on the four cards that our dealer has, one row each."""

import brimful

CARDS = ("rtx-5060-ti-16gb", "rtx-5070-ti", "rtx-3090", "rtx-5090")
MODELS = ("Qwen/Qwen3-8B", "google/gemma-3-12b-it", "mistralai/Mistral-Small-24B-Instruct-2501")

print(f"{'model':<45} {'card':<18} {'fits':<5} {'GiB':>6} {'tokens/s':>9} {'h for 20M':>10}")
for model in MODELS:
    for card in CARDS:
        try:
            answer = brimful.plan(
                model, gpus=card, method="qlora", seq_len=2048, global_batch=16, tokens="20M", no_proof=True
            )
        except brimful.errors.BrimfulError as error:
            print(f"{model:<45} {card:<18} {error}")
            continue
        values = answer.values
        if answer.fits:
            peak, speed = values["predicted_peak_allocated_bytes"] / 2**30, values["tokens_per_s"]
            print(f"{model:<45} {card:<18} {'yes':<5} {peak:6.1f} {speed:9,.0f} {20e6 / speed / 3600:10.1f}")
        else:
            print(f"{model:<45} {card:<18} no")
