"""Steps of DeepSpeed's engine by the JSON that is exported for it.

Whoever exports to DeepSpeed writes such a script: model, adapters and rows are the program's. Its
one argument is a JSON file of ``config`` (DeepSpeed's own), ``model``, ``head`` (the class of
transformers that loads it), ``undropped`` (fields of its configuration that are 0 here),
``attention``, ``lora`` (of LoraConfig, or null), ``checkpoints`` and ``shape``, the rows and tokens
of a micro-batch.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers

_STEPS = 2
_LABELLED = "AutoModelForSequenceClassification"
"""A head whose labels are of whole rows."""


def main() -> None:
    """Load, adapt and train."""
    deepspeed = import_module("deepspeed")
    given = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    settings = transformers.AutoConfig.from_pretrained(given["model"])
    for field in given["undropped"]:
        setattr(settings, field, 0.0)
    model: Any = getattr(transformers, given["head"]).from_pretrained(
        given["model"], config=settings, dtype=torch.float32, attn_implementation=given["attention"]
    )
    model.config.use_cache = False
    if given["checkpoints"]:
        model.gradient_checkpointing_enable()
    if given["lora"] is not None:
        from peft import LoraConfig, get_peft_model

        model.enable_input_require_grads()
        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **given["lora"]))
    trained = [p for p in model.parameters() if p.requires_grad]
    config = given["config"]
    model.train()  # without it no block is recomputed
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=config)
    for _ in range(_STEPS * config["gradient_accumulation_steps"]):
        tokens = torch.zeros(given["shape"], dtype=torch.int64, device=engine.device)
        labels = tokens[:, 0] if given["head"] == _LABELLED else tokens
        loss = engine(input_ids=tokens, labels=labels).loss
        engine.backward(loss)
        engine.step()


if __name__ == "__main__":
    main()
