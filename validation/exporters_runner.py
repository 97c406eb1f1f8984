"""What runs an export for real, on a CPU, in a target's own environment. Knows nothing of Brimful.

Started by the target's own launcher, one process per device: ``exporters_runner.py TARGET EXPORT
SITE OUT``. SITE holds weights and rows [steps x batch, tokens + 1] of ``peer_site``. The first
process writes the losses of all steps to OUT.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import numpy as np
import torch
import torch.distributed as dist
import transformers

STEPS_OF_MICRO, LEARNING_RATE = 2, 1e-3
MICRO_BATCH = 8 // (STEPS_OF_MICRO * int(os.environ.get("WORLD_SIZE", "1")))
"""A step has eight rows, whatever processes there are."""


def _model(site: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        site / "weights", dtype=torch.float32, attn_implementation="sdpa"
    )


def _rows(site: Path, rank: int, world: int) -> Iterator[torch.Tensor]:
    """Yield this process's micro-batches, step by step."""
    rows = torch.from_numpy(np.load(site / "rows.npy").astype(np.int64))
    for batch in rows.split(MICRO_BATCH * STEPS_OF_MICRO * world):
        yield from batch[rank::world].split(MICRO_BATCH)


def _loss(model: Any, rows_BT: torch.Tensor) -> torch.Tensor:  # noqa: N803 - a shape
    logits = model(input_ids=rows_BT[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows_BT[:, 1:].flatten())


def _mean(losses: list[float]) -> list[float]:
    """Average micro-batches into steps, and over processes."""
    means = torch.tensor(losses, dtype=torch.float64).view(-1, STEPS_OF_MICRO).mean(1)
    if dist.is_initialized():
        dist.all_reduce(means)
        means /= dist.get_world_size()
    return [float(each) for each in means]


def _deepspeed(export: Path, site: Path) -> list[float]:
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    model = _model(site)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=str(export)
    )
    losses = []
    for rows in _rows(site, dist.get_rank(), dist.get_world_size()):
        loss = _loss(engine, rows)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss))
    return _mean(losses)


def _accelerate(export: Path, site: Path) -> list[float]:
    del export  # the launcher has read it
    import accelerate

    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=STEPS_OF_MICRO)
    model = _model(site)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
    )
    rows = torch.from_numpy(np.load(site / "rows.npy").astype(np.int64))
    loader = torch.utils.data.DataLoader(rows, batch_size=MICRO_BATCH)
    # Accelerate hands batches to processes in turn: each step sees the rows that it shall.
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for number, rows in enumerate(loader):
        with accelerator.accumulate(model):
            loss = _loss(model, rows)
            accelerator.backward(loss)
            if (number + 1) % STEPS_OF_MICRO == 0:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return _mean(losses)


def _hf_trainer(export: Path, site: Path) -> list[float]:
    (args,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_yaml_file(
        str(export)
    )
    args.output_dir, args.disable_tqdm = str(site), True
    args.save_strategy, args.train_sampling_strategy = "no", "sequential"
    rows = torch.from_numpy(np.load(site / "rows.npy").astype(np.int64))
    data = [{"input_ids": row[:-1], "labels": row[:-1], "shift_labels": row[1:]} for row in rows]
    trainer = transformers.Trainer(model=_model(site), args=args, train_dataset=data)
    trainer.train()
    return [float(row["loss"]) for row in trainer.state.log_history if "loss" in row]


def main() -> None:
    """Run, and let the first process write."""
    target, export, site, out = sys.argv[1], *map(Path, sys.argv[2:5])
    run = {"deepspeed": _deepspeed, "accelerate": _accelerate, "hf-trainer": _hf_trainer}[target]
    losses = run(export, site)
    if int(os.environ.get("RANK", "0")) == 0:
        out.write_text(json.dumps(losses))
    if dist.is_initialized():
        dist.barrier()
        # gloo's threads abort a process now and then that ends as Python ends; all is written.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
