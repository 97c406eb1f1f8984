"""OLMo 2 13B from 8 to 256 H100: does FSDP over all beat copies in each node, and what does fast Ethernet cost? A CSV."""

import csv
import sys

import brimful

table = csv.writer(sys.stdout)
table.writerow(["gpus", "network", "layout", "fits", "peak_gib", "tokens_per_s_per_gpu", "mfu"])
for nodes in (1, 2, 4, 8, 16, 32):
    for network in ("ib-ndr-400", "roce-100"):
        for layout in ("fsdp", "hsdp"):
            if nodes == 1 and (layout == "hsdp" or network == "roce-100"):
                continue
            flags = {"dp_replicate": nodes, "dp_shard": 8} if layout == "hsdp" else {}
            if nodes > 1:
                flags["network"] = network
            answer = brimful.estimate(
                "allenai/OLMo-2-1124-13B",
                gpus=f"{nodes}x8xh100" if nodes > 1 else "8xh100",
                precision="bf16-mixed",
                zero=3,
                seq_len=4096,
                micro_batch=1,
                global_batch=16 * nodes * 8,
                ac="full",
                loss_chunks=8,
                **flags,
            )
            speed = answer.values["tokens_per_s"] / (nodes * 8)
            table.writerow(
                [
                    nodes * 8,
                    network if nodes > 1 else "nvlink",
                    layout,
                    answer.fits,
                    round(answer.values["predicted_peak_allocated_bytes"] / 2**30, 1),
                    round(speed),
                    round(6 * 13.7e9 * speed / 989e12, 3),
                ]
            )
