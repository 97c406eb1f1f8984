"""Steps of transformers' Trainer by the arguments that are exported for it.

Whoever exports to the Trainer writes such a script: model, adapters and rows are the program's.
Its one argument is a JSON file of ``arguments`` (of ``TrainingArguments``), ``model``, ``dtype``,
``attention``, ``lora`` (of ``LoraConfig``, or null), ``num_rows`` and ``seq_len``.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments


def main() -> None:
    """Load, adapt and train."""
    given = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    (arguments,) = HfArgumentParser(TrainingArguments).parse_dict(given["arguments"])
    model: Any = AutoModelForCausalLM.from_pretrained(
        given["model"], dtype=getattr(torch, given["dtype"]), attn_implementation=given["attention"]
    )
    if given["lora"] is not None:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **given["lora"]))
    tokens = [0] * given["seq_len"]
    rows = [{"input_ids": tokens, "labels": tokens}] * given["num_rows"]
    Trainer(model=model, args=arguments, train_dataset=rows).train()


if __name__ == "__main__":
    main()
