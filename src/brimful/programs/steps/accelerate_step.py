"""Steps through Accelerate's ``Accelerator``, as its launcher sets it up from the exported YAML.

Whoever exports to Accelerate writes such a program: model, adapters, rows, optimizer and the loop
are its own. Its arguments are the YAML, and a JSON file of ``model``, ``dtype``, ``attention``,
``lora`` (of ``LoraConfig``, or null), ``num_rows``, ``seq_len``, ``micro_batch``, ``accumulated``,
``sync_each_batch``, ``checkpointing``, ``clip`` and ``optimizer`` (of ``TrainingArguments``).
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from brimful.pretend.launchers import of_accelerate

_OF_THE_WORLD = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"})
_STEPS = 2


def main() -> None:
    """Load, adapt, prepare and train."""
    _launch(sys.argv[1])
    given = json.loads(Path(sys.argv[2]).read_text("utf-8"))
    from accelerate import Accelerator
    from accelerate.utils import GradientAccumulationPlugin

    steps = GradientAccumulationPlugin(
        num_steps=given["accumulated"], sync_each_batch=given["sync_each_batch"]
    )
    model = _model(given)
    optimizer = _optimizer(given["optimizer"], model)  # before there is a state that it would reset
    accelerator = Accelerator(gradient_accumulation_plugin=steps)
    row = torch.zeros(given["seq_len"], dtype=torch.long)
    rows: Any = [{"input_ids": row, "labels": row}] * given["num_rows"]
    loader = torch.utils.data.DataLoader(rows, batch_size=given["micro_batch"])
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for _ in range(_STEPS):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                if accelerator.sync_gradients and given["clip"]:
                    accelerator.clip_grad_norm_(model.parameters(), given["clip"])
                optimizer.step()
                optimizer.zero_grad()


def _launch(config: str) -> None:
    """Set what ``accelerate launch --config_file`` sets for the processes that it starts."""
    told = of_accelerate(["launch", "--config_file", config, __file__], rank=0).environment
    os.environ.update({name: x for name, x in told.items() if name not in _OF_THE_WORLD})


def _model(given: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        given["model"], dtype=getattr(torch, given["dtype"]), attn_implementation=given["attention"]
    )
    if given["checkpointing"]:
        model.gradient_checkpointing_enable()
    if given["lora"] is not None:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **given["lora"]))
    return model


def _optimizer(arguments: dict[str, Any], model: Any) -> Any:
    """Return the optimizer of a name, by transformers' own table of them."""
    from transformers import Trainer, TrainingArguments

    kind, rates = Trainer.get_optimizer_cls_and_kwargs(TrainingArguments(**arguments), model)
    return kind([x for x in model.parameters() if x.requires_grad], **rates)


if __name__ == "__main__":
    main()
